# SPDX-License-Identifier: Apache-2.0
"""What outlives the container that asked for it: shown with its pod, and when that is gone, too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from enforcer.model import MIB
from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import wait_for
from tests.vm.guest.test_limit import tenant
from tests.vm.guest.test_views import ringfence

if TYPE_CHECKING:
    from pathlib import Path

    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer


def of_pod(enforcer: Enforcer, one: Tenant, gpu: Gpu) -> int | None:
    """The pod's orphaned bytes in the metrics; None where there is no series."""
    labels = rf'container="",device="{gpu.bdf}",namespace="[^"]+",pod="{one.pod.name}"'
    return _value(enforcer, f"ringfence_vram_orphaned_bytes{{{labels}}}")


def of_node(enforcer: Enforcer, gpu: Gpu) -> int | None:
    """Those of pods that are gone."""
    return _value(enforcer, f'ringfence_gpu_vram_orphaned_bytes{{device="{gpu.bdf}"}}')


def _value(enforcer: Enforcer, series: str) -> int | None:
    found = re.search(rf"^{series} (\d+)$", enforcer.metrics() or "", re.MULTILINE)
    return None if found is None else int(found[1])


def test_a_buffer_that_somebody_keeps_is_shown_with_its_pod_and_then_on_the_node(
    enforcer: Enforcer, pods: Pods, gpu: Gpu, client_binary: Path
) -> None:
    one, other = (tenant(pods, enforcer, gpu, 64, name) for name in ("ends", "lives"))
    other.client.kfd_alloc(gpu, 16 * MIB)
    shared = one.client.ask(f"kfd-export {one.client.kfd_alloc(gpu, 48 * MIB)}")["fd"]
    one.client.kfd_alloc(gpu, 8 * MIB)
    keeper = PlainClient(client_binary)
    (pid,) = (one.container.path / "cgroup.procs").read_text().split()
    keeper.ask(f"pidfd-getfd {pid} {shared}")
    wait_for("the pod's row", lambda: of_pod(enforcer, one, gpu) == 0)
    one.container.kill()
    wait_for("the orphan with its pod", lambda: of_pod(enforcer, one, gpu) == 48 * MIB)
    assert (of_pod(enforcer, other, gpu), of_node(enforcer, gpu)) == (0, 0)

    # Whoever never saw the container alive: the command without an enforcer, and the next one.
    enforcer.kill()
    told = ringfence(enforcer, "explain", f"default/{one.pod.name}")
    assert "the enforcer was not asked" in told
    assert f"orphaned   {48 * MIB} bytes" in told
    enforcer.start()
    wait_for("the same without a memory", lambda: of_pod(enforcer, one, gpu) == 48 * MIB)

    one.pod.remove()
    pods.slices.remove(one.slice)
    enforcer.give(pods.slices)
    wait_for("the orphan on the node", lambda: of_node(enforcer, gpu) == 48 * MIB)
    assert (of_pod(enforcer, one, gpu), of_pod(enforcer, other, gpu)) == (None, 0)
    keeper.finish()
    wait_for("its end", lambda: of_node(enforcer, gpu) == 0)
