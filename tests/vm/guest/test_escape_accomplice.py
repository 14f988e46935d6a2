# SPDX-License-Identifier: Apache-2.0
"""An accomplice of one who is killed for switching arguments, and who keeps what was made.

It shares the killed process's open file, or its memory, so that what was made lives on; its
container is ended by the enforcer.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bpf import loader
from bpf.decode import Counter
from enforcer.model import MIB
from tests.vm.guest import truth
from tests.vm.guest.caller import DOMAIN_VRAM, GEM_CREATE, GEM_OP, KFD_ALLOC, SET_PLACEMENT
from tests.vm.guest.hostile import (
    KFD_ALLOC_SHORTER,
    gem_arguments,
    kfd_arguments,
    kfd_arguments_shorter,
)
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import gate_limit, is_module, ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

SLICE: Final = 64 * MIB
BIG: Final = SLICE + 4 * MIB
"""Within the room that dmem leaves for page tables: it does not refuse this."""
_FAULTS = Path("/proc/sys/vm/unprivileged_userfaultfd")


@pytest.fixture(autouse=True)
def faults_for_all() -> Iterator[None]:
    """What a container may do on many a node: serve the kernel's page faults."""
    before = _FAULTS.read_text()
    _FAULTS.write_text("1")
    yield
    _FAULTS.write_text(before)


def gem(_gpus: list[Gpu], _one: Tenant) -> str:
    """The child that serves the fault has the killed one's DRM file."""
    before, after = gem_arguments(4096), gem_arguments(BIG)
    return f"torn drm {GEM_CREATE:#x} 8 {before.hex()} {after.hex()} mem"


def kfd(gpus: list[Gpu], _one: Tenant) -> str:
    """It has the killed one's memory, by which KFD knows a process."""
    number = gpus[0].kfd_id
    before, after = (kfd_arguments(number, size) for size in (4096, BIG))
    return f"own {number} torn kfd {KFD_ALLOC:#x} 16 {before.hex()} {after.hex()} vm"


def placement(_gpus: list[Gpu], one: Tenant) -> str:
    """A system buffer that is to move into VRAM at its next use."""
    handle = int(one.client.gem_create(BIG, "gtt"))
    before, after = (
        struct.pack("=IIQII", handle, op, DOMAIN_VRAM, 0, 0) for op in (0, SET_PLACEMENT)
    )
    return f"torn drm {GEM_OP:#x} 8 {before.hex()} {after.hex()} mem"


def elsewhere(gpus: list[Gpu], one: Tenant) -> str:
    """On the second GPU, of which the container has no slice."""
    one.client.ask(f"open render {gpus[1].render}")
    before, after = (kfd_arguments_shorter(gpu.kfd_id, SLICE) for gpu in gpus)
    words = f"torn kfd {KFD_ALLOC_SHORTER:#x} 36 {before.hex()} {after.hex()} vm"
    return f"own {gpus[1].kfd_id} {words}"


def overruns(enforcer: Enforcer) -> list[str]:
    """What it has said of containers above their limit by a trick."""
    lines = enforcer.log.read_text().splitlines()
    return [line for line in lines if "above its limit after switched arguments" in line]


@pytest.mark.parametrize("trick", [gem, kfd, placement, elsewhere])
def test_the_container_ends_and_what_it_had_comes_back(
    enforcer: Enforcer,
    pods: Pods,
    gpus: list[Gpu],
    trick: Callable[[list[Gpu], Tenant], str],
) -> None:
    gpu, other = gpus
    one = tenant(pods, enforcer, gpu, SLICE // MIB)
    neighbour = tenant(pods, enforcer, gpu, SLICE // MIB, "beside")
    neighbour.client.gem_create(SLICE)
    known = len(overruns(enforcer))
    if not is_module():
        # The gate does not wait for the fault, so the driver never reads what it is served with.
        assert one.client.refused(f"fork {trick(gpus, one)}") == "ENOMEM"
        assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 0
        assert truth.buffers(gpu.bdf) == SLICE
        return
    # In a child: were it the container's first process, all others would go with it.
    with suppress(AssertionError, BrokenPipeError):
        one.client.refused(f"fork {trick(gpus, one)}")
    assert one.container.process.wait(timeout=60) != 0
    wait_for("all given back", lambda: ledger(one.pod.cgroup_id, gpu.bdf).requested == 0, 30)
    wait_for("the driver without it", lambda: truth.buffers(gpu.bdf) == SLICE, 30)
    wait_for("the other GPU without it", lambda: truth.buffers(other.bdf) == 0, 30)
    (told,) = overruns(enforcer)[known:]
    where = other if trick is elsewhere else gpu
    assert f"{one.pod.namespace}/{one.pod.name} on {where.bdf}" in told
    assert neighbour.client.refused("gem-create 1 vram") == "ENOMEM"


def test_an_event_that_an_enforcer_took_with_it_spares_nobody(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    if not is_module():
        return  # refused at once: the cases above
    one = tenant(pods, enforcer, gpu, SLICE // MIB)
    neighbour = tenant(pods, enforcer, gpu, SLICE // MIB, "beside")
    neighbour.client.gem_create(SLICE)
    enforcer.kill()
    with suppress(AssertionError, BrokenPipeError):
        one.client.refused(f"fork {gem([gpu], one)}")
    with loader.open_maps() as maps:
        wait_for(
            "the event", lambda: any(it.reason is Counter.SWITCHED_KILLED for it in maps.events())
        )
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == BIG
    enforcer.start()
    assert one.container.process.wait(timeout=60) != 0
    wait_for("the driver without it", lambda: truth.buffers(gpu.bdf) == SLICE, 30)
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 0
    assert neighbour.client.refused("gem-create 1 vram") == "ENOMEM"


def test_a_sibling_that_keeps_what_was_made_ends_with_the_pod(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    if not is_module():
        return  # refused at once: the cases above
    one = tenant(pods, enforcer, gpu, SLICE // MIB)
    slot = slice_of(one.pod, "sibling", gpu, SLICE // MIB, slot=1)
    pods.slices.append(slot)
    enforcer.give(pods.slices)
    sibling = pods.start(one.pod, slot)
    wait_for("the sibling's cgroup", sibling.container.path.exists)
    groups = {sibling.container.cgroup_id: SLICE, one.pod.cgroup_id: 2 * SLICE}
    wait_for(
        "both slices",
        lambda: all(gate_limit(cgroup, gpu.bdf) == size for cgroup, size in groups.items()),
    )
    sibling.client.open(gpu)
    sibling.client.gem_create(SLICE)
    neighbour = tenant(pods, enforcer, gpu, SLICE // MIB, "beside")
    neighbour.client.gem_create(SLICE)
    known = len(overruns(enforcer))
    shared = one.client.ask(f"open render {gpu.render}")["fd"]
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(sibling.client.ask, "recv kept")
        one.client.ask(f"send kept {shared}")
        received.result(60)
    with suppress(AssertionError, BrokenPipeError):
        one.client.refused(f"fork {gem([gpu], one)}")
    for container in (one.container, sibling.container):
        assert container.process.wait(timeout=60) != 0
    wait_for("the driver without the pod's", lambda: truth.buffers(gpu.bdf) == SLICE, 30)
    assert ledger(one.pod.cgroup_id, gpu.bdf).requested == 0
    assert len(overruns(enforcer)[known:]) == 2
    assert neighbour.client.refused("gem-create 1 vram") == "ENOMEM"
