# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cu import CuLayout, CusExhaustedError, to_bitmap, to_ids

LAYOUTS = st.builds(CuLayout, st.integers(1, 128), st.sampled_from([1, 2]))


@given(LAYOUTS, st.lists(st.integers(1, 40), max_size=30))
def test_slices_are_disjoint_whole_groups_and_refused_only_when_full(
    layout: CuLayout, requests: list[int]
) -> None:
    busy = 0
    for wanted in requests:
        try:
            given_cus = layout.allocate(wanted, busy)
        except CusExhaustedError:
            free = sum(not group & busy for group in layout.groups()) * layout.group
            rounded = -(-wanted // layout.group) * layout.group
            assert free < rounded or wanted >= layout.count
            continue
        assert not given_cus & busy
        assert given_cus.bit_count() >= min(wanted, layout.count)
        assert given_cus.bit_count() - wanted < layout.group
        if given_cus != layout.all:
            for group in layout.groups():
                assert given_cus & group in {0, group}
        busy |= given_cus


@given(LAYOUTS, st.integers(1, 128), st.data())
def test_what_is_given_back_can_be_given_again(
    layout: CuLayout, wanted: int, data: st.DataObject
) -> None:
    busy = data.draw(st.integers(0, layout.all))
    try:
        first = layout.allocate(wanted, busy)
    except CusExhaustedError:
        return
    assert layout.allocate(wanted, (busy | first) & ~first) == first


def test_the_lowest_free_cus_go_first() -> None:
    layout = CuLayout(304)
    assert to_ids(layout.allocate(4, to_bitmap([0, 2]))) == [1, 3, 4, 5]


def test_rdna_gets_whole_work_group_processors() -> None:
    layout = CuLayout(64, 2)
    assert to_ids(layout.allocate(3, to_bitmap([1]))) == [2, 3, 4, 5]


def test_a_trailing_odd_cu_is_only_given_with_the_whole_gpu() -> None:
    layout = CuLayout(5, 2)
    with pytest.raises(CusExhaustedError, match="needs 2 CUs, but only 0 are free"):
        layout.allocate(1, to_bitmap([0, 1, 2, 3]))
    assert layout.allocate(5, 0) == 0b11111


def test_every_cu_needs_every_cu_free() -> None:
    with pytest.raises(CusExhaustedError, match="needs 8 CUs, but only 7 are free"):
        CuLayout(8).allocate(8, 1)


def test_preferred_cus_go_before_lower_ones() -> None:
    assert to_ids(CuLayout(16).allocate(3, 0, to_bitmap([8, 9]))) == [0, 8, 9]


@pytest.mark.parametrize("wanted", [0, -1])
def test_no_count_is_refused(wanted: int) -> None:
    with pytest.raises(ValueError, match="positive count"):
        CuLayout(8).allocate(wanted, 0)
