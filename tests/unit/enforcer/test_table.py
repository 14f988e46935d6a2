# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.model import GIB, Activity, Layer, LayerState, Usage
from enforcer.table import cards, cu_count, cu_ids, merged, spilled, used
from tests.unit.enforcer.sample import GPUS, ROWS, SNAPSHOT


def test_cards_come_by_address_with_their_containers_by_name() -> None:
    first, second = cards(SNAPSHOT)
    assert [row.pod for row in first.rows] == [
        "infer", "notebook-of-somebody-with-a-long-name", "train",
    ]  # fmt: skip
    assert (first.vram, first.booked, first.used) == (192 * GIB, 112 * GIB, 79 * GIB)
    assert (second.booked, second.cu_count) == (192 * GIB, 304)


def test_a_pods_own_row_is_no_container() -> None:
    pod = replace(ROWS[0], container="")
    assert [len(card.rows) for card in cards(replace(SNAPSHOT, containers=(pod,)))] == [0, 0]


def test_partitions_are_one_card_in_order() -> None:
    parts = tuple(replace(GPUS[0], partition=n, vram_bytes=GIB, cu_count=38) for n in (1, 0))
    (card,) = cards(replace(SNAPSHOT, gpus=parts, containers=(), loads=()))
    assert [gpu.partition for gpu in card.gpus] == [0, 1]
    assert (card.vram, card.cu_count, card.load) == (2 * GIB, 76, None)


def test_one_size_that_is_unknown_makes_the_sum_unknown() -> None:
    parts = (GPUS[0], replace(GPUS[0], partition=1, vram_bytes=None))
    assert cards(replace(SNAPSHOT, gpus=parts, containers=()))[0].vram is None


def test_rows_of_one_name_are_added_up() -> None:
    one = replace(
        ROWS[0], usage=Usage(1, 2, None, 4), limit=5, layers=(LayerState(Layer.GATE),),
        activity=Activity(1, 1, 1.0, 1.0, (("gfx", 1.0),), None),
    )  # fmt: skip
    other = replace(
        one, cgroup="x", usage=Usage(10, None, None, 40), limit=7,
        layers=(LayerState(Layer.GATE, "why"), LayerState(Layer.DMEM)),
        activity=Activity(None, 2, 2.0, None, (("gfx", 2.0), ("dma", 3.0)), 9),
    )  # fmt: skip
    (both,) = merged((one, other))
    assert both.usage == Usage(11, 2, None, 44)
    assert both.limit == 7
    assert both.layers == (LayerState(Layer.GATE, "why"), LayerState(Layer.DMEM))
    assert both.activity == Activity(1, 3, 3.0, 1.0, (("dma", 3.0), ("gfx", 3.0)), 9)


def test_a_whole_gpu_among_rows_of_one_name_has_no_limit() -> None:
    (both,) = merged((ROWS[0], replace(ROWS[0], limit=None, activity=None)))
    assert both.limit is None
    assert both.activity == ROWS[0].activity


@pytest.mark.parametrize(
    ("usage", "value"),
    [
        (Usage(requested=1, dmem_current=2, observed=3, hook=4), 1),
        (Usage(dmem_current=2, observed=3, hook=4), 2),
        (Usage(observed=3, hook=4), 3),
        (Usage(hook=0), 0),
        (Usage(), None),
    ],
)
def test_what_is_used_is_the_best_source_there_is(usage: Usage, value: int | None) -> None:
    assert used(replace(ROWS[0], usage=usage)) == value


def test_what_is_spilled_is_never_negative() -> None:
    assert spilled(replace(ROWS[0], usage=Usage(requested=1, resident=2))) == 0


def test_a_cu_list_is_numbers_and_ranges() -> None:
    assert cu_ids("0-2,8,1") == (0, 1, 2, 8)
    assert cu_count(replace(ROWS[0], cus="0-2,8,1")) == 4
    assert cu_count(replace(ROWS[0], cus=None)) is None


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "0-99999999", "1,,2", "0x1", " 1"])
def test_another_cu_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="CU list"):
        cu_ids(text)
    assert cu_count(replace(ROWS[0], cus=text)) is None


@given(st.sets(st.integers(0, 600), min_size=1))
def test_a_list_of_single_numbers_comes_back(numbers: set[int]) -> None:
    assert cu_ids(",".join(map(str, numbers))) == tuple(sorted(numbers))
