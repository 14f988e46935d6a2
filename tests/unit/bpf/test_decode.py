# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf import decode

if TYPE_CHECKING:
    from struct import Struct

MAPS_H = Path(decode.__file__).parent / "include" / "maps.h"

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
s64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(u64, u64)
def test_a_key_comes_back(cgroup: int, gpu: int) -> None:
    assert decode.unpack_key(decode.pack_key(cgroup, gpu)) == (cgroup, gpu)


@given(st.none() | st.integers(0, decode.NO_LIMIT - 1))
def test_a_limit_comes_back(size: int | None) -> None:
    assert decode.unpack_limit(decode.pack_limit(size)) == size


@pytest.mark.parametrize("size", [-1, decode.NO_LIMIT, 1 << 64])
def test_a_limit_that_is_no_size_is_refused_by_name(size: int) -> None:
    with pytest.raises(ValueError, match=f"limit of {size} bytes: expected 0 to"):
        decode.pack_limit(size)


@given(st.tuples(s64, s64, s64, s64, s64, u64, u64, u64))
def test_a_usage_comes_back(fields: tuple[int, ...]) -> None:
    usage = decode.unpack_usage(decode.USAGE.pack(*fields))
    assert usage == decode.LedgerUsage(*fields)
    assert usage.empty == (not any(fields[:5]))


@given(u64, st.lists(u64, max_size=4), u64, st.booleans())
def test_a_holding_names_only_the_cgroups_it_is_charged_to(
    gpu: int, cgroups: list[int], size: int, kernel: bool
) -> None:
    slots = [*cgroups, 7, 7, 7, 7][:4]
    data = decode.HOLDING.pack(gpu, *slots, len(cgroups), 0, size, kernel, 0)
    assert decode.unpack_holding(data) == decode.Holding(gpu, tuple(cgroups), size, kernel)


@given(
    st.binary(max_size=16),
    st.tuples(u64, u64, u64, u64, u64, u32),
    st.sampled_from(list(decode.REASONS)),
    u32,
)
def test_an_event_is_read_whatever_the_tenant_calls_itself(
    comm: bytes, fields: tuple[int, ...], reason: decode.Counter, nr: int
) -> None:
    cgroup, gpu, asked, used, limit, pid = fields
    data = decode.EVENT.pack(2_500_000_000, *fields, reason, nr, 0, comm)
    event = decode.unpack_event(data)
    assert (event.time, event.pid, event.cgroup, event.gpu) == (2.5, pid, cgroup, gpu)
    assert (event.asked, event.used, event.reason, event.nr) == (asked, used, reason, nr)
    assert (event.limit is None) == (
        reason not in (decode.Counter.REFUSED_LIMIT, decode.Counter.OVERRAN)
        or limit == decode.NO_LIMIT
    )
    assert "\0" not in event.comm
    assert decode.REASONS[reason] in str(event)


def test_a_refusal_reads_as_one_sentence_with_its_numbers() -> None:
    event = decode.Event(
        1.0, 42, "python3", 9, 0x300, 4096, 8192, 8192, decode.Counter.REFUSED_LIMIT, 0x16
    )
    assert str(event) == "python3[42] refused 4096 bytes: over its share (8192 of 8192 used)"


@given(st.binary(max_size=decode.EVENT.size - 1))
def test_a_short_event_is_an_error_with_both_sizes(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"event of {len(data)} bytes: expected 80"):
        decode.unpack_event(data)


def test_an_event_of_an_unknown_reason_is_an_error() -> None:
    for reason in (200, decode.Counter.SELF_TESTS):
        with pytest.raises(ValueError, match=f"event of reason {int(reason)}: expected"):
            decode.unpack_event(decode.EVENT.pack(0, 0, 0, 0, 0, 0, 0, reason, 0, 0, b""))


def test_what_cannot_be_understood_takes_no_other_event_with_it() -> None:
    kill, later = (
        decode.EVENT.pack(0, 0, 0, 0, 0, 0, 0, reason, 0, 0, b"")
        for reason in (decode.Counter.SWITCHED_KILLED, 200)
    )
    events, problems = decode.unpack_events([kill, later, b"short", kill])
    assert [event.reason for event in events] == [decode.Counter.SWITCHED_KILLED] * 2
    assert len(problems) == 2


@given(u32, u32)
def test_acting_generations_come_back_oldest_first(oldest: int, newest: int) -> None:
    assert decode.unpack_acting(decode.ACTING.pack(oldest, newest)) == (oldest, newest)


def test_counters_have_the_order_of_the_header() -> None:
    body = re.search(r"enum counter \{(.*?)COUNTERS,", MAPS_H.read_text(), re.DOTALL)
    assert body is not None
    assert re.findall(r"\w+", body[1]) == [counter.name for counter in decode.Counter]


def test_every_reason_of_an_event_has_a_sentence() -> None:
    assert set(decode.REASONS) == {
        counter
        for counter in decode.Counter
        if counter.name.startswith(("REFUSED", "SWITCHED", "UNFOLLOWED", "OVERRAN"))
    }


