# SPDX-License-Identifier: Apache-2.0
"""The limits outlive the enforcer, and a new one takes up where the old one was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enforcer.model import MIB
from tests.vm.guest.node import Pods, slice_of
from tests.vm.guest.services import (
    CGROUP,
    START_SECONDS,
    Enforcer,
    dmem_max,
    gate_limit,
    ledger,
    wait_for,
)
from tests.vm.guest.test_limit import fill, has_region, held, tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu


def test_a_tenant_stays_refused_while_no_enforcer_runs(
    gated: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, gated, gpu, 64)
    first = one.client.kfd_alloc(gpu, 48 * MIB)
    gated.kill()
    assert fill(one, "gem", MIB) == 16 * MIB
    assert one.client.refused(f"kfd-alloc {gpu.kfd_id} 1") == "ENOMEM"
    one.client.ask(f"kfd-free {first}")
    assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {48 * MIB + 1}") == "ENOMEM"
    one.client.kfd_alloc(gpu, 48 * MIB)
    gated.start()
    assert ledger(one.container.cgroup_id, gpu.bdf).requested == 64 * MIB
    assert one.client.refused("gem-create 1 vram") == "ENOMEM"


def test_a_new_enforcer_takes_up_slices_ledger_and_limits(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    old = tenant(pods, enforcer, gpu, 64)
    old.client.kfd_alloc(gpu, 40 * MIB)
    enforcer.kill()
    # A pod that came while nobody ran.
    pod = pods.pod("late")
    late = slice_of(pod, "main", gpu, 32, slot=3)
    pods.slices.append(late)
    enforcer.give(pods.slices)
    new = pods.start(pod, late)
    # And one that went.
    dead = old.pod.cgroup_id
    old.container.kill()
    enforcer.start()
    held(enforcer, new, gpu)
    new.client.open(gpu)
    assert fill(new, f"kfd {gpu.kfd_id}", MIB) == 32 * MIB
    pods.slices.remove(old.slice)
    enforcer.give(pods.slices)
    old.pod.remove()
    wait_for("the dead pod's limit gone", lambda: gate_limit(dead, gpu.bdf) == "absent")


def test_stopping_in_good_order_leaves_the_limits_in_force(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    assert enforcer.stop() == 0
    assert fill(one, f"kfd {gpu.kfd_id}", MIB) == 64 * MIB
    enforcer.start()


def test_a_second_enforcer_waits_and_takes_over_while_the_limits_hold(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    second = Enforcer(enforcer.state, enforcer.log.parent, "auto", port=9395)
    before = len(enforcer.log.read_text())
    second.spawn()
    wait_for(
        "the second enforcer's word that it waits",
        lambda: "waiting for it to end" in second.log.read_text()[before:],
        START_SECONDS,
    )
    assert fill(one, "gem", MIB) == 64 * MIB
    assert enforcer.stop() == 0
    assert one.client.refused("gem-create 1 vram") == "ENOMEM"
    wait_for("the second enforcer's metrics", second.metrics, START_SECONDS)
    assert one.client.refused("gem-create 1 vram") == "ENOMEM"
    late = tenant(pods, second, gpu, 32)
    assert fill(late, f"kfd {gpu.kfd_id}", MIB) == 32 * MIB
    assert second.stop() == 0
    enforcer.start()


def test_a_checkpoint_of_garbage_changes_no_limit(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    before = len(enforcer.log.read_text())
    path = enforcer.state / "slices.json"
    path.write_text("{ torn")
    wait_for("the problem in the log", lambda: str(path) in enforcer.log.read_text()[before:])
    none = "ringfence_problems 0\n"
    wait_for("it in the metrics", lambda: none not in (enforcer.metrics() or none))
    assert fill(one, f"kfd {gpu.kfd_id}", MIB) == 64 * MIB
    enforcer.give(pods.slices)


def test_unload_leaves_nothing_behind(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    groups = [one.pod.path, one.container.path]
    assert enforcer.stop() == 0
    if has_region(gpu):
        assert None not in [dmem_max(path, gpu.bdf) for path in groups]
    enforcer.unload()
    pins = CGROUP.parent / "bpf"
    assert not [path for path in pins.rglob("*") if "ringfence" in str(path)]
    assert [dmem_max(path, gpu.bdf) for path in groups] == [None, None]
    # More than the slice and dmem's room for page tables, and not spilled to system memory.
    one.client.kfd_alloc(gpu, 128 * MIB)
