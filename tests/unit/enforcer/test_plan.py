# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf import decode
from enforcer.model import Layer, LayerState, Limit, Protection, Why, pci_key
from enforcer.plan import (
    DEEPEST,
    Actual,
    DeleteGate,
    DeletePending,
    DeleteUsage,
    EnableDmem,
    Outcome,
    SetDmem,
    SetGate,
    SetPending,
    ancestors,
    dmem_value,
    headroom,
    plan,
    protections,
)

GPU = "0000:03:00.0"
KEY = pci_key(GPU)
REGION = "drm/0000:03:00.0/vram"
POD = Limit("kubepods/poda", 100, GPU, 4 << 30)
CONTAINER = Limit("kubepods/poda/c", 101, GPU, 4 << 30)
LIVE = {100: 100, 101: 100}
HELD = Actual(
    gate={POD.key: 4 << 30, CONTAINER.key: 4 << 30},
    regions={GPU: REGION},
    maximum={limit.path: {REGION: dmem_value(limit)} for limit in (POD, CONTAINER)},
    dmem_parents=frozenset({"", "kubepods", "kubepods/poda"}),
    live=LIVE,
)


def _states(limit: Limit, actual: Actual, *outcomes: Outcome) -> tuple[str, ...]:
    return tuple(str(one) for one in protections([limit], actual, outcomes)[limit.key].layers)


def test_nothing_is_done_when_all_is_in_place() -> None:
    assert plan([POD, CONTAINER], HELD) == []
    assert _states(POD, HELD) == ("on", "on")


def test_a_new_pod_is_held_by_both_layers() -> None:
    fresh = Actual(gate={}, regions={GPU: REGION}, live=LIVE)
    assert plan([POD], fresh) == [
        SetGate(POD),
        EnableDmem(""),
        EnableDmem("kubepods"),
        SetDmem(POD.path, GPU, REGION, dmem_value(POD)),
    ]


def test_dmem_is_enabled_from_the_root_down_and_once() -> None:
    actions = plan([POD, CONTAINER], replace(HELD, dmem_parents=frozenset({""}), maximum={}))
    enabled = [action for action in actions if isinstance(action, EnableDmem)]
    assert enabled == [EnableDmem("kubepods"), EnableDmem("kubepods/poda")]


@pytest.mark.parametrize("found", [None, 1 << 30, 5 << 30])
def test_a_limit_that_reads_otherwise_is_written_again(found: int | None) -> None:
    actual = replace(HELD, gate={**(HELD.gate or {}), POD.key: found})
    assert plan([POD, CONTAINER], actual) == [SetGate(POD)]
    assert _states(POD, actual)[0] == f"off: {Why.NOT_IN_PLACE}"


def test_a_dmem_limit_that_reads_otherwise_is_written_again() -> None:
    actual = replace(HELD, maximum={**HELD.maximum, POD.path: {REGION: None}})
    assert plan([POD, CONTAINER], actual) == [SetDmem(POD.path, GPU, REGION, dmem_value(POD))]


def test_a_whole_gpu_is_entered_as_accounted_and_dmem_left_alone() -> None:
    whole = replace(POD, vram_bytes=None)
    fresh = Actual(gate={}, regions={GPU: REGION}, live=LIVE)
    assert plan([whole], fresh) == [SetGate(whole)]


def test_a_limit_that_became_whole_is_lifted() -> None:
    whole = replace(POD, vram_bytes=None)
    assert plan([whole], HELD) == [
        SetGate(whole),
        DeleteGate(101, KEY),
        SetDmem(POD.path, GPU, REGION, None),
    ]


def test_the_entry_of_a_dead_cgroup_is_removed() -> None:
    actual = replace(HELD, gate={**(HELD.gate or {}), (7, KEY): 1})
    assert plan([POD, CONTAINER], actual) == [DeleteGate(7, KEY)]


def test_the_entry_of_a_live_cgroup_outlives_its_slice() -> None:
    assert plan([], HELD) == []


