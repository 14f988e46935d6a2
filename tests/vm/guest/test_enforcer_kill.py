# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` of the enforcer at any moment of its life, while tenants allocate and free.

Every answer to a tenant is checked against books of the test's own: what fits the slice must be
given, what does not must be refused, whether an enforcer runs, starts, or lies dead half-way
through taking over. ``RINGFENCE_ROUNDS`` says how often (20), ``RINGFENCE_SEED`` repeats a run.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from functools import partial
from operator import truediv
from typing import TYPE_CHECKING

import pytest

from bpf import loader
from enforcer.model import MIB
from tests.vm.guest.node import RefusedError
from tests.vm.guest.services import gate_limit, ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

ROUNDS = int(os.environ.get("RINGFENCE_ROUNDS", "20"))
SLICE = 64 * MIB
PAGE = 4096
EVERYTHING = "import enforcer.daemon, enforcer.api.server, enforcer.follow, enforcer.metrics.serve"
"""What a running enforcer has imported."""
IMPORTS = 1.5
"""Of the time a bare import takes, the most after which a new enforcer serves.

Only one that finds its own build attached: an update, which attaches anew, takes longer, and the
old programs hold meanwhile.
"""
# From before its first import to well after it serves.
LONGEST_LIFE = 4.0


class Load(threading.Thread):
    """One tenant that allocates and frees at random, and what is wrong with the answers."""

    def __init__(self, one: Tenant, gpu: Gpu, seed: int) -> None:
        super().__init__(daemon=True)
        self.one = one
        self.turn = threading.Lock()
        """Held while a call is under way."""
        self.holds: dict[str, int] = {}
        self.calls = self.refused = 0
        self.wrong: list[str] = []
        self._gpu = gpu
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._over = threading.Event()

    @property
    def bytes(self) -> int:
        return sum(self.holds.values())

    def run(self) -> None:
        while not (self._over.is_set() or self.wrong):
            with self.turn:
                self._step()
            # The node has one core; the enforcer must have some of it.
            time.sleep(0.002)

    def end(self) -> None:
        self._over.set()
        self.join(30)

    def free_all(self) -> None:
        for handle in list(self.holds):
            self._free(handle)

    def _step(self) -> None:
        self.calls += 1
        if self.holds and self._random.random() < 0.45:
            self._free(self._random.choice(list(self.holds)))
            return
        size = self._random.randint(1, SLICE // 3 // PAGE) * PAGE
        fits = self.bytes + size <= SLICE
        kfd = self._random.random() < 0.5
        try:
            if kfd:
                handle = f"kfd-free {self.one.client.kfd_alloc(self._gpu, size)}"
            else:
                handle = f"gem-close {self.one.client.gem_create(size)}"
        except RefusedError as error:
            self.refused += 1
            if fits or error.errno != "ENOMEM":
                self.wrong.append(f"call {self.calls}: {error} with {self.bytes} held")
            return
        self.holds[handle] = size
        if not fits:
            self.wrong.append(f"call {self.calls}: was given {size}, then held {self.bytes}")

    def _free(self, handle: str) -> None:
        self.one.client.ask(handle)
        del self.holds[handle]


def loaded(kind: str) -> int:
    """How many BPF programs (``prog``) or maps (``map``) the kernel has."""
    step = getattr(ctypes.CDLL("libbpf.so.1"), f"bpf_{kind}_get_next_id")
    count, current, following = 0, 0, ctypes.c_uint32()
    while step(ctypes.c_uint32(current), ctypes.byref(following)) == 0:
        count, current = count + 1, following.value
    return count


def pins() -> list[str]:
    """What is pinned, the generations' numbers left out."""
    root = loader.PIN_ROOT
    return sorted(
        "/".join("N" if part.isdecimal() else part for part in path.relative_to(root).parts)
        for path in root.rglob("*")
    )


def forget_the_build() -> None:
    """The next enforcer takes what is attached for another's, and attaches its own."""
    for record in loader.PIN_ROOT.glob("*/*_record"):
        record.unlink()


def refused_but_by_a_limit() -> dict[str, int]:
    """How often, by the reason. The node's enforcer is that of other tests, too."""
    with loader.open_maps() as maps:
        counters = maps.counters()
    return {
        name: count
        for name, count in counters.items()
        if name.startswith("refused_") and name != "refused_limit"
    }


def agrees(load: Load, gpu: Gpu) -> bool:
    """The ledger has the tenant's bytes, for the container and for its pod."""
    with load.turn:
        return all(
            ledger(cgroup, gpu.bdf).requested == load.bytes
            for cgroup in (load.one.container.cgroup_id, load.one.pod.cgroup_id)
        )


def test_the_next_enforcer_keeps_the_programs_and_proves_them(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, SLICE // MIB)
    one.client.kfd_alloc(gpu, SLICE)
    attached = sorted(loader.PIN_ROOT.rglob("*"))
    bare, back = [], []
    for _ in range(3):
        with loader.open_maps() as maps:
            before = maps.counters()["self_tests"]
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", EVERYTHING], check=True)
        bare.append(time.monotonic() - started)
        enforcer.kill()
        started = time.monotonic()
        enforcer.start()
        back.append(time.monotonic() - started)
        with loader.open_maps() as maps:
            assert maps.counters()["self_tests"] > before
        assert sorted(loader.PIN_ROOT.rglob("*")) == attached
        assert one.client.refused("gem-create 1 vram") == "ENOMEM"
    enforcer.kill()
    forget_the_build()
    started = time.monotonic()
    enforcer.start()
    anew = time.monotonic() - started
    assert one.client.refused("gem-create 1 vram") == "ENOMEM"
    print(f"back after {min(back):.2f} s, {anew:.2f} s with programs to attach")
    print(f"bare import {min(bare):.2f} s")
    # Each with the import just before it: what else the machine does has slowed down both.
    assert min(map(truediv, back, bare)) <= IMPORTS


@pytest.mark.timeout(180 + 15 * ROUNDS)
def test_no_kill_loses_a_limit_a_byte_or_a_map(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    seed = int(os.environ.get("RINGFENCE_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"RINGFENCE_SEED={seed} RINGFENCE_ROUNDS={ROUNDS}")
    dice = random.Random(seed)  # noqa: S311 - as above
    loads = [
        Load(tenant(pods, enforcer, gpu, SLICE // MIB), gpu, dice.randrange(1 << 32))
        for _ in range(2)
    ]
    before = pins(), loaded("prog"), loaded("map")
    others = refused_but_by_a_limit()
    limits = [
        (cgroup, gpu.bdf)
        for load in loads
        for cgroup in (load.one.container.cgroup_id, load.one.pod.cgroup_id)
    ]
    for load in loads:
        load.start()
    try:
        for number in range(ROUNDS):
            assert enforcer.alive(), enforcer.log.read_text()
            enforcer.kill()
            assert [gate_limit(*limit) for limit in limits] == [SLICE] * len(limits), number
            for load in loads:
                wait_for(f"the ledger in round {number}", partial(agrees, load, gpu))
                assert load.wrong == [], number
            if dice.random() < 0.5:
                forget_the_build()
            enforcer.spawn()
            time.sleep(dice.uniform(0.0, LONGEST_LIFE))
        enforcer.kill()
        enforcer.start()
    finally:
        for load in loads:
            load.end()
    for load in loads:
        assert load.wrong == []
        assert load.refused > 0
        wait_for("the ledger at the end", partial(agrees, load, gpu))
        load.free_all()
    _nothing_left(loads, gpu, before)
    assert refused_but_by_a_limit() == others
    print(
        f"{sum(load.calls for load in loads)} calls, {sum(load.refused for load in loads)} refused"
    )


def _nothing_left(loads: list[Load], gpu: Gpu, before: tuple[list[str], int, int]) -> None:
    for load in loads:
        wait_for("all given back", partial(agrees, load, gpu))
        row = ledger(load.one.container.cgroup_id, gpu.bdf)
        assert (row.requested, row.reserved, row.resident) == (0, 0, 0)
    assert pins() == before[0]

    def kernels() -> tuple[int, int]:
        return loaded("prog"), loaded("map")

    # Programs of a killed enforcer go when the kernel gets round to it.
    wait_for(f"{before[1:]} programs and maps", lambda: kernels() == before[1:])
