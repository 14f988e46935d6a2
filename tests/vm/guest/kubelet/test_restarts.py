# SPDX-License-Identifier: Apache-2.0
"""What a killed container, kubelet or plugin changes for pods of a real kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enforcer.model import MIB
from tests.vm.guest.kubelet.cluster import Talk, eventually, is_held, leaves_nothing
from tests.vm.guest.services import ledger

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.kubelet.cluster import Cluster


def test_a_killed_container_starts_again_with_the_slice_it_had(cluster: Cluster, gpu: Gpu) -> None:
    pod = cluster.admitted("again", cluster.share(0, 96, 16))
    one = cluster.running(pod)
    [given] = cluster.slices()
    with Talk("again", "main") as client:
        client.open(gpu)
        client.ask(f"fill kfd {gpu.kfd_id} {MIB}")
        one.kill()
    other = cluster.running(pod, other_than=one.id)
    # No Allocate comes for it: the slice is the one it had, and is held before it starts.
    assert cluster.slices() == [given]
    is_held(other, gpu, 96 * MIB)
    with Talk("again", "main") as client:
        client.open(gpu)
        assert int(client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
    leaves_nothing(cluster, other, gpu)


def test_a_killed_kubelet_finds_plugin_and_pods_again(cluster: Cluster, gpu: Gpu) -> None:
    pod = cluster.admitted("stays", cluster.share(0, 96, 16))
    one = cluster.running(pod)
    slots = cluster.allocatable()
    held = cluster.devices()
    with Talk("stays", "main") as client:
        client.open(gpu)
        cluster.kubelet.kill()
        assert int(client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
        cluster.kubelet.start()
        eventually("kubelet's record of devices", lambda: cluster.devices() == held)
        other = cluster.running(cluster.admitted("later", cluster.share(0, 64, 16)))
        is_held(other, gpu, 64 * MIB)
        eventually("all slots on the node", lambda: cluster.allocatable() == slots)
        # It is the same container: nobody restarted it, and it has what it had.
        assert cluster.running(pod).id == one.id
        is_held(one, gpu, 96 * MIB)
        assert client.refused(f"kfd-alloc {gpu.kfd_id} 4096") == "ENOMEM"
    leaves_nothing(cluster, one, gpu)


def test_a_killed_plugin_changes_nothing_for_pods_and_releases_what_went(
    cluster: Cluster, gpu: Gpu
) -> None:
    pods, masks = {}, {}
    for name in ("stays", "goes"):
        pods[name] = cluster.running(cluster.admitted(name, cluster.share(0, 64, 16)))
        masks[name] = pods[name].environment()["HSA_CU_MASK"]
    cluster.plugin.kill()
    eventually("no GPU to give without a plugin", lambda: cluster.allocatable() == 0)
    cluster.end("goes")
    is_held(pods["stays"], gpu, 64 * MIB)
    assert {one.pod for one in cluster.slices()} == {"stays", "goes"}
    cluster.plugin.spawn()
    cluster.wait_offered()
    eventually(
        "the slice of the pod that went released",
        lambda: {one.pod for one in cluster.slices()} == {"stays"},
    )
    later = cluster.running(cluster.admitted("later", cluster.share(0, 32, 16)))
    assert later.environment()["HSA_CU_MASK"] == masks["goes"] != masks["stays"]
    assert ledger(later.pod_cgroup_id, gpu.bdf).empty
    is_held(later, gpu, 32 * MIB)
    is_held(pods["stays"], gpu, 64 * MIB)
