# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.testbed.openshift import schema

if TYPE_CHECKING:
    from pathlib import Path

LATCH: dict[str, Any] = {
    "type": "object",
    "x-kubernetes-group-version-kind": [{"group": "a.io", "kind": "Latch", "version": "v1"}],
    "properties": {
        "metadata": {"allOf": [{"$ref": "#/elsewhere"}]},
        "spec": {
            "type": "object",
            "properties": {
                "properties": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {
                    "type": "object",
                    "properties": {"a": {}},
                    "x-kubernetes-preserve-unknown-fields": True,
                },
                "items": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"a": {"type": "string"}}},
                },
            },
        },
    },
}
OF_TWO_GROUPS = {
    **LATCH,
    "x-kubernetes-group-version-kind": [
        {"group": "", "kind": "Latch", "version": "v1"},
        {"group": "a.io", "kind": "Latch", "version": "v1"},
    ],
}


def written(directory: Path, *schemas: dict[str, Any]) -> Path:
    file = directory / "schemas.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"latch": schemas}).encode()))
    return file


def test_a_schema_takes_no_fields_but_its_own(tmp_path: Path) -> None:
    strict = schema("a.io", "Latch", written(tmp_path, OF_TWO_GROUPS, LATCH))
    fields = strict["properties"]["spec"]["properties"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["spec"]["additionalProperties"] is False
    assert fields["items"]["items"]["additionalProperties"] is False
    assert fields["labels"]["additionalProperties"] == {"type": "string"}
    assert "additionalProperties" not in fields["free"]
    assert fields["properties"] == {"type": "string"}


def test_metadata_is_left_to_kubernetes(tmp_path: Path) -> None:
    strict = schema("a.io", "Latch", written(tmp_path, LATCH))
    assert strict["properties"]["metadata"] == {"type": "object"}


@pytest.mark.parametrize(
    ("group", "kind", "schemas", "found"),
    [
        ("a.io", "Bolt", [LATCH], 0),
        ("b.io", "Latch", [LATCH], 0),
        ("a.io", "Latch", [LATCH, LATCH], 2),
    ],
)
def test_a_kind_that_is_not_there_once_is_named(
    tmp_path: Path, group: str, kind: str, schemas: list[dict[str, Any]], found: int
) -> None:
    with pytest.raises(LookupError, match=f"one schema of {group} {kind}, found {found}"):
        schema(group, kind, written(tmp_path, *schemas))