def test_a_container_that_turned_out_to_have_no_slice_loses_its_entry() -> None:
    assert plan([POD], HELD) == [DeleteGate(101, KEY)]


def test_nothing_is_removed_after_an_incomplete_walk() -> None:
    actual = replace(HELD, gate={**(HELD.gate or {}), (7, KEY): 1}, spent=frozenset({(8, KEY)}))
    assert plan([POD, CONTAINER], replace(actual, live=None)) == []


def test_an_empty_usage_row_goes_with_its_cgroup_and_not_before() -> None:
    actual = replace(HELD, spent=frozenset({(101, KEY), (7, KEY)}))
    assert plan([POD, CONTAINER], actual) == [DeleteUsage(7, KEY)]


def test_what_new_containers_get_is_entered_once_and_goes_with_the_pods_cgroup() -> None:
    assert plan([POD, CONTAINER], HELD, [POD]) == [SetPending(POD)]
    entered = replace(HELD, pending={POD.key: POD.vram_bytes, (7, KEY): 1})
    assert plan([POD, CONTAINER], entered, [POD]) == [DeletePending(7, KEY)]
    assert plan([POD, CONTAINER], replace(entered, live=None), [POD]) == []
    assert plan([POD, CONTAINER], replace(entered, live=None), [replace(POD, vram_bytes=None)]) == [
        SetPending(replace(POD, vram_bytes=None))
    ]
    # The slice has left the checkpoint; the pod lives.
    assert plan([], replace(HELD, pending={POD.key: POD.vram_bytes})) == []


def test_without_a_gate_only_dmem_is_planned() -> None:
    actual = replace(HELD, gate=None, gate_off=Why.NOT_LOADED, maximum={})
    assert all(isinstance(action, SetDmem) for action in plan([POD], actual))
    assert _states(POD, replace(actual, maximum=HELD.maximum)) == (f"off: {Why.NOT_LOADED}", "on")


def test_entries_of_an_unproven_gate_hold_nothing() -> None:
    actual = replace(HELD, gate_off=Why.NOT_PROVEN)
    assert _states(POD, actual) == (f"off: {Why.NOT_PROVEN}", "on")


def test_a_cgroup_deeper_than_the_gate_looks_is_not_held_by_it() -> None:
    assert DEEPEST == decode.MAX_CGROUP_DEPTH
    for levels, state in ((DEEPEST, "on"), (DEEPEST + 1, f"off: {Why.TOO_DEEP}")):
        deep = replace(POD, path="/".join("n" * levels))
        assert _states(deep, HELD)[0] == state


def test_without_a_region_dmem_says_so() -> None:
    actual = replace(HELD, regions={})
    assert plan([POD, CONTAINER], actual) == []
    assert _states(POD, actual) == ("on", f"off: {Why.NO_REGION}")
    assert _states(POD, replace(actual, dmem_off=Why.NO_CGROUP2))[1] == f"off: {Why.NO_CGROUP2}"


def test_no_layer_holds_what_kfd_takes_from_the_machines_memory() -> None:
    actual = replace(HELD, system_memory=frozenset({GPU}))
    off = f"off: {Why.SYSTEM_MEMORY}"
    assert _states(POD, actual) == (off, off)
    assert not protections([POD], actual)[POD.key].held
    # There is nothing to hold of a whole GPU.
    whole = replace(POD, vram_bytes=None)
    assert _states(whole, replace(actual, gate={POD.key: None}))[0] == "on"
    assert _states(POD, replace(HELD, system_memory=frozenset({"0000:43:00.0"}))) == ("on", "on")
    assert _states(POD, replace(actual, gate_off=Why.SWITCHED_OFF))[0] == f"off: {Why.SWITCHED_OFF}"


def test_a_failed_write_lends_its_reason() -> None:
    action = SetDmem(POD.path, GPU, REGION, dmem_value(POD))
    actual = replace(HELD, maximum={POD.path: {REGION: None}})
    outcome = Outcome(action, Why.NOT_TAKEN)
    assert _states(POD, actual, outcome)[1] == f"off: {Why.NOT_TAKEN}"
    full = Outcome(SetGate(POD), Why.MAP_FULL)
    assert _states(POD, replace(HELD, gate={}), full)[0] == f"off: {Why.MAP_FULL}"


