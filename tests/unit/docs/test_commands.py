# SPDX-License-Identifier: Apache-2.0
"""Whatever the pages tell to type or set exists under that name, and takes that value."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from enforcer.cli import main, trace
from enforcer.metrics.families import FAMILIES
from image.build import main as image_main
from tests.check.configuration import schema_of
from tests.testbed.prepare_cli import main as prepare_main
from tests.testbed.run_cli import main as run_main
from tests.tiers import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "tests/testbed/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SCHEMA = json.loads((ROOT / "charts/ringfence/values.schema.json").read_text())
COMMANDS = [
    *("inventory", "top", "explain", "doctor"),
    *("enforcer", "device-plugin", "health", "trace", "demo"),
]
TESTBED = {
    "tests/testbed/run": run_main,
    "tests/testbed/prepare": prepare_main,
    "make image": image_main,
}
OTHERS_OPTIONS = {
    "--set", "--create-namespace", "--kube-version", "--reuse-values", "--reset-then-reuse-values",
    "--root-dir", "--kubelet-root-dir",
}  # fmt: skip
"""Of Helm and kubectl; of the kubelet and of k0s."""
IN_THE_CACHE = {"image/python"}
OTHERS_MODULES = {"pytest", "venv", "pip"}

_CODE = re.compile(r"`([^`\n]+)`|^ {4,}(\S.*)$", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)(?:[= ]([\w.:/-]+))?")


def code(page: Path) -> Iterator[str]:
    """What is set in type: spans, and lines of blocks without what a shell takes for a comment."""
    for match in _CODE.finditer(page.read_text()):
        yield match[1] or re.sub(r"\s#.*", "", match[2])


@functools.cache
def help_of(run: Callable[[Sequence[str]], int], *words: str) -> str:
    """What a command prints about its options."""
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(told):
        # No line is broken, so that an option is followed by what it takes.
        patch.setenv("COLUMNS", "1000")
        with contextlib.suppress(SystemExit):
            run([*words, "--help"])
    return told.getvalue()


def takes(text: str, option: str) -> list[str] | None:
    """The values that a help text names for an option; empty: any; None: there is none of it."""
    found = re.search(rf"^ +(?:-\w, )?{option}(?![\w-])(?: {{([^}}]*)}})?", text, re.MULTILINE)
    if found is None:
        return None
    return found[1].split(",") if found[1] else []


def told(part: str) -> str | None:
    """The help of the command that a piece of code calls; None if it calls none of ours."""
    if match := re.match(r"(?:sudo )?ringfence trace ([a-z]+)", part):
        assert match[1] in trace.programs(), part
        return help_of(main, "trace", match[1])
    if match := re.match(r"(?:sudo )?ringfence ([a-z-]+)", part):
        assert match[1] in COMMANDS, part
        return help_of(main, match[1])
    for name, run in TESTBED.items():
        if part.startswith(name):
            return help_of(run)
    return None


def everything() -> list[str]:
    """The help of every command of ours."""
    words: list[tuple[str, ...]] = [(), *((name,) for name in COMMANDS)]
    words += [("trace", name) for name in trace.programs()]
    ours = [help_of(main, *one) for one in words]
    return ours + [help_of(run) for run in TESTBED.values()]


def is_taken(option: str, value: str | None, helps: Sequence[str]) -> bool:
    known = [found for text in helps if (found := takes(text, option)) is not None]
    return any(not found or value is None or value in found for found in known)


def allows(schema: dict[str, Any], value: object) -> bool:
    """Whether the schema of one setting takes the value."""
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {
        "array": list,
        "boolean": bool,
        "integer": int,
        "number": float,
        "object": dict,
        "string": str,
    }
    given = schema.get("type", "object")
    names = given if isinstance(given, list) else [given]
    return any(isinstance(value, kinds[name]) for name in names)


def is_ours(name: str) -> bool:
    """Whether it is a module, or a module's file, which may be called like a value."""
    path = name.replace(".", "/")
    return name.endswith(".py") or any((ROOT / f"{path}{end}").exists() for end in ("", ".py"))


def pages(test: Callable[[Path], None]) -> Callable[[Path], None]:
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)(test)


@pages
def test_every_option_is_one_that_its_command_has(page: Path) -> None:
    wrong = []
    for part in code(page):
        text = told(part)
        if text is None and not part.startswith("--"):
            continue
        # Behind -- come the words of another program.
        for option, value in _OPTION.findall(part.partition(" -- ")[0]):
            helps = everything() if text is None else [text]
            if option not in OTHERS_OPTIONS and not is_taken(option, value or None, helps):
                wrong.append(part)
    assert wrong == []


@pages
def test_every_make_target_module_and_tier_is_there(page: Path) -> None:
    rules = re.findall(r"^([a-z]+)(?: .*)?:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for part in code(page):
        for target in re.findall(r"\bmake ([a-z]+)", part):
            assert target in rules, part
        for tiers in re.findall(r'TIERS="?((?:[a-z0-9.-]+ ?)+)', part):
            assert set(tiers.split()) <= {tier.name for tier in TIERS}, part
        for module in re.findall(r"python3? -m ([\w.]+)", part):
            assert module in OTHERS_MODULES or find_spec(module), part


@pages
def test_every_path_of_the_tree_is_there(page: Path) -> None:
    tops = "audit_hook|bpf|charts|deviceplugin|docs|enforcer|image|tests"
    for part in code(page):
        for path in re.findall(rf"(?<![\w./-])((?:{tops})/[\w./*-]*)", part):
            name = path.rstrip("./")
            assert name in IN_THE_CACHE or list(ROOT.glob(name)), name


@pages
def test_every_value_of_the_chart_is_one(page: Path) -> None:
    """Dotted names, with or without a value, that begin with one of the chart's."""
    setting = re.compile(r"(?<![\w./-])([a-z]\w*(?:\.[a-z]\w*)+)(?:[:=] ?(\S+))?")
    for part in code(page):
        for name, value in setting.findall(part):
            if name.partition(".")[0] not in SCHEMA["properties"] or is_ours(name):
                continue
            # A label or an annotation: openshift.io/...
            if f"{name}/" in part:
                continue
            found = schema_of(SCHEMA, name)
            if value:
                assert allows(found, yaml.safe_load(value)), part


@pages
def test_every_metric_is_one(page: Path) -> None:
    names = {family.name for family in FAMILIES}
    for name in re.findall(r"\bringfence_[a-z_]*[a-z]\b(?!\*|_)", page.read_text()):
        # The text format puts a suffix behind a name, and a table its unit at the top.
        base = re.sub("_(total|bucket|sum|count)$", "", name)
        assert names & {name, base, f"{base}_total", f"{base}_bytes"}, name
