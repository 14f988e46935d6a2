# SPDX-License-Identifier: Apache-2.0
"""What the kernel's own counter lets through where it stands alone, and that the gate does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.model import MIB
from enforcer.plan import headroom
from tests.vm.guest import truth
from tests.vm.guest.pressure import evict
from tests.vm.guest.services import dmem_current, ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

SLICE: Final = 64 * MIB
MOST: Final = SLICE + headroom(SLICE)
HELD: Final = 60 * MIB

pytestmark = pytest.mark.dmem


def system_memory(gpu: Gpu) -> int:
    """Bytes of system memory that the GPU's driver has in use."""
    return int(Path(f"/sys/bus/pci/devices/{gpu.bdf}/mem_info_gtt_used").read_text())


def evict_and_restore(one: Tenant, gpu: Gpu, binary: Path) -> None:
    """Pressure on the container for a moment; the driver brings all back from a kernel thread."""
    held = truth.buffers(gpu.bdf)
    evict(one, gpu, binary)
    wait_for("the restore", lambda: truth.buffers(gpu.bdf) == held)


class TestDmemAlone:
    def test_graphics_goes_on_in_system_memory_above_the_limit(
        self, dmem_alone: Enforcer, pods: Pods, gpu: Gpu
    ) -> None:
        one = tenant(pods, dmem_alone, gpu, SLICE // MIB)
        before = system_memory(gpu)
        for _ in range(100):
            one.client.gem_create(MIB)
        current = dmem_current(one.container.path, gpu.bdf)
        assert current is not None
        assert truth.buffers(gpu.bdf) <= current <= MOST
        assert system_memory(gpu) - before == 100 * MIB - truth.buffers(gpu.bdf)

    def test_after_an_eviction_a_container_can_have_its_slice_again(
        self, dmem_alone: Enforcer, pods: Pods, gpu: Gpu, client_binary: Path
    ) -> None:
        one = tenant(pods, dmem_alone, gpu, SLICE // MIB)
        one.client.kfd_alloc(gpu, HELD)
        evict_and_restore(one, gpu, client_binary)
        assert (dmem_current(one.container.path, gpu.bdf) or 0) < MIB
        wait_for("room again", lambda: not one.client.refused(f"kfd-alloc {gpu.kfd_id} {HELD}"))
        assert truth.buffers(gpu.bdf) == 2 * HELD > MOST


class TestBehindTheGate:
    def test_graphics_is_refused_at_the_slice(
        self, enforcer: Enforcer, pods: Pods, gpu: Gpu
    ) -> None:
        one = tenant(pods, enforcer, gpu, SLICE // MIB)
        before = system_memory(gpu)
        assert one.client.ask(f"fill gem {MIB}")["bytes"] == str(SLICE)
        assert truth.buffers(gpu.bdf) == SLICE
        assert system_memory(gpu) == before

    def test_after_an_eviction_the_slice_is_what_it_was(
        self, enforcer: Enforcer, pods: Pods, gpu: Gpu, client_binary: Path
    ) -> None:
        one = tenant(pods, enforcer, gpu, SLICE // MIB)
        one.client.kfd_alloc(gpu, HELD)
        evict_and_restore(one, gpu, client_binary)
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {SLICE - HELD + 1}") == "ENOMEM"
        assert one.client.ask(f"fill gem {MIB}")["bytes"] == str(SLICE - HELD)
        row = ledger(one.container.cgroup_id, gpu.bdf)
        assert row.requested == row.resident == truth.buffers(gpu.bdf) == SLICE
