# SPDX-License-Identifier: Apache-2.0
"""Another build of the BPF objects takes over the same pinned maps, and the first one again."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bpf import loader
from enforcer.layers import KernelLayers
from enforcer.model import MIB
from tests.testbed.otherbuild import VARIABLE
from tests.vm.guest import truth
from tests.vm.guest.caller import DOMAIN_GTT, DOMAIN_VRAM
from tests.vm.guest.gatenode import OBJECTS, PINS, fresh_node, held_up
from tests.vm.guest.services import ledger_source, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.gatenode import Node

CALLS: Final = 10
PAUSE_SECONDS: Final = 0.25
"""Detaching a program waits until every task has left the kernel: without it that takes minutes."""
PATIENCE: Final = 60
UNKNOWN: Final = 0x4B7F
"""A number that neither device has a call for."""
LATER: Final = ("svm", "cu_masks", "queues", "compute")
"""Maps that the first version with this schema did not have."""
MUST_NOT_HAPPEN: Final = ("unreserved", "unrecorded_buffer")


@pytest.fixture
def other() -> Path:
    return Path(os.environ[VARIABLE])


@pytest.fixture
def node(other: Path, gpus: list[Gpu]) -> Iterator[Node]:
    """The other build acts, with the maps of an earlier version."""
    loader.unload(PINS)
    enforce(other)
    for name in LATER:
        (PINS / name).unlink()
    with fresh_node(gpus) as made:
        assert not {*LATER} & made.maps.fill().keys()
        yield made
    loader.unload(PINS)
    assert not PINS.exists()


def enforce(objects: Path) -> None:
    """What an enforcer that comes with these objects does first."""
    layers = KernelLayers(objects, PINS.parent, Path("/sys"))
    layers.load_gate()
    layers.attach()
    layers.close()
    assert layers.problems == {}
    assert layers.gate.on
    assert layers.ledger == ledger_source()


class Beyond:
    """A container on the first GPU that is full and asks for more."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.cgroup = node.cgroup("beyond", MIB)
        self._caller = node.caller(self.cgroup)
        self._caller.do("gem_create", node.render, MIB)
        self._aside = self._caller.do("gem_create", node.render, MIB, DOMAIN_GTT)
        self.tried = self.refused = 0

    def ask(self) -> None:
        self.tried += CALLS + 1
        self.refused += self._caller.do("storm", self._node.render, CALLS)
        placed = (self._node.render, self._aside, DOMAIN_VRAM)
        self.refused += bool(self._caller.refused("set_placement", *placed))


class Within:
    """A container on the first GPU that makes and frees buffers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.cgroup = node.cgroup("within", 64 * MIB)
        self._caller = node.caller(self.cgroup)
        self.made = 0

    def work(self, over: threading.Event) -> None:
        """Until told to stop."""
        while not over.is_set():
            self._caller.do("churn", self._node.render, self._node.kfd_id, MIB, CALLS)
            self.made += 2 * CALLS
            time.sleep(PAUSE_SECONDS)


class HeldUp:
    """A container on the second GPU, half of whose slice is being made all the while."""

    def __init__(self, node: Node, name: str, *, kfd: bool) -> None:
        self._node, self._kfd = node, kfd
        self.gpu = node.gpus[1]
        self.key = node.keys[1]
        self.cgroup = node.cgroup(name)
        node.maps.set_limit(self.cgroup.stat().st_ino, self.key, 2 * MIB)
        self._render = f"/dev/dri/renderD{self.gpu.render}"
        self._caller = node.caller(self.cgroup)
        self._caller.do("open", self._render)
        self._caller.do("acquire", self._render, self.gpu.kfd_id)

    def allocate(self) -> None:
        """Half of the slice."""
        if self._kfd:
            self._caller.do("kfd_alloc", self.gpu.kfd_id, MIB)
        else:
            self._caller.do("gem_create", self._render, MIB)

    def reserved(self) -> int:
        usage = self._node.maps.usage().get((self.cgroup.stat().st_ino, self.key))
        return usage.reserved if usage else 0

    def gets_the_other_half_and_no_more(self) -> bool:
        # Calls in which the gate is not asked, and whose end the ledger is told of all the same.
        assert self._caller.refused("call_nowhere", "/dev/kfd", UNKNOWN)
        assert self._caller.refused("call_nowhere", self._render, UNKNOWN)
        self._caller.do("open", self._render)
        self.allocate()
        return self._caller.refused("gem_create", self._render, 4096) == "ENOMEM"

    def end(self) -> None:
        self._caller.end()
        wait_for("the driver to have none", lambda: truth.buffers(self.gpu.bdf) == 0, PATIENCE)
        self._node.maps.forget(self.cgroup.stat().st_ino, self.key)


def unfollowed(node: Node, gpu: int) -> int:
    """Bytes on a GPU that are charged for calls that nobody saw the end of."""
    holdings = dict(node.maps.buffers()).values()
    return sum(one.size for one in holdings if one.gpu == gpu and not one.followed)


@pytest.mark.timeout(1200)
def test_no_call_passes_unseen_while_builds_take_over_from_each_other(
    node: Node, other: Path
) -> None:
    beyond, within = Beyond(node), Within(node)
    for objects, kfd in ((OBJECTS, False), (other, True)):
        held = HeldUp(node, f"held-{kfd}", kfd=kfd)
        over = threading.Event()
        with ThreadPoolExecutor(3) as pool, held_up(held.gpu):
            making = pool.submit(held.allocate)
            wait_for("the call to be let pass", lambda held=held: held.reserved() == MIB)  # type: ignore[misc]
            working = pool.submit(within.work, over)
            loading = pool.submit(enforce, objects)
            try:
                while not loading.done():
                    beyond.ask()
                    time.sleep(PAUSE_SECONDS)
            finally:
                over.set()
            loading.result()
            working.result()
            assert not making.done()
        making.result()
        print(f"{beyond.tried} calls beyond the limit, {within.made} within")
        assert beyond.refused == beyond.tried
        assert node.usage(beyond.cgroup).requested == MIB
        # Nothing is booked but what is there, and what is there is booked.
        wait_for(
            "what was freed to come back",
            lambda: node.usage(within.cgroup).requested == unfollowed(node, node.gpu),
            PATIENCE,
        )
        wait_for(
            "the driver to have no more",
            lambda: truth.buffers(node.gpus[0].bdf) == MIB,
            PATIENCE,
        )
        assert held.gets_the_other_half_and_no_more()
        assert truth.buffers(held.gpu.bdf) == 2 * MIB
        assert node.usage(held.cgroup, held.key).requested == 2 * MIB
        held.end()
    print("unfollowed:", node.counted("unfollowed"))
    assert {name: node.counted(name) for name in MUST_NOT_HAPPEN} == dict.fromkeys(
        MUST_NOT_HAPPEN, 0
    )
    node.maps.forget(within.cgroup.stat().st_ino, node.gpu)
