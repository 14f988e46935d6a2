# SPDX-License-Identifier: Apache-2.0
"""The pages can be found from the README, their links lead somewhere, what they quote is so."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from enforcer.cli import trace

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {README.parent / target for target in LINK.findall(README.read_text())}
    assert PAGES
    assert [page.name for page in PAGES if page not in linked] == []


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = LINK.findall(page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("name", trace.programs())
def test_the_page_of_each_tool_says_what_its_help_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text: str = import_module(f"bpf.tools.{name}").parser().format_help()
    page = (ROOT / "docs/trace.md").read_text()
    assert f"## {name}: " in page
    section = page.partition(f"## {name}: ")[2].partition("\n## ")[0]
    options, example, unseen = re.split("\nexample:\n|\n\n(?=It does not see)", text)
    command, shown = example.split("\n", 1)
    assert options[options.index("options:") :] in section
    assert f"\n    {command.removeprefix('# ')}\n" in section
    assert f"```\n{shown}\n```" in section
    assert " ".join(unseen.split()) in " ".join(section.split())
