# SPDX-License-Identifier: Apache-2.0
"""When the books have no more room: who is refused for it, and who is not."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from bpf import loader
from bpf.decode import Counter, CuMask, Policy
from enforcer.model import MIB
from tests.vm.guest.caller import DOMAIN_VRAM, GEM_CREATE
from tests.vm.guest.gatenode import OBJECTS, PINS, Node, settled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.vm.guest.caller import Caller

PAGE: Final = 4096
MOST: Final = 1 << 20
OF_A_TENANT: Final = MOST // 4
KEPT_FREE: Final = 4096
SLICE: Final = 0xFF


@contextmanager
def as_many_more(node: Node, by: int, box: Path | None = None) -> Iterator[None]:
    """So many more buffers on the books, of one tenant or of all."""
    if box is not None:
        name, key, at = "usage", struct.pack("=QQ", box.stat().st_ino, node.gpu), 32
    else:
        name, key, at = "population", struct.pack("=I", 0), 0
    pinned = node.maps._maps[name]

    def change(by: int) -> None:
        value = node.maps._lib.lookup(pinned.fd, key, pinned.value_size)
        assert value is not None
        (now,) = struct.unpack_from("=q", value, at)
        value = value[:at] + struct.pack("=q", now + by) + value[at + 8 :]
        node.maps._lib.update(pinned.fd, key, value, name)

    change(by)
    try:
        yield
    finally:
        change(-by)


def whole_and_limited(node: Node) -> tuple[Caller, Caller]:
    """A container that has the GPU to itself, and one with a share; each has a buffer."""
    callers = [
        node.caller(node.cgroup("whole", whole=True)),
        node.caller(node.cgroup("part", 64 * MIB)),
    ]
    for caller in callers:
        caller.do("gem_create", node.render, PAGE)
    return callers[0], callers[1]


class TestWhoHasNoLimit:
    def test_it_goes_on_when_its_buffers_are_too_many_to_follow(self, node: Node) -> None:
        whole, part = whole_and_limited(node)
        before = node.counted("waived"), node.counted("unrecorded_buffer")
        held = node.maps.fill()["buffers"][0]
        with as_many_more(node, MOST - held):
            assert part.refused("gem_create", node.render, PAGE) == "ENOMEM"
            handle = whole.do("gem_create", node.render, PAGE)
            whole.do("kfd_alloc", node.kfd_id, PAGE)
            assert node.maps.fill()["buffers"][0] == MOST
        assert node.counted("waived") == before[0] + 2
        assert node.counted("unrecorded_buffer") == before[1] + 2
        whole.do("gem_close", node.render, handle)
        assert node.usage(node.box("whole")).requested == PAGE
        assert [event.reason for event in node.maps.events()] == [Counter.REFUSED_BUFFERS_FULL]

    def test_it_goes_on_without_a_ledger(self, node: Node) -> None:
        whole, part = whole_and_limited(node)
        loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS).detach()
        try:
            whole.do("gem_create", node.render, PAGE)
            assert part.refused("gem_create", node.render, PAGE) == "ENOMEM"
        finally:
            loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)

    def test_it_goes_on_where_arguments_are_not_waited_for(
        self, gate: loader.Gate, node: Node
    ) -> None:
        whole, part = whole_and_limited(node)
        arguments = struct.pack("=QQQQ", MIB, 0, DOMAIN_VRAM, 0)
        whole.do("call_unread", node.render, GEM_CREATE, arguments)
        assert settled(lambda: node.usage(node.box("whole")).requested == MIB + PAGE)
        answer = part.refused("call_unread", node.render, GEM_CREATE, arguments)
        assert answer == ("" if gate.asked_by == "lsm" else "ENOMEM")

    def test_a_gpu_it_has_no_share_of_is_refused_all_the_same(self, node: Node) -> None:
        whole, _ = whole_and_limited(node)
        other = f"/dev/dri/renderD{node.gpus[1].render}"
        whole.do("open", other)
        with as_many_more(node, MOST):
            assert whole.refused("gem_create", other, PAGE) == "ENOMEM"


class TestPageTables:
    def test_they_leave_half_of_the_room_to_buffers(self, node: Node) -> None:
        box = node.cgroup("box", 64 * MIB)
        half = (MOST - KEPT_FREE) // 2
        before = node.counted("unrecorded_page_table")
        with as_many_more(node, half):
            caller = node.caller(box)
            assert node.counted("unrecorded_page_table") > before
            assert node.maps.fill()["buffers"][0] == half
            caller.do("gem_create", node.render, PAGE)
            assert node.maps.fill()["buffers"][0] == half + 1
            assert (node.usage(box).buffers, node.usage(box).page_tables) == (1, 0)

    def test_a_tenant_is_refused_no_buffer_for_them(self, node: Node) -> None:
        box = node.cgroup("box", 64 * MIB)
        caller = node.caller(box)
        caller.do("gem_create", node.render, PAGE)
        with as_many_more(node, OF_A_TENANT // 2, box):
            held = node.usage(box).buffers
            for _ in range(4):
                caller.do("open", node.render)
            assert node.usage(box).buffers == held
            caller.do("gem_create", node.render, PAGE)
            assert node.usage(box).buffers == held + 1


class TestQueues:
    @contextmanager
    def full(self, node: Node) -> Iterator[None]:
        """No room for another queue; those that fill it are nobody's."""
        pinned = node.maps._maps["queues"]
        keys = [struct.pack("=QII", 1, number, 0) for number in range(pinned.entries)]
        try:
            for key in keys:
                node.maps._lib.update(pinned.fd, key, bytes(pinned.value_size), "queues")
            yield
        finally:
            for key in keys:
                node.maps._lib.delete(pinned.fd, key)

    def test_none_is_made_that_could_not_be_judged_where_that_is_enforced(self, node: Node) -> None:
        box, free = node.cgroup("box", 8 * MIB), node.cgroup("free", 8 * MIB)
        node.maps.set_cu_mask(box.stat().st_ino, node.gpu, CuMask(SLICE, enforced=True))
        node.maps.set_cu_mask(free.stat().st_ino, node.gpu, CuMask(SLICE))
        held, counted = node.caller(box), node.caller(free)
        with self.full(node):
            assert held.refused("create_queue", node.kfd_id) == "EACCES"
            unknown = counted.do("create_queue", node.kfd_id)
            counted.do("set_cu_mask", unknown, SLICE << 8)
        (event,) = node.maps.events()
        assert (event.reason, event.cgroup) == (
            Counter.REFUSED_QUEUES_FULL,
            box.stat().st_ino,
        )
        held.do("create_queue", node.kfd_id)


def test_a_file_whose_opener_is_not_known_is_kept_back_where_files_are(node: Node) -> None:
    one = node.caller(node.cgroup("one", 8 * MIB))
    other = node.caller(node.cgroup("other", 8 * MIB))
    free = node.caller(node.cgroup("free"))
    clients = node.maps._maps["clients"]
    for key, opener in node.maps._items("clients"):
        if opener == struct.pack("=Q", node.box("one").stat().st_ino):
            node.maps._lib.delete(clients.fd, key)

    def passed(giver: Caller) -> int:
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(other.do, "take", "room")
            giver.do("give", "room", giver.do("descriptor", node.render))
            return int(taken.result(30))

    passed(one)
    node.maps.set_policy(Policy(refuse_passed=True))
    with pytest.raises(PermissionError):
        passed(one)
    # That nobody with a share has opened it is known.
    passed(free)
