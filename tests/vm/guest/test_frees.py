# SPDX-License-Identifier: Apache-2.0
"""All frees come back, and the books agree: ledger, dmem, KFD's sysfs and fdinfo."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.host import drm
from enforcer.model import MIB
from tests.vm.guest.services import Enforcer, dmem_current, ledger, wait_for
from tests.vm.guest.test_limit import has_region, tenant

if TYPE_CHECKING:
    from collections.abc import Callable

    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant


def nothing_held(one: Tenant, gpu: Gpu, group: str = "pod") -> Callable[[], bool]:
    """True once ledger and dmem both say that nothing is left."""
    path = one.pod.path if group == "pod" else one.container.path
    cgroup_id = path.stat().st_ino

    def at_zero() -> bool:
        return ledger(cgroup_id, gpu.bdf).empty and not dmem_current(path, gpu.bdf)

    return at_zero


def kfd_vram(pid: int, gpu: Gpu) -> int:
    """What KFD says a process asked for, in bytes."""
    return int(Path(f"/sys/class/kfd/kfd/proc/{pid}/vram_{gpu.kfd_id}").read_text())


def test_explicit_frees_come_back(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    before = ledger(one.pod.cgroup_id, gpu.bdf)
    kfd = one.client.kfd_alloc(gpu, 16 * MIB)
    gem = one.client.gem_create(8 * MIB)
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 24 * MIB
    one.client.ask(f"kfd-free {kfd}")
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 8 * MIB
    one.client.ask(f"gem-close {gem}")
    wait_for(
        "both buffers given back",
        lambda: ledger(one.pod.cgroup_id, gpu.bdf).resident == before.resident,
    )
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 0


def test_exit_gives_everything_back(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    one.client.kfd_alloc(gpu, 16 * MIB)
    one.client.gem_create(8 * MIB)
    gone = nothing_held(one, gpu)
    assert not gone()
    assert one.container.finish() == 0
    wait_for("the ledger and dmem at 0", gone)


def test_kill_9_gives_everything_back(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    one.client.kfd_alloc(gpu, 16 * MIB)
    one.client.gem_create(8 * MIB)
    gone = nothing_held(one, gpu)
    one.container.kill()
    wait_for("the ledger and dmem at 0", gone)


def test_the_last_prime_reference_gives_back(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    handle = one.client.gem_create(8 * MIB)
    fd = one.client.ask(f"prime-export {handle}")["fd"]
    one.client.ask(f"gem-close {handle}")
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 8 * MIB
    again = one.client.ask(f"prime-import {fd}")["handle"]
    one.client.ask(f"close {fd}")
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 8 * MIB
    one.client.ask(f"gem-close {again}")
    wait_for(
        "the shared buffer given back",
        lambda: ledger(one.pod.cgroup_id, gpu.bdf).requested == 0,
    )


def test_a_refused_or_failed_call_leaves_no_reservation(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {65 * MIB}") == "ENOMEM"
    # Within the slice, but the driver itself says no: a flag it does not know.
    arguments = struct.pack("<QQQQ", MIB, 4096, 4, 1 << 63).hex()
    assert one.client.refused(f"ioctl drm 0xc0206440 {arguments}") == "EINVAL"
    row = ledger(one.pod.cgroup_id, gpu.bdf)
    assert (row.requested, row.reserved) == (0, 0)
    one.client.kfd_alloc(gpu, 64 * MIB)


def test_the_books_agree(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    """Ledger = what was asked for; dmem = resident + page tables; KFD and fdinfo by their rules."""
    one = tenant(pods, enforcer, gpu, 256)
    sizes = [MIB, 3 * MIB, 4096, 17 * MIB]
    handles = [one.client.kfd_alloc(gpu, size) for size in sizes]
    gem = [one.client.gem_create(size) for size in (5 * MIB, 8192)]
    for handle in handles:
        one.client.ask(f"map {handle}")
    for at in (one.pod, one.container):
        row = ledger(at.cgroup_id, gpu.bdf)
        assert row.requested == sum(sizes) + 5 * MIB + 8192
        assert row.resident == row.requested
        assert row.page_tables > 0
        current = dmem_current(at.path, gpu.bdf)
        assert current == (row.resident + row.page_tables if has_region(gpu) else None)
    (pid,) = one.container.pids()
    assert kfd_vram(pid, gpu) == sum(sizes)
    # fdinfo counts what lies in the client's address space, its page tables among it.
    assert row.requested <= fdinfo_vram(pid) <= row.requested + row.page_tables
    for handle in handles:
        one.client.ask(f"unmap {handle}")
        one.client.ask(f"kfd-free {handle}")
    for handle in gem:
        one.client.ask(f"gem-close {handle}")
    assert kfd_vram(pid, gpu) == 0
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 0
    gone = nothing_held(one, gpu)
    one.container.finish()
    wait_for("the ledger and dmem at 0", gone)


def fdinfo_vram(pid: int) -> int:
    """VRAM in the DRM clients of a process, in bytes."""
    found, problems = drm.clients(Path("/proc"), [pid])
    assert not problems
    return sum(client.resident or 0 for client in found)
