# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.devices import Device, devices_of
from deviceplugin.preferred import BINPACK, SPREAD, prefer
from deviceplugin.terms import Terms

from .given import gpu

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


def node(
    hives: tuple[tuple[int, ...], ...] = (), numa: tuple[int, ...] = (0, 0, 1, 1)
) -> tuple[Device, ...]:
    """Four GPUs: the hives they are in, and their NUMA nodes."""
    peers = {
        one: {GPUS[peer] for hive in hives if one in hive for peer in hive} for one in range(4)
    }
    return devices_of(
        [
            gpu(
                bdf,
                render=128 + one,
                unique_id=one + 1,
                numa_node=numa[one],
                xgmi_peers=tuple(sorted(peers[one] - {bdf})),
            )
            for one, bdf in enumerate(GPUS)
        ],
        Terms(split_count=12),
    )[0]


def gpus_of(picked: list[str]) -> list[int]:
    return sorted(GPUS.index(device_id.partition("#")[0]) for device_id in picked)


EVERY = [f"{bdf}#{slot}" for bdf in GPUS for slot in range(2)]


@given(IDS, st.data())
def test_links_and_policy_change_neither_size_nor_must(
    available: list[str], data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(available)))
    must = data.draw(st.permutations(available))[: data.draw(st.integers(0, size))]
    policy = data.draw(st.sampled_from([BINPACK, SPREAD]))
    picked = prefer(available, must, size, (), node(((0, 2), (1, 3))), policy)
    assert len(picked) == size == len(set(picked))
    assert set(must) <= set(picked) <= set(available)


def test_linked_gpus_go_together() -> None:
    assert gpus_of(prefer(EVERY, [], 2, (), node(((0, 2), (1, 3))))) == [0, 2]
    assert gpus_of(prefer(EVERY[2:], [], 2, (), node(((0, 2), (1, 3))))) == [1, 3]


def test_a_link_counts_more_than_a_numa_node() -> None:
    assert gpus_of(prefer(EVERY, [], 2, (), node(((1, 2),)))) == [1, 2]


def test_without_links_the_numa_node_decides() -> None:
    assert gpus_of(prefer(EVERY[2:], [], 2, (), node())) == [2, 3]


def test_what_must_be_in_draws_its_peers() -> None:
    assert gpus_of(prefer(EVERY, [EVERY[2]], 2, (), node(((0, 2), (1, 3))))) == [1, 3]
    assert gpus_of(prefer(EVERY, [EVERY[6]], 2, (), node())) == [2, 3]


def test_a_bigger_group_is_not_grown_into_the_wrong_hive() -> None:
    """GPU 0 has the best single neighbour, but 1, 2 and 3 have the most links together."""
    assert gpus_of(prefer(EVERY, [], 3, (), node(((1, 2, 3), (0, 1)), (0, 0, 1, 1)))) == [1, 2, 3]


def test_partitions_of_one_gpu_go_together() -> None:
    parts = [
        gpu(
            bdf,
            render=128 + number,
            partition=number % 2,
            compute_partition="dpx",
            unique_id=GPUS.index(bdf) + 1,
        )
        for number, bdf in enumerate([*GPUS[:2], *GPUS[:2]])
    ]
    devices, _ = devices_of(
        [replace(one, partition=index // 2) for index, one in enumerate(parts)], Terms(whole=True)
    )
    available = [slot for one in devices for slot in one.slots]
    picked = prefer(available[1:], [], 2, (), devices)
    assert {slot.partition("-")[0] for slot in picked} == {GPUS[1]}


def test_spread_takes_the_emptiest_gpu() -> None:
    available = [f"{GPUS[0]}#{slot}" for slot in range(5)] + [f"{GPUS[1]}#7"]
    assert prefer(available, [], 1, (), (), SPREAD) == [f"{GPUS[0]}#0"]
    assert prefer(available, [], 1, (), (), BINPACK) == [f"{GPUS[1]}#7"]


def test_among_equal_groups_the_fullest_goes_first() -> None:
    available = [one for one in EVERY if one not in {f"{GPUS[2]}#0", f"{GPUS[3]}#0"}]
    assert gpus_of(prefer(available, [], 2, (), node())) == [2, 3]
    assert gpus_of(prefer(available, [], 2, (), node(), SPREAD)) == [0, 1]


def test_64_linked_partitions_with_10_slots_are_no_search_without_end() -> None:
    gpus = [
        gpu(
            f"0000:{number // 8:02x}:00.0",
            render=128 + number,
            partition=number % 8,
            unique_id=number // 8 + 1,
            xgmi_peers=tuple(f"0000:{bus:02x}:00.0" for bus in range(8) if bus != number // 8),
        )
        for number in range(64)
    ]
    devices, _ = devices_of(gpus, Terms(operating_mode="partition", split_count=10))
    available = [slot for one in devices for slot in one.slots]
    assert len(available) == 640
    for size in (1, 8, 32, 64, 640):
        started = time.process_time()
        assert len(prefer(available, [], size, (), devices)) == size
        assert time.process_time() - started < 1


@given(IDS, st.data())
def test_what_the_scheduler_booked_is_in_wherever_it_is_free(
    available: list[str], data: st.DataObject
) -> None:
    chosen = [one.partition("#")[0] for one in data.draw(st.permutations(available))]
    chosen = chosen[: data.draw(st.integers(0, len(chosen)))]
    size = data.draw(st.integers(len(chosen), len(available)))
    picked = prefer(available, [], size, chosen, node(((0, 1), (2, 3))))
    assert Counter(chosen) <= Counter(one.partition("#")[0] for one in picked)


@given(
    st.sets(st.sampled_from(list(combinations(range(4), 2)))),
    st.lists(st.integers(0, 1), min_size=4, max_size=4),
    st.sets(st.integers(0, 3), min_size=2),
)
def test_no_pair_belongs_together_more_than_the_one_that_is_taken(
    links: set[tuple[int, int]], numa: list[int], free: set[int]
) -> None:
    devices = node(tuple(links), (numa[0], numa[1], numa[2], numa[3]))

    def ties(one: int, other: int) -> int:
        linked = GPUS[other] in devices[one].gpu.xgmi_peers
        return 2 * linked + (numa[one] == numa[other])

    picked = gpus_of(prefer([f"{GPUS[one]}#0" for one in free], [], 2, (), devices))
    assert ties(*picked) == max(ties(*pair) for pair in combinations(sorted(free), 2))
