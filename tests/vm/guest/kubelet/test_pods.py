# SPDX-License-Identifier: Apache-2.0
"""Pods that a real kubelet admits, starts and takes down, and what holds them meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deviceplugin.codec import (
    BIND_PHASE,
    CU_ALLOCATED,
    PHASE_FAILED,
    PHASE_SUCCESS,
    TO_ALLOCATE,
    decode_cus,
    decode_devices,
)
from enforcer.model import MIB
from tests.vm.guest.kubelet.cluster import (
    NODE,
    RESOURCE,
    Talk,
    container,
    eventually,
    is_held,
    leaves_nothing,
)
from tests.vm.guest.services import ledger

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.kubelet.cluster import Cluster


def test_kubelet_offers_what_the_plugin_has(cluster: Cluster, gpus: list[Gpu]) -> None:
    slots = 10 * len(gpus)
    assert cluster.api.node(NODE)["status"]["capacity"][RESOURCE] == str(slots)
    assert cluster.allocatable() == slots
    assert len(cluster.registered()) == len(gpus)


def test_a_pod_gets_the_gpu_the_scheduler_chose_and_no_byte_more(
    cluster: Cluster, gpus: list[Gpu]
) -> None:
    # By itself kubelet takes slots of any GPU.
    gpu = gpus[-1]
    join = f"'open render {gpu.render}' 'open kfd' 'acquire {gpu.kfd_id}'"
    first = f"gpuclient {join} 'fill kfd {gpu.kfd_id} {MIB}' >/talk/first"
    pod = cluster.admitted(
        "held", cluster.share(len(gpus) - 1, 96, 16), container("main", 1, first)
    )
    one = cluster.running(pod)

    [device_id] = cluster.devices()["default", "held"]["main"]
    assert device_id.startswith(f"{gpu.bdf}#")
    [given] = cluster.slices()
    assert (given.device_ids, given.pod_uid) == ((device_id,), pod["metadata"]["uid"])
    assert [share.vram_bytes for share in given.shares] == [96 * MIB]
    assert one.environment()["HSA_CU_MASK"] == "0:0-15"

    with Talk("held", "main") as client:
        # What the container's first program was told, before anybody could look.
        *_, filled = cluster.said("held", "main", "first")
        assert filled.split()[-3:] == [f"bytes={96 * MIB}", "count=96", "errno=ENOMEM"]
        is_held(one, gpu, 96 * MIB)
        client.open(gpu)
        assert int(client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
        assert client.refused(f"kfd-alloc {gpu.kfd_id} 4096") == "ENOMEM"
        assert client.refused("gem-create 4096 vram") == "ENOMEM"
        assert ledger(one.pod_cgroup_id, gpu.bdf).requested == 96 * MIB

        eventually("the scheduler's lock released", cluster.unlocked)
        annotations = cluster.annotations("held")
        assert annotations[BIND_PHASE] == PHASE_SUCCESS
        assert not any(decode_devices(annotations[TO_ALLOCATE]))
        assert "0-15" in annotations[CU_ALLOCATED]
        # Taken down while it holds all of it.
        leaves_nothing(cluster, one, gpu)


def test_two_pods_share_one_gpu_and_neither_takes_of_the_other(cluster: Cluster, gpu: Gpu) -> None:
    small = cluster.running(cluster.admitted("small", cluster.share(0, 64, 16)))
    large = cluster.running(cluster.admitted("large", cluster.share(0, 160, 32)))
    masks = [one.environment()["HSA_CU_MASK"].removeprefix("0:") for one in (small, large)]
    cus = [decode_cus(mask, gpu.cu_count) for mask in masks]
    assert [len(mask) for mask in cus] == [16, 32]
    assert not cus[0] & cus[1]
    with Talk("small", "main") as one, Talk("large", "main") as other:
        one.open(gpu)
        other.open(gpu)
        assert int(one.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 64 * MIB
        assert int(other.ask(f"fill gem {MIB}")["bytes"]) == 160 * MIB
        is_held(small, gpu, 64 * MIB)
        is_held(large, gpu, 160 * MIB)
        cluster.end("small")
        eventually("the small slice released", lambda: len(cluster.slices()) == 1)
        is_held(large, gpu, 160 * MIB)
        # What the small one left is given again, and nothing of the large one's.
        again = cluster.running(cluster.admitted("again", cluster.share(0, 32, 16)))
        assert again.environment()["HSA_CU_MASK"] == f"0:{masks[0]}"
        assert ledger(large.pod_cgroup_id, gpu.bdf).requested == 160 * MIB


def test_each_container_of_a_pod_has_its_own_slice(cluster: Cluster, gpus: list[Gpu]) -> None:
    ids = cluster.registered()
    init, a, b = (
        f"{ids[gpu]['id']},{ids[gpu]['type']},{mib},16:;"
        for gpu, mib in ((1, 32), (1, 48), (0, 80))
    )
    pod = cluster.admitted(
        "several",
        f"{init}{a}{b}",
        container("a", 1),
        container("b", 1),
        init=(container("init", 1) | {"command": ["/bin/true"]},),
    )
    one, other = cluster.running(pod, "a"), cluster.running(pod, "b")
    held = cluster.devices()["default", "several"]
    assert [held[name][0].partition("#")[0] for name in "ab"] == [gpus[1].bdf, gpus[0].bdf]
    is_held(one, gpus[1], 48 * MIB)
    is_held(other, gpus[0], 80 * MIB)
    with Talk("several", "a") as client:
        client.open(gpus[1])
        assert int(client.ask(f"fill kfd {gpus[1].kfd_id} {MIB}")["bytes"]) == 48 * MIB


def test_a_pod_that_cannot_be_served_fails_with_the_reason(cluster: Cluster) -> None:
    cluster.bind("bad", "no-such-gpu,AMD Instinct MI300X,96,16:;")

    def failed() -> dict[str, str] | None:
        pod = cluster.api.pod("bad")
        assert pod is not None
        return pod["status"] if pod["status"]["phase"] == "Failed" else None

    status = eventually("its failure", failed)
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "no-such-gpu" in status["message"]
    eventually("the scheduler's lock released", cluster.unlocked)
    assert cluster.annotations("bad")[BIND_PHASE] == PHASE_FAILED
    assert cluster.slices() == []
