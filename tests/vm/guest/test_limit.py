# SPDX-License-Identifier: Apache-2.0
"""The limit itself: who is refused, at which byte, with which errno, and who is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from enforcer.host import dmem
from enforcer.model import MIB
from enforcer.plan import headroom
from tests.vm.guest.node import PlainClient, Pods, slice_of
from tests.vm.guest.services import (
    CGROUP,
    Enforcer,
    dmem_current,
    dmem_max,
    gate_limit,
    ledger,
    wait_for,
)

if TYPE_CHECKING:
    from pathlib import Path

    from enforcer.model import Gpu
    from tests.vm.guest.node import Tenant

PAGE = 4096


def tenant(pods: Pods, enforcer: Enforcer, gpu: Gpu, mib: int | None, name: str = "main") -> Tenant:
    """A pod with one container whose slice the enforcer holds by now."""
    pod = pods.pod(f"pod-{len(pods.slices)}")
    one = slice_of(pod, name, gpu, mib)
    pods.slices.append(one)
    enforcer.give(pods.slices)
    started = pods.start(pod, one)
    held(enforcer, started, gpu)
    started.client.open(gpu)
    return started


def held(enforcer: Enforcer, one: Tenant, gpu: Gpu) -> None:
    """Wait until every layer in use holds the pod and the container."""
    share = one.slice.shares[0].vram_bytes
    groups = [one.pod.path, one.container.path]

    gate = enforcer.layers != "dmem"
    counted = enforcer.layers != "gate" and share is not None and has_region(gpu)

    def in_place() -> bool:
        if gate and any(gate_limit(path.stat().st_ino, gpu.bdf) != share for path in groups):
            return False
        return not counted or all(dmem_max(path, gpu.bdf) is not None for path in groups)

    wait_for("the container's cgroup", one.container.path.exists)
    wait_for(f"the slice of {one.pod.name} in every layer", in_place)


def has_region(gpu: Gpu) -> bool:
    """Whether the booted kernel counts this GPU's VRAM in dmem."""
    return f"drm/{gpu.bdf}/vram" in dmem.capacity(CGROUP)


def fill(one: Tenant, command: str, chunk: int) -> int:
    """Allocate chunks until refused with ENOMEM; the bytes that were had."""
    answer = one.client.ask(f"fill {command} {chunk}")
    assert answer["errno"] == "ENOMEM"
    return int(answer["bytes"])


class TestExactlyTheSlice:
    """With the gate, alone or with dmem behind it, the slice is had to the byte and no more."""

    def test_through_kfd(self, gated: Enforcer, pods: Pods, gpu: Gpu) -> None:
        one = tenant(pods, gated, gpu, 4096)
        assert fill(one, f"kfd {gpu.kfd_id}", 256 * MIB) == 4096 * MIB
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} 1") == "ENOMEM"
        assert ledger(one.container.cgroup_id, gpu.bdf).requested == 4096 * MIB
        assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 4096 * MIB

    def test_through_gem(self, gated: Enforcer, pods: Pods, gpu: Gpu) -> None:
        one = tenant(pods, gated, gpu, 4096)
        assert fill(one, "gem", 256 * MIB) == 4096 * MIB
        assert one.client.refused("gem-create 1 vram") == "ENOMEM"

    def test_through_both_down_to_the_last_page(
        self, gated: Enforcer, pods: Pods, gpu: Gpu
    ) -> None:
        one = tenant(pods, gated, gpu, 64)
        one.client.kfd_alloc(gpu, 32 * MIB)
        one.client.gem_create(32 * MIB - 2 * PAGE)
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {3 * PAGE}") == "ENOMEM"
        one.client.kfd_alloc(gpu, PAGE)
        one.client.gem_create(1)
        assert one.client.refused("gem-create 1 vram") == "ENOMEM"
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} 1") == "ENOMEM"
        assert ledger(one.container.cgroup_id, gpu.bdf).requested == 64 * MIB

    def test_what_was_freed_can_be_had_again(self, gated: Enforcer, pods: Pods, gpu: Gpu) -> None:
        one = tenant(pods, gated, gpu, 64)
        for _ in range(3):
            handle = one.client.kfd_alloc(gpu, 64 * MIB)
            assert one.client.refused("gem-create 4096 vram") == "ENOMEM"
            one.client.ask(f"kfd-free {handle}")


def test_the_pods_limit_is_shared_by_its_containers(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    pod = pods.pod("two")
    first = slice_of(pod, "first", gpu, 64, slot=0)
    second = slice_of(pod, "second", gpu, 32, slot=1)
    pods.slices += [first, second]
    enforcer.give(pods.slices)
    tenants = [pods.start(pod, one) for one in (first, second)]
    for one in tenants:
        wait_for("cgroup", one.container.path.exists)
        wait_for(
            f"limit of {one.slice.container}",
            lambda one=one: (  # type: ignore[misc]
                gate_limit(one.container.cgroup_id, gpu.bdf) == one.slice.shares[0].vram_bytes
            ),
        )
        one.client.open(gpu)
    assert gate_limit(pod.cgroup_id, gpu.bdf) == 96 * MIB
    assert fill(tenants[0], f"kfd {gpu.kfd_id}", MIB) == 64 * MIB
    assert fill(tenants[1], "gem", MIB) == 32 * MIB
    assert ledger(pod.cgroup_id, gpu.bdf).requested == 96 * MIB


def test_others_on_the_same_gpu_are_not_touched(
    enforcer: Enforcer, pods: Pods, gpu: Gpu, client_binary: Path
) -> None:
    full = tenant(pods, enforcer, gpu, 64)
    assert fill(full, f"kfd {gpu.kfd_id}", MIB) == 64 * MIB
    neighbour = tenant(pods, enforcer, gpu, 8192)
    assert fill(neighbour, f"kfd {gpu.kfd_id}", 512 * MIB) == 8192 * MIB
    whole = tenant(pods, enforcer, gpu, None)
    whole.client.kfd_alloc(gpu, 16384 * MIB)
    assert ledger(whole.container.cgroup_id, gpu.bdf).requested == 16384 * MIB
    outside = PlainClient(client_binary)
    outside.open(gpu)
    outside.kfd_alloc(gpu, 32768 * MIB)
    outside.gem_create(1024 * MIB)
    outside.finish()
    assert full.client.refused("gem-create 1 vram") == "ENOMEM"


def test_a_gpu_that_is_not_in_the_slice_gives_nothing(
    enforcer: Enforcer, pods: Pods, gpus: list[Gpu]
) -> None:
    one = tenant(pods, enforcer, gpus[0], 64)
    other = gpus[1]
    one.client.ask(f"open render {other.render}")
    one.client.ask(f"acquire {other.kfd_id}")
    assert one.client.refused(f"kfd-alloc {other.kfd_id} 4096") == "ENOMEM"
    assert one.client.refused("gem-create 4096 vram") == "ENOMEM"


@pytest.mark.dmem
class TestDmemAlone:
    """Without the gate the kernel's own counter holds, within the headroom for page tables."""

    def test_kfd_is_refused_within_the_stated_headroom(
        self, dmem_alone: Enforcer, pods: Pods, gpu: Gpu
    ) -> None:
        one = tenant(pods, dmem_alone, gpu, 256)
        had = fill(one, f"kfd {gpu.kfd_id}", MIB)
        assert 256 * MIB <= had <= 256 * MIB + headroom(256 * MIB)
        most = dmem_max(one.container.path, gpu.bdf)
        assert most == 256 * MIB + headroom(256 * MIB)
        current = dmem_current(one.container.path, gpu.bdf)
        assert current is not None
        assert current <= most
