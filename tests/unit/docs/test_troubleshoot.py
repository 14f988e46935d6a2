# SPDX-License-Identifier: Apache-2.0
"""What an alert or a log names has a row on the page that says what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

from bpf.decode import REASONS
from enforcer.incidents import OwnReason

PAGE = (Path(__file__).resolve().parents[3] / "docs/troubleshoot.md").read_text()
SECTION = PAGE.partition("### What does the reason mean?")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("| `")
]


def test_each_reason_of_an_incident_has_one_row_and_no_other_has() -> None:
    reasons = [one.name.lower() for one in (*REASONS, *OwnReason)]
    assert sorted(row[0].strip("`") for row in ROWS) == sorted(reasons)


def test_each_row_says_what_happened_what_was_seen_and_what_to_do() -> None:
    assert [row[0] for row in ROWS if len(row) != 4 or not all(row)] == []


def test_what_is_said_to_be_on_the_page_is_a_chapter_of_it() -> None:
    chapters = {
        re.sub(r"[^a-z0-9 -]", "", line.strip("# ").lower()).replace(" ", "-")
        for line in PAGE.splitlines()
        if line.startswith("#")
    }
    docs = Path(__file__).resolve().parents[3] / "docs"
    linked = {
        anchor
        for page in docs.glob("*.md")
        for anchor in re.findall(
            r"\]\((?:troubleshoot\.md)?#([^)]+)\)"
            if page.name == "troubleshoot.md"
            else r"\]\(troubleshoot\.md#([^)]+)\)",
            page.read_text(),
        )
    }
    assert linked
    assert linked <= chapters