def test_a_failed_write_is_no_reason_when_the_value_reads_right() -> None:
    outcome = Outcome(SetDmem(POD.path, GPU, REGION, dmem_value(POD)), Why.NOT_TAKEN)
    assert _states(POD, HELD, outcome) == ("on", "on")


def test_a_parent_that_does_not_hand_out_dmem_is_the_reason_below_it() -> None:
    actual = replace(HELD, maximum={})
    blocked = Outcome(EnableDmem("kubepods"), Why.BUSY)
    assert _states(POD, actual, blocked)[1] == f"off: {Why.BUSY}"
    elsewhere = Outcome(EnableDmem("system.slice"), Why.BUSY)
    assert _states(POD, actual, elsewhere)[1] == f"off: {Why.NO_CONTROLLER}"


def test_only_a_layer_the_tenant_cannot_reach_counts_as_held() -> None:
    hook = Protection("x", GPU, (LayerState(Layer.HOOK),))
    assert not hook.held
    assert replace(hook, layers=(LayerState(Layer.DMEM),)).held


def test_ancestors_are_root_first() -> None:
    assert ancestors("a/b/c") == ["", "a", "a/b"]
    assert ancestors("a") == [""]


def test_the_headroom_of_4_gib_is_as_documented() -> None:
    assert headroom(4 << 30) == 2 * 4096 * (2048 + 4) + (16 << 20)
    assert headroom(1) == 2 * 4096 * 2 + (16 << 20)


@given(st.integers(1, 1 << 48), st.integers(1, 1 << 48), st.integers(1, 10))
def test_headroom_grows_with_the_slice_and_covers_its_own_tables(
    first: int, second: int, slices: int
) -> None:
    small, large = sorted((first, second))
    assert headroom(small, slices) <= headroom(large, slices)
    # A 4 KiB table per 2 MiB, mapped once, fits whatever the size.
    assert headroom(large) >= large // (2 << 20) * 4096


@given(
    st.lists(st.integers(1, 6), max_size=4, unique=True),
    st.dictionaries(st.tuples(st.integers(1, 9), st.just(KEY)), st.none() | st.integers(1, 9)),
    st.none() | st.dictionaries(st.integers(1, 9), st.integers(1, 9)),
)
def test_once_planned_and_done_nothing_is_left_to_do(
    ids: list[int],
    gate: dict[tuple[int, int], int | None],
    live: dict[int, int] | None,
) -> None:
    wanted = [Limit(f"p{one}", one, GPU, one) for one in ids]
    actual = Actual(gate=gate, live=live)
    after = dict(gate)
    for action in plan(wanted, actual):
        if isinstance(action, SetGate):
            after[action.limit.key] = action.limit.vram_bytes
        elif isinstance(action, DeleteGate):
            del after[action.cgroup_id, action.gpu]
    done = replace(actual, gate=after)
    assert plan(wanted, done) == []
    assert all(one.layers[0].on for one in protections(wanted, done).values())


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (SetGate(POD), "the gate's limit of /kubepods/poda on 0000:03:00.0"),
        (DeleteGate(7, KEY), "the gate's limit of dead cgroup 7 on 0000:03:00.0"),
        (SetPending(POD), "the gate's limit for new containers of /kubepods/poda on 0000:03:00.0"),
        (
            DeletePending(7, KEY),
            "the gate's limit for new containers of dead cgroup 7 on 0000:03:00.0",
        ),
        (DeleteUsage(7, KEY), "the ledger's row of dead cgroup 7 on 0000:03:00.0"),
        (EnableDmem(""), "+dmem in cgroup.subtree_control of /"),
        (SetDmem("a/b", GPU, REGION, None), "dmem.max of /a/b on 0000:03:00.0"),
    ],
)
def test_an_action_names_its_object_in_a_problem(action: object, text: str) -> None:
    assert str(action) == text
