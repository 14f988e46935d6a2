# SPDX-License-Identifier: Apache-2.0
"""Who reads the maps does not make the ledger miss what the driver does meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING

from bpf import loader
from enforcer.model import MIB
from tests.vm.guest.gatenode import PINS, fresh_node, loaded_parts, settled

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from enforcer.model import Gpu

_SECONDS = 8
_ROUNDS = 100


def _read_without_pause(cpu: int, over: Event) -> None:
    os.sched_setaffinity(0, {cpu})
    with loader.open_maps(PINS) as maps:
        while not over.is_set():
            maps.usage()
            maps.counters()


def test_maps_read_without_pause_on_every_cpu_hide_no_buffer(gpus: list[Gpu]) -> None:
    over = multiprocessing.Event()
    readers = [
        multiprocessing.Process(target=_read_without_pause, args=(cpu, over))
        for cpu in os.sched_getaffinity(0)
    ]
    with loaded_parts(), fresh_node(gpus) as node:
        box = node.cgroup("box", 64 * MIB)
        caller = node.caller(box)
        before = node.usage(box)
        for reader in readers:
            reader.start()
        end, rounds = time.monotonic() + _SECONDS, 0
        while time.monotonic() < end or rounds < _ROUNDS:
            caller.do("kfd_free", caller.do("kfd_alloc", node.kfd_id, 16 * MIB))
            rounds += 1
        over.set()
        for reader in readers:
            reader.join(60)
            assert reader.exitcode == 0
        assert node.counted("stale_holding") == 0
        assert settled(lambda: node.usage(box).requested == 0)
        assert node.usage(box).buffers == before.buffers
