# SPDX-License-Identifier: Apache-2.0
"""Text that others chose, made fit for a log, a terminal, a page and a message.

A tenant names its processes, cgroups, files and variables as it likes: with the end of a line, with
what moves a terminal's cursor, with bytes that are no UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PROBLEMS = 200
"""Of one snapshot, and of what is logged of one pass."""
_LONGEST = 500


def printable(text: str) -> str:
    """The text on one line, with a ``?`` for each character that shows as nothing of its own.

    What is left has a form in UTF-8, which a byte that was none has not.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def problem_lines(found: Iterable[str]) -> tuple[str, ...]:
    """Problems as a snapshot has them: a short line each, none twice, and not without end.

    What is left out is counted in the last one. Paths of a tenant's own are in some of them.
    """
    each = list(dict.fromkeys(found))
    lines = [_short(printable(one)) for one in each[:MOST_PROBLEMS]]
    if len(each) > MOST_PROBLEMS:
        lines.append(f"and {len(each) - MOST_PROBLEMS} problems more")
    return tuple(lines)


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
