# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.testbed.prepare_cli import Wish, main, wishes


def test_a_step_may_name_one_of_its_kind() -> None:
    assert wishes(["kernel", "dmem"]) == [Wish("kernel", "dmem")]


def test_a_step_without_a_name_is_all_of_its_kind() -> None:
    assert wishes(["driver"]) == [Wish("driver", "dmem"), Wish("driver", "nodmem")]


def test_steps_are_done_in_the_order_of_need_and_once() -> None:
    assert wishes(["driver", "dmem", "kernel", "dmem", "packages", "kernel", "dmem"]) == [
        Wish("packages"),
        Wish("kernel", "dmem"),
        Wish("driver", "dmem"),
    ]


def test_nothing_is_everything() -> None:
    assert wishes([]) == wishes(["all"])
    assert Wish("stock", "newest") in wishes([])


@pytest.mark.parametrize("words", [["dmem"], ["kernel", "6.1"], ["venv", "dmem"], [""]])
def test_a_word_that_is_no_step_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="expected one of packages, venv"):
        wishes(words)
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
