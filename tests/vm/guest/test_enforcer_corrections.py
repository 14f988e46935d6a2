# SPDX-License-Identifier: Apache-2.0
"""A ledger that missed the end of buffers is corrected by what the kernel counts itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from bpf import loader
from enforcer.api.client import Client
from enforcer.model import MIB
from tests.vm.guest.gatenode import OBJECTS, held_up
from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from bpf.decode import LedgerUsage
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

_SOCKET = Path("/run/ringfence/enforcer.sock")


def test_what_no_process_has_and_no_vram_holds_is_taken_off(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    lost, lives = (tenant(pods, enforcer, gpu, 64, name) for name in ("lost", "lives"))
    gone = lost.container.cgroup_id
    lost.client.kfd_alloc(gpu, 48 * MIB)
    lives.client.kfd_alloc(gpu, 32 * MIB)
    enforcer.kill()
    # The end of its buffers is seen by nobody.
    loader.load_ledger(OBJECTS / "ledger.bpf.o").detach()
    lost.container.kill()
    assert ledger(lost.pod.cgroup_id, gpu.bdf).resident == 48 * MIB
    enforcer.start()
    wait_for(
        "the correction",
        lambda: ledger(lost.pod.cgroup_id, gpu.bdf).requested == 0,
        90,
    )
    # With the one page table of an open file.
    line = f"cgroup {gone} on {gpu.bdf}: the ledger held {48 * MIB + 4096} bytes for no process"
    assert line in enforcer.log.read_text()
    with Client(_SOCKET) as client:
        wait_for("its count", lambda: dict(client.snapshot(60).counters)["forgotten"] > 0)
    assert ledger(lives.pod.cgroup_id, gpu.bdf).requested == 32 * MIB
    assert ledger(lives.container.cgroup_id, gpu.bdf).resident == 32 * MIB
    lives.client.kfd_alloc(gpu, 32 * MIB)
    assert lives.client.refused(f"kfd-alloc {gpu.kfd_id} 4096") == "ENOMEM"


def test_a_call_that_nobody_saw_the_end_of_goes_with_its_container_unless_its_buffer_lives_on(
    enforcer: Enforcer, pods: Pods, gpu: Gpu, client_binary: Path
) -> None:
    sizes = {"lost": 60 * MIB, "kept": 48 * MIB}
    lost, kept, lives = (tenant(pods, enforcer, gpu, 64, name) for name in (*sizes, "lives"))
    lives.client.kfd_alloc(gpu, 32 * MIB)
    enforcer.kill()
    with ThreadPoolExecutor(2) as pool, held_up(gpu):
        made = [
            pool.submit(one.client.kfd_alloc, gpu, sizes[one.slice.container])
            for one in (lost, kept)
        ]
        wait_for(
            "both calls to be let pass",
            lambda: all(held(one, gpu).reserved > 0 for one in (lost, kept)),
        )
        # None of these programs runs at the end of what is under way.
        loader.load_ledger(OBJECTS / "ledger.bpf.o")
    handles = [call.result() for call in made]
    for one in (lost, kept):
        assert one.client.refused("kfd-version") == ""
        usage = held(one, gpu)
        assert (usage.requested, usage.reserved) == (sizes[one.slice.container], 0)
    shared = kept.client.ask(f"kfd-export {handles[1]}")["fd"]
    keeper = PlainClient(client_binary)
    (pid,) = (kept.container.path / "cgroup.procs").read_text().split()
    keeper.ask(f"pidfd-getfd {pid} {shared}")
    for one in (lost, kept):
        one.container.kill()
    enforcer.start()
    wait_for("the correction", lambda: held(lost, gpu).requested == 0, 90)
    # As many looks found room for this one.
    assert held(kept, gpu).requested == sizes["kept"]
    assert held(lives, gpu).requested == 32 * MIB
    keeper.finish()
    wait_for("the second correction", lambda: held(kept, gpu).requested == 0, 90)


def held(one: Tenant, gpu: Gpu) -> LedgerUsage:
    return ledger(one.pod.cgroup_id, gpu.bdf)
