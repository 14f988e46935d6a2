# SPDX-License-Identifier: Apache-2.0
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.printable import printable, problem_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python3", "python3"),
        ("größer/名", "größer/名"),
        ("a\nb\r\tc", "a?b??c"),
        ("\x1b[2J", "?[2J"),
        ("\x9b2J", "?2J"),
        (os.fsdecode(b"\xff"), "?"),
        ("\u202etxt", "?txt"),
        ("a\u2028b", "a?b"),
    ],
)
def test_only_what_shows_as_itself_is_kept(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_becomes_one_line_of_utf_8(text: str) -> None:
    shown = printable(text)
    assert shown.encode().decode() == shown
    assert len(f"{shown}x".splitlines()) == 1
    assert len(shown) == len(text)


def test_problems_are_short_lines_and_not_without_end() -> None:
    assert problem_lines([]) == ()
    assert problem_lines(["a\nb", "c"]) == ("a?b", "c")
    (line,) = problem_lines(["x" * 10_000])
    assert len(line) == 500
    assert line.endswith("x...")
    many = problem_lines([str(number) for number in range(1000)])
    assert len(many) == 201
    assert many[-2:] == ("199", "and 800 problems more")
    assert len(problem_lines([str(number) for number in range(200)])) == 200
    assert problem_lines(["x", "y", "x"]) == ("x", "y")