def test_a_refusal_that_is_not_about_memory_names_no_size() -> None:
    event = decode.Event(1.0, 42, "x", 9, 0x300, 0, 0, None, decode.Counter.REFUSED_CU_MASK, 26)
    assert str(event) == "x[42] refused: a CU mask beyond its slice"


def test_what_stays_charged_unseen_is_no_refusal_and_no_kill() -> None:
    event = decode.Event(1.0, 42, "x", 9, 0x300, 8192, 0, None, decode.Counter.UNFOLLOWED, 0)
    assert not event.refused
    assert (
        str(event) == "x[42] took 8192 bytes: the kernel passed over the ledger, it stays charged"
    )
    holding = decode.HOLDING.pack(0x300, 9, 0, 0, 0, 1, 0, 8192, 0, decode.HOLDING_UNFOLLOWED)
    assert decode.unpack_holding(holding) == decode.Holding(0x300, (9,), 8192, False, False)


def test_what_nothing_let_pass_is_told_with_the_limit_it_is_above() -> None:
    event = decode.Event(1.0, 42, "x", 9, 0x300, 8192, 9000, 4096, decode.Counter.OVERRAN, 0)
    assert not event.refused
    assert str(event) == (
        "x[42] took 8192 bytes: made without being let pass, above its share (9000 of 4096 used)"
    )


def test_a_kill_reads_as_one_sentence_with_what_was_let_pass() -> None:
    event = decode.Event(
        1.0, 42, "x", 9, 0x300, 8192, 4096, None, decode.Counter.SWITCHED_KILLED, 1
    )
    assert not event.refused
    assert str(event) == (
        "x[42] took 8192 bytes: arguments switched under the driver's eyes, killed "
        "(4096 were let pass)"
    )


@given(st.builds(decode.Policy, st.booleans(), st.booleans(), st.booleans()))
def test_a_policy_comes_back(policy: decode.Policy) -> None:
    assert decode.unpack_policy(decode.pack_policy(policy)) == policy


def test_maps_of_zeros_hold_the_default_policy() -> None:
    assert set(decode.pack_policy(decode.Policy()).values()) == {0}


def test_policies_have_the_order_of_the_header() -> None:
    body = re.search(r"enum policy_switch \{(.*?)POLICIES,", MAPS_H.read_text(), re.DOTALL)
    assert body is not None
    names = re.findall(r"POLICY_\w+", body[1])
    assert [getattr(decode, name) for name in names] == list(range(len(names)))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("usage", decode.USAGE),
        ("holding", decode.HOLDING),
        ("event", decode.EVENT),
        ("cu_mask", decode.CU_MASK),
        ("compute", decode.COMPUTE),
    ],
)
def test_layouts_have_the_sizes_the_header_asserts(name: str, layout: Struct) -> None:
    asserted = re.search(rf"sizeof\(struct {name}\) == (\d+)", MAPS_H.read_text())
    assert asserted is not None
    assert layout.size == int(asserted[1])


@pytest.mark.parametrize(
    ("macro", "value"),
    [
        ("MAX_CGROUP_DEPTH", decode.MAX_CGROUP_DEPTH),
        ("MAX_OWNERS", 4),
        ("TENANT_OVERRAN", decode.TENANT_OVERRAN),
        ("HOLDING_UNFOLLOWED", decode.HOLDING_UNFOLLOWED),
    ],
)
def test_constants_are_the_headers(macro: str, value: int) -> None:
    assert re.search(rf"#define {macro}\s+{value}U?\b", MAPS_H.read_text())


@given(st.integers(0, (1 << decode.MAX_CUS) - 1), st.booleans())
def test_compute_units_come_back(cus: int, enforced: bool) -> None:
    mask = decode.CuMask(cus, enforced)
    assert decode.unpack_cu_mask(decode.pack_cu_mask(mask)) == mask


@pytest.mark.parametrize("cus", [-1, 1 << decode.MAX_CUS])
def test_compute_units_no_mask_has_a_bit_for_are_an_error(cus: int) -> None:
    with pytest.raises(ValueError, match="at most 1024 CUs"):
        decode.pack_cu_mask(decode.CuMask(cus))


def test_usage_is_read_with_and_without_what_later_maps_hold_of_it() -> None:
    row = decode.USAGE.pack(1, 2, 3, 4, 5, 6, 7, 8)
    alone = decode.unpack_usage(row)
    assert alone == decode.LedgerUsage(1, 2, 3, 4, 5, 6, 7, 8)
    svm, compute = decode.SVM_USAGE.pack(9, 10), decode.COMPUTE.pack(11, 12, 13, 14, 15)
    assert decode.unpack_usage(row, svm, compute) == decode.LedgerUsage(
        *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        queues=11,
        queues_masked=12,
        masks_wider=14,
        masks_refused=15,
    )


def test_a_cgroup_with_a_live_queue_is_not_empty() -> None:
    assert decode.LedgerUsage(0, svm_faulted=1, masks_wider=1).empty
    assert not decode.LedgerUsage(0, queues=1).empty
