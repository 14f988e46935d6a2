# SPDX-License-Identifier: Apache-2.0
"""A slice made smaller than what its container holds.

Up to Linux 7.2 ``dmem.max`` keeps its value then, and the write succeeds; from 7.3 it is taken, and
what is above it is evicted. Which of the two the kernel does is tried, and must be what its release
says. What holds meanwhile, and what is told of it, is asserted for both.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.api.client import Client
from enforcer.cli.explain import ADVICE
from enforcer.model import MIB, Layer, Share, Why
from enforcer.plan import headroom
from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import CGROUP, dmem_current, dmem_max, gate_limit, wait_for
from tests.vm.guest.test_enforcer_sources import told
from tests.vm.guest.test_limit import tenant
from tests.vm.guest.test_views import ringfence

if TYPE_CHECKING:
    from collections.abc import Callable

    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

SLICE: Final = 96 * MIB
LOWERED: Final = 32 * MIB
MOST: Final = LOWERED + headroom(LOWERED)
FIRST: Final = 60 * MIB
SECOND: Final = 20 * MIB
"""With the first more than the smaller slice and its headroom, alone less."""
NOT_TAKEN: Final = f"off: {Why.NOT_TAKEN}"
_SOCKET: Final = Path("/run/ringfence/enforcer.sock")

pytestmark = pytest.mark.dmem


def release() -> tuple[int, int]:
    """The first two numbers of the kernel's release."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def groups(one: Tenant) -> list[Path]:
    return [one.pod.path, one.container.path]


def limits(one: Tenant, gpu: Gpu) -> list[int | None]:
    """What ``dmem.max`` of the pod and of the container reads."""
    return [dmem_max(path, gpu.bdf) for path in groups(one)]


def charged(one: Tenant, gpu: Gpu) -> list[int | None]:
    return [dmem_current(path, gpu.bdf) for path in groups(one)]


def lower(enforcer: Enforcer, pods: Pods, one: Tenant, gpu: Gpu) -> None:
    """Give the container's slice anew, smaller."""
    smaller = replace(one.slice, shares=(Share(gpu.bdf, LOWERED),))
    pods.slices[pods.slices.index(one.slice)] = smaller
    enforcer.give(pods.slices)


def layers(one: Tenant) -> dict[str, dict[Layer, str]]:
    """What the snapshot says of the pod ("") and of its container with the smaller slice."""
    with Client(_SOCKET) as client:
        snapshot = client.snapshot(60)
    return {
        row.container: {state.layer: str(state) for state in row.layers}
        for row in snapshot.containers
        if row.pod_uid == one.pod.uid and row.limit == LOWERED
    }


def are(one: Tenant, layer: Layer, state: str) -> Callable[[], bool]:
    """Whether a layer of the pod and of the container is in this state."""
    return lambda: [found.get(layer) for found in layers(one).values()] == [state] * 2


def holds_both(pods: Pods, enforcer: Enforcer, gpu: Gpu) -> tuple[Tenant, str]:
    """A tenant with both buffers in its larger slice, and the handle of the first."""
    one = tenant(pods, enforcer, gpu, SLICE // MIB)
    first = one.client.kfd_alloc(gpu, FIRST)
    one.client.kfd_alloc(gpu, SECOND)
    assert all(size is not None and size > MOST for size in charged(one, gpu))
    return one, first


@pytest.fixture(scope="module")
def taken(client_binary: Path, gpu: Gpu) -> bool:
    """Whether this kernel takes a limit below what is in use, by trying."""
    (CGROUP / "cgroup.subtree_control").write_text("+dmem")
    box = CGROUP / "lowered"
    box.mkdir()
    client = PlainClient(client_binary)
    try:
        (box / "cgroup.procs").write_text(str(client.process.pid))
        client.ask(f"open render {gpu.render}")
        client.gem_create(8 * MIB)
        assert (dmem_current(box, gpu.bdf) or 0) >= 8 * MIB
        (box / "dmem.max").write_text(f"drm/{gpu.bdf}/vram {MIB}\n")
        found = dmem_max(box, gpu.bdf)
    finally:
        client.finish()
        box.rmdir()
    assert found in (MIB, None)
    assert (found == MIB) == (release() >= (7, 3))
    return found == MIB


def test_the_gate_refuses_and_dmem_follows_as_memory_is_freed(
    enforcer: Enforcer, pods: Pods, gpu: Gpu, *, taken: bool
) -> None:
    one, first = holds_both(pods, enforcer, gpu)
    lower(enforcer, pods, one, gpu)
    wait_for("dmem's state", are(one, Layer.DMEM, "on" if taken else NOT_TAKEN))
    wait_for("the gate's state", are(one, Layer.GATE, "on"))
    assert [gate_limit(path.stat().st_ino, gpu.bdf) for path in groups(one)] == [LOWERED] * 2
    # Where it is not taken, what is in use is the most there can be.
    assert limits(one, gpu) == ([MOST, MOST] if taken else charged(one, gpu))
    for command in (f"kfd-alloc {gpu.kfd_id} 1", "gem-create 1 vram"):
        assert one.client.refused(command) == "ENOMEM"

    text = ringfence(enforcer, "explain", f"{one.pod.namespace}/{one.pod.name}")
    by = "gate and dmem" if taken else "gate"
    assert re.findall(r"is held to its slice by (.*)", text) == [by, by]
    assert (ADVICE[Why.NOT_TAKEN] in text) != taken
    reading = f"wrote {MOST}, reads {charged(one, gpu)[1]}"
    assert (f"{one.container.path}/dmem.max: {reading}" in enforcer.log.read_text()) != taken
    state = f'pod="{one.pod.name}",layer="dmem",reason="{"" if taken else Why.NOT_TAKEN}"'
    assert f"{state}}} {int(taken)}\n" in (enforcer.metrics() or "")

    one.client.ask(f"kfd-free {first}")
    wait_for("the limit in dmem", lambda: limits(one, gpu) == [MOST, MOST])
    wait_for("dmem's state", are(one, Layer.DMEM, "on"))
    one.client.kfd_alloc(gpu, LOWERED - SECOND)
    assert one.client.refused(f"kfd-alloc {gpu.kfd_id} 1") == "ENOMEM"


def test_dmem_alone_lets_it_grow_no_further_and_says_that_it_is_not_held(
    dmem_alone: Enforcer, pods: Pods, gpu: Gpu, *, taken: bool
) -> None:
    one, first = holds_both(pods, dmem_alone, gpu)
    lower(dmem_alone, pods, one, gpu)
    wait_for("dmem's state", are(one, Layer.DMEM, "on" if taken else NOT_TAKEN))
    name = f"{one.pod.namespace}/{one.pod.name}"
    text = ringfence(dmem_alone, "explain", name, status=0 if taken else 3)
    assert text.count("is NOT held") == (0 if taken else 2)
    wait_for("who refuses", lambda: f"refuse {'kernel' if taken else 'hook'}\n" in told(one))
    if not taken:
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {MIB}") == "ENOMEM"

    # What is not taken while nobody writes it is taken by who comes next.
    before = limits(one, gpu)
    assert before == ([MOST, MOST] if taken else charged(one, gpu))
    dmem_alone.kill()
    one.client.ask(f"kfd-free {first}")
    assert limits(one, gpu) == before
    dmem_alone.start()
    wait_for("the limit in dmem", lambda: limits(one, gpu) == [MOST, MOST])
    wait_for("dmem's state", are(one, Layer.DMEM, "on"))
    wait_for("who refuses", lambda: "refuse kernel\n" in told(one))
