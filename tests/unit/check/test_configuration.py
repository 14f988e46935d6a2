# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.check.configuration import kind, page, schema_of, values

ROOT = Path(__file__).resolve().parents[3]
TEXT = """\
# The head, which belongs to no value.

# What the group is.
group:
  # How many.
  #   small: 1
  #   large: 2
  count: 1
  plain: [a]
  items:
    - name: x
other: {}
"""
SCHEMA = {
    "properties": {
        "group": {
            "properties": {
                "count": {"type": "integer", "minimum": 0, "maximum": 9},
                "plain": {"type": "array", "items": {"type": "string"}},
                "items": {"type": "array", "items": {"type": "object"}},
            }
        },
        "other": {"type": "object"},
    }
}


def test_each_value_has_its_comment_and_its_default() -> None:
    assert [(value.name, value.default) for value in values(TEXT)] == [
        ("group", yaml.safe_load(TEXT)["group"]),
        ("group.count", 1),
        ("group.plain", ["a"]),
        ("group.items", [{"name": "x"}]),
        ("other", {}),
    ]


def test_the_page_joins_prose_and_keeps_what_is_set_in() -> None:
    text = page(TEXT, SCHEMA)
    assert "## `group`\n\nWhat the group is.\n" in text
    assert "### `group.count`\n\ninteger, 0 to 9; default `1`\n\nHow many.\n" in text
    assert "```text\nsmall: 1\nlarge: 2\n```" in text
    assert "which belongs to no value" not in text


def test_kinds_are_told_in_words() -> None:
    assert kind({"enum": ["a", "b"]}) == '`"a"` or `"b"`'
    assert kind({"type": "array", "items": {"type": "string"}}) == "list of string"
    assert kind({"type": ["integer", "string"], "minimum": 1}) == "integer or string, at least 1"


def test_every_value_of_the_chart_is_on_the_page() -> None:
    chart = ROOT / "charts/ringfence"
    schema = json.loads((chart / "values.schema.json").read_text())
    names = {value.name for value in values((chart / "values.yaml").read_text())}
    for top, described in schema["properties"].items():
        for name in described.get("properties", {"": None}):
            if top != "global" and "additionalProperties" in described:
                full = f"{top}.{name}" if name else top
                assert any(one == full or one.startswith(f"{full}.") or full.startswith(f"{one}.")
                           for one in names), full  # fmt: skip
                schema_of(schema, full)
