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


def of_xcc(layout: CuLayout, cus: int) -> list[int]:
    counts = [0] * layout.xccs
    for cu in to_ids(cus):
        counts[layout.xcc(cu)] += 1
    return counts


@given(st.integers(1, 320), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4, 6, 8]), st.data())
def test_slices_are_disjoint_whole_exact_and_refused_only_when_full(
    count: int, group: int, xccs: int, data: st.DataObject
) -> None:
    layout = CuLayout(count, group, xccs)
    held: list[int] = []
    for _ in range(8):
        busy = sum(held)
        if held and data.draw(st.booleans()):
            held.remove(data.draw(st.sampled_from(held)))
            continue
        wanted = data.draw(st.integers(1, count))
        free = [one for one in layout.groups() if not one & busy]
        needed = -(-wanted // group)
        fits = not busy if wanted >= count else len(free) >= needed
        try:
            got = layout.allocate(wanted, busy)
        except CusExhaustedError:
            assert not fits
            continue
        assert fits
        assert got & busy == 0
        assert got & ~layout.all == 0
        if wanted < count:
            assert got.bit_count() == needed * group
            assert all(got & one in {0, one} for one in layout.groups())
        held.append(got)


@given(st.integers(16, 320), st.sampled_from([2, 4, 8]), st.integers(0), st.data())
def test_no_xcc_gets_two_more_than_another_that_had_one_free(
    count: int, xccs: int, busy: int, data: st.DataObject
) -> None:
    layout = CuLayout(count, 1, xccs)
    busy &= layout.all
    free = layout.all & ~busy
    if free.bit_count() < 2:
        return
    got = layout.allocate(data.draw(st.integers(1, min(free.bit_count(), count - 1))), busy)
    counts, left = of_xcc(layout, got), of_xcc(layout, free & ~got)
    for n in range(xccs):
        if left[n]:
            assert max(counts) - counts[n] <= 1


def test_an_empty_gpu_gives_runs_as_before() -> None:
    layout = CuLayout(304, 1, 8)
    assert to_ids(layout.allocate(76, 0)) == list(range(76))
    assert to_ids(layout.allocate(76, layout.allocate(76, 0))) == list(range(76, 152))


def test_a_fragmented_gpu_still_serves_every_xcc() -> None:
    layout = CuLayout(64, 1, 8)
    busy = to_bitmap(cu for cu in range(48) if cu % 8 > 1)
    assert of_xcc(layout, layout.allocate(16, busy)) == [2] * 8


def test_what_the_pod_holds_counts_for_the_spread() -> None:
    layout = CuLayout(64, 1, 8)
    held = to_bitmap([0, 8, 16])
    got = layout.allocate(10, 0, prefer=held)
    assert got & held == held
    assert of_xcc(layout, got) == [3, 1, 1, 1, 1, 1, 1, 1]
