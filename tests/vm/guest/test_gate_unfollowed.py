# SPDX-License-Identifier: Apache-2.0
"""What the kernel does not tell the ledger of stays charged, until it is forgotten by order.

A program of the ledger is taken away, as if the kernel had passed over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bpf import loader
from bpf.decode import Counter
from bpf.libbpf import BpfError
from enforcer.model import MIB
from tests.vm.guest.gatenode import OBJECTS, PAGE, PINS, Node, fresh_node, settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.caller import Caller

MANY = 32
"""Buffers at once, for one of them to lie where another one lay."""


@pytest.fixture
def node(gate: loader.Gate, gpus: list[Gpu]) -> Iterator[Node]:
    with fresh_node(gpus) as made:
        yield made
    # What a test took away of it.
    loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)


def blind(program: str) -> None:
    """Take away each copy of a program of the ledger; the kernel does so a while later."""
    links = list(PINS.glob(f"*/ledger_{program}*"))
    assert links
    for link in links:
        link.unlink()


def take_unfollowed(node: Node, caller: Caller) -> list[int]:
    """KFD's handles of buffers of 1 MiB, of which the last is unfollowed."""
    handles: list[int] = []
    before = node.counted("unfollowed")

    def taken() -> bool:
        handles.append(caller.do("kfd_alloc", node.kfd_id, MIB))
        return node.counted("unfollowed") > before

    assert settled(taken)
    return handles


def test_a_buffer_that_is_made_unseen_stays_charged_and_is_told_of(node: Node) -> None:
    pod, box = node.cgroup("pod", 1 << 40), node.cgroup("pod/box", 1 << 40)
    sibling = node.cgroup("pod/sibling", 64 * MIB)
    caller, other = node.caller(box), node.caller(sibling)
    other.do("kfd_alloc", node.kfd_id, 3 * MIB)
    blind("bo_create")
    made = len(take_unfollowed(node, caller))
    for at, size in ((box, made * MIB), (pod, (made + 3) * MIB)):
        usage = node.usage(at)
        assert (usage.requested, usage.reserved) == (size, 0)
    (event,) = [one for one in node.maps.events() if one.reason is Counter.UNFOLLOWED]
    assert (event.pid, event.cgroup, event.gpu) == (caller.pid, box.stat().st_ino, node.gpu)
    assert event.asked == MIB
    assert str(event).endswith(
        "took 1048576 bytes: the kernel passed over the ledger, it stays charged"
    )
    assert [one.size for one in dict(node.maps.buffers()).values() if not one.followed] == [MIB]
    node.maps.set_limit(box.stat().st_ino, node.gpu, (made + 1) * MIB)
    caller.do("gem_create", node.render, MIB)
    assert caller.refused("gem_create", node.render, 1) == "ENOMEM"

    caller.end()
    # Page tables go with the last file.
    assert settled(lambda: node.usage(box).buffers == 2), node.usage(box)
    assert node.usage(box).requested == 2 * MIB
    assert node.maps.forget(box.stat().st_ino, node.gpu) == 2
    assert node.usage(box).empty, node.usage(box)
    assert node.usage(pod).requested == node.usage(sibling).requested == 3 * MIB
    assert node.maps.forget(box.stat().st_ino, node.gpu) == 0


def test_a_call_that_fails_costs_nothing_seen_or_unseen(node: Node) -> None:
    box = node.cgroup("box", 1 << 40)
    caller = node.caller(box)
    blind("bo_create")
    made = len(take_unfollowed(node, caller))
    unfollowed = node.counted("unfollowed")
    assert caller.refused("kfd_alloc", node.kfd_id + 1, MIB)
    assert caller.refused("kfd_alloc", node.kfd_id, 1 << 39) == "ENOMEM"
    usage = node.usage(box)
    assert (usage.requested, usage.reserved) == (made * MIB, 0)
    assert node.counted("unfollowed") == unfollowed
    caller.end()
    assert settled(lambda: node.usage(box).buffers == 1), node.usage(box)
    assert node.maps.forget(box.stat().st_ino, node.gpu) == 1


def test_a_buffer_whose_handle_finds_no_place_is_charged(node: Node) -> None:
    box = node.cgroup("box", 64 * MIB)
    caller = node.caller(box)
    arguments = caller.do("kfd_arguments", node.kfd_id, MIB)
    assert caller.refused("call_read_only", "/dev/kfd", arguments) == "EFAULT"
    assert (node.usage(box).requested, node.usage(box).reserved) == (MIB, 0)
    node.maps.set_limit(box.stat().st_ino, node.gpu, 1 << 40)
    blind("bo_create")
    made = len(take_unfollowed(node, caller))
    assert caller.refused("call_read_only", "/dev/kfd", arguments) == "EFAULT"
    assert (node.usage(box).requested, node.usage(box).reserved) == ((made + 2) * MIB, 0)
    caller.end()
    assert settled(lambda: node.usage(box).buffers == 2), node.usage(box)
    assert node.maps.forget(box.stat().st_ino, node.gpu) == 2


def test_a_buffer_that_ends_unseen_stays_charged_until_it_is_forgotten(node: Node) -> None:
    pod, box = node.cgroup("pod", 1 << 40), node.cgroup("pod/box", 1 << 40)
    caller = node.caller(box)
    blind("bo_destroy")

    def stays() -> bool:
        before = node.usage(box).requested if node.maps.usage() else 0
        caller.do("kfd_free", caller.do("kfd_alloc", node.kfd_id, MIB))
        return node.usage(box).requested > before

    assert settled(stays)
    caller.end()
    forgotten = node.counted("forgotten")
    dropped = node.maps.forget(box.stat().st_ino, node.gpu)
    assert dropped >= 1
    assert node.counted("forgotten") == forgotten + dropped
    # Page tables go a moment after the last file.
    assert settled(lambda: node.usage(box).empty), node.usage(box)
    assert settled(lambda: node.usage(pod).empty), node.usage(pod)


def test_what_an_end_unseen_leaves_behind_is_no_harm_to_who_has_the_address_next(
    node: Node,
) -> None:
    box, beside = node.cgroup("box", 64 * MIB), node.cgroup("beside", 64 * MIB)
    first, second = node.caller(box), node.caller(beside)
    blind("bo_destroy")

    def stays() -> bool:
        handles = [first.do("kfd_alloc", node.kfd_id, PAGE) for _ in range(MANY)]
        for handle in handles:
            first.do("kfd_free", handle)
        return node.usage(box).requested >= MANY * PAGE

    assert settled(stays)
    loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
    left = node.usage(box).requested
    stale, unrecorded = node.counted("stale_holding"), node.counted("unrecorded_buffer")

    def meets() -> bool:
        handles = [second.do("kfd_alloc", node.kfd_id, PAGE) for _ in range(MANY)]
        for handle in handles:
            second.do("kfd_free", handle)
        return node.counted("stale_holding") > stale

    assert settled(meets)
    met = node.counted("stale_holding") - stale
    assert settled(lambda: node.usage(beside).requested == 0), node.usage(beside)
    assert node.usage(box).requested == left - met * PAGE
    assert node.counted("unrecorded_buffer") == unrecorded
    first.end()
    node.maps.forget(box.stat().st_ino, node.gpu)


def test_without_a_ledger_nothing_is_forgotten(node: Node) -> None:
    box = node.cgroup("box", 64 * MIB)
    loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS).detach()
    with pytest.raises(BpfError, match="no ledger is attached"):
        node.maps.forget(box.stat().st_ino, node.gpu)
