# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.testbed.prepare_cli import Wish, main, wishes


def test_a_step_may_name_one_of_its_kind() -> None:
    assert wishes(["kernel", "dmem"]) == [Wish("kernel", "dmem")]


def test_a_step_without_a_name_is_what_every_day_needs_of_its_kind() -> None:
    assert wishes(["driver"]) == [Wish("driver", "dmem"), Wish("driver", "nodmem")]
    assert [wish.name for wish in wishes(["stock"])] == ["6.1", "6.12", "newest"]


def test_the_kernel_of_a_soak_tier_is_built_by_its_name_alone() -> None:
    assert wishes(["kernel", "dmem-7.2"]) == [Wish("kernel", "dmem-7.2")]
    assert "dmem-7.2" not in {wish.name for wish in wishes(["all"])}


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
