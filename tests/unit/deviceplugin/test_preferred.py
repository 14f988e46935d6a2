# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.preferred import prefer

GPUS = [f"0000:{bus:02x}:00.0" for bus in range(4)]
IDS = st.lists(
    st.builds(lambda bdf, slot: f"{bdf}#{slot}", st.sampled_from(GPUS), st.integers(0, 11)),
    unique=True,
    max_size=30,
)


@given(IDS, st.data())
def test_the_size_is_exact_and_what_must_be_in_is_in(
    available: list[str], data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(available)))
    must = data.draw(st.permutations(available))[: data.draw(st.integers(0, size))]
    chosen = data.draw(st.lists(st.sampled_from(GPUS), max_size=4))
    picked = prefer(available, must, size, chosen)
    assert len(picked) == size == len(set(picked))
    assert set(must) <= set(picked) <= set(available)


def test_the_schedulers_gpus_are_taken() -> None:
    available = [f"{bdf}#{slot}" for bdf in GPUS for slot in range(10)]
    assert prefer(available, [], 2, [GPUS[3], GPUS[1]]) == [f"{GPUS[3]}#0", f"{GPUS[1]}#0"]


def test_what_must_be_in_counts_for_the_schedulers_gpus() -> None:
    available = [f"{bdf}#{slot}" for bdf in GPUS for slot in range(2)]
    must = [f"{GPUS[2]}#1"]
    assert prefer(available, must, 2, [GPUS[2], GPUS[0]]) == [f"{GPUS[2]}#1", f"{GPUS[0]}#0"]


def test_a_full_gpu_of_the_schedulers_is_made_up_for() -> None:
    assert prefer([f"{GPUS[0]}#4"], [], 1, [GPUS[1]]) == [f"{GPUS[0]}#4"]


def test_without_a_choice_the_fullest_gpu_goes_first() -> None:
    available = [f"{GPUS[0]}#{slot}" for slot in range(5)] + [f"{GPUS[1]}#7"]
    assert prefer(available, [], 1) == [f"{GPUS[1]}#7"]


def test_several_gpus_are_different_ones_while_there_are() -> None:
    available = [f"{GPUS[0]}#0", f"{GPUS[1]}#0", f"{GPUS[1]}#1"]
    assert prefer(available, [], 2) == [f"{GPUS[0]}#0", f"{GPUS[1]}#0"]


def test_slots_are_taken_in_numeric_order() -> None:
    assert prefer([f"{GPUS[0]}#10", f"{GPUS[0]}#9"], [], 1) == [f"{GPUS[0]}#9"]


def test_more_than_there_is_gives_what_there_is() -> None:
    assert prefer([f"{GPUS[0]}#0"], [], 3) == [f"{GPUS[0]}#0"]


def test_64_partitions_with_10_slots_take_milliseconds() -> None:
    available = [f"0000:{bus:02x}:00.0#{slot}" for bus in range(64) for slot in range(10)]
    started = time.perf_counter()
    assert len(prefer(available, [], 64)) == 64
    assert time.perf_counter() - started < 0.5
