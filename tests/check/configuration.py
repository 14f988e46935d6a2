# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md says what values.yaml and its schema say; `--write` makes it so."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

CHART = Path("charts/ringfence")
PAGE = Path("docs/configuration.md")
HEAD = """\
# Which values does the chart take?

Written by `python -m tests.check.configuration --write` from `charts/ringfence/values.yaml` and its
schema, and compared with them by `make check`. An unknown key is refused, and so are values that
cannot go together, with the reason.
"""
_KEY = re.compile(r"( *)([A-Za-z]\w*):")


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its dotted name, the lines of its comment, its default."""

    name: str
    comment: tuple[str, ...]
    default: Any


def values(text: str) -> Iterator[Value]:
    """Every key of values.yaml that has a comment of its own, or holds no other keys."""
    defaults = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip()[1:].removeprefix(" "))
            continue
        match = _KEY.match(line)
        if match:
            indent = len(match[1])
            path = [entry for entry in path if entry[0] < indent] + [(indent, match[2])]
            default = _at(defaults, path)
            holds = isinstance(default, dict) and bool(default)
            if default is not _MISSING and (comment or not holds):
                yield Value(".".join(name for _, name in path), tuple(comment), default)
        comment = []


_MISSING = object()


def _at(defaults: Any, path: list[tuple[int, str]]) -> Any:
    """What stands there; _MISSING for a line inside a default that is a list."""
    for _, name in path:
        if not isinstance(defaults, dict) or name not in defaults:
            return _MISSING
        defaults = defaults[name]
    return defaults


def kind(schema: dict[str, Any]) -> str:
    """In words, what a schema takes."""
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    given = schema.get("type", "object")
    name = " or ".join(given) if isinstance(given, list) else str(given)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{name}, {low} to {high}"
    if low is not None:
        return f"{name}, at least {low}"
    if name == "array":
        return f"list of {kind(schema['items'])}"
    return name


def schema_of(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """The part of the schema for a dotted name. Raises KeyError if it has none."""
    for part in name.split("."):
        properties = schema.get("properties", {})
        if part not in properties and isinstance(schema.get("additionalProperties"), dict):
            schema = schema["additionalProperties"]
        else:
            schema = properties[part]
    return schema


def page(text: str, schema: dict[str, Any]) -> str:
    """The whole page."""
    parts = [HEAD]
    for value in values(text):
        described = schema_of(schema, value.name)
        if isinstance(value.default, dict) and value.default:
            parts.append(f"## `{value.name}`\n")
        else:
            parts.append(f"### `{value.name}`\n")
            parts.append(f"{kind(described)}; default `{json.dumps(value.default)}`\n")
        parts += _paragraphs(value.comment)
    return "\n".join(parts)


def _paragraphs(comment: tuple[str, ...]) -> Iterator[str]:
    """Prose joined into a paragraph; what is set in stays as it stands."""
    prose: list[str] = []
    fixed: list[str] = []
    for line in [*comment, ""]:
        if line.startswith("  "):
            if prose:
                yield "\n".join(prose) + "\n"
                prose = []
            fixed.append(line[2:])
            continue
        if fixed:
            yield "\n".join(["```text", *fixed, "```"]) + "\n"
            fixed = []
        if line:
            prose.append(line)
        elif prose:
            yield "\n".join(prose) + "\n"
            prose = []


def main(argv: list[str]) -> int:
    """0 if the page is as it should be, or was written."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    wanted = page((CHART / "values.yaml").read_text(), schema)
    if argv == ["--write"]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.exists() and PAGE.read_text() == wanted:
        return 0
    print(
        f"{PAGE}: does not say what {CHART}/values.yaml says; "
        "run python -m tests.check.configuration --write",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
