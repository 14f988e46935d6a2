# SPDX-License-Identifier: Apache-2.0
"""A slice's whole way: annotation, Allocate, PreStartContainer, refusal, metrics, end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB
from enforcer.slices import FILE, read_checkpoint
from tests.contract.peers.kubelet import AdmissionError
from tests.vm.guest.cluster import NODE, Cluster
from tests.vm.guest.services import gate_limit, ledger, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch


@pytest.fixture(scope="module")
def cluster(
    switch: Switch,
    tmp_path_factory: pytest.TempPathFactory,
    logs: Path,
    client_binary: Path,
) -> Iterator[Cluster]:
    switch.end()
    with Cluster(tmp_path_factory.mktemp("cluster"), logs, client_binary) as made:
        yield made
    made.enforcer.unload()


def test_a_scheduled_pod_is_held_to_its_slice_and_leaves_nothing(
    cluster: Cluster, gpu: Gpu
) -> None:
    item = cluster.bind("held", cluster.share(gpu=0, mib=96, cus=16))
    one = cluster.run(item)
    envs = one.admitted.response.envs
    assert envs["HSA_CU_MASK"] == "0:0-15"
    assert all(device.startswith(f"{gpu.bdf}#") for device in one.admitted.devices_ids)
    slices, problems = read_checkpoint(cluster.enforcer.state / FILE)
    assert not problems
    assert [share.vram_bytes for one in slices for share in one.shares] == [96 * MIB]
    # Held before the container's first instruction: PreStartContainer said so.
    assert gate_limit(one.pod.cgroup_id, gpu.bdf) == 96 * MIB
    wait_for(
        "the container's own limit",
        lambda: gate_limit(one.container.cgroup_id, gpu.bdf) == 96 * MIB,
    )
    one.client.open(gpu)
    assert int(one.client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
    labels = 'container="main"'
    wait_for("used and limit in the metrics", lambda: _has(cluster, labels, 96 * MIB))
    wait_for("the scheduler's lock released", lambda: _unlocked(cluster))
    assert cluster.api.annotations("default", "held")["hami.io/bind-phase"] == "success"
    pod_cgroup = one.pod.cgroup_id
    one.container.kill()
    wait_for("all of it given back", lambda: ledger(pod_cgroup, gpu.bdf).empty)
    cluster.kubelet.remove(one.pod.uid)
    cluster.api.store.delete("pods", ("default", "held"))
    one.pod.remove()
    wait_for("the slice released", lambda: read_checkpoint(cluster.enforcer.state / FILE)[0] == [])
    wait_for("its limit gone", lambda: gate_limit(pod_cgroup, gpu.bdf) == "absent")


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ("garbage;", "amd-devices-to-allocate"),
        ("no-such-gpu,AMD Instinct MI300X,96,16:;", "no-such-gpu"),
        ("{id},AMD Instinct MI300X,96,16:{other},AMD Instinct MI300X,96,16:;", "2"),
    ],
    ids=["unparsable", "unknown GPU", "another count"],
)
def test_bad_annotations_are_refused_by_name_and_give_nothing(
    cluster: Cluster, devices: str, named: str
) -> None:
    first, second = cluster.registered()[:2]
    item = cluster.bind("bad", devices.format(id=first["id"], other=second["id"]))
    with pytest.raises(AdmissionError) as refused:
        cluster.kubelet.admit(item)
    assert "default/bad" in str(refused.value)
    assert named in str(refused.value)
    assert read_checkpoint(cluster.enforcer.state / FILE)[0] == []
    wait_for("the scheduler's lock released", lambda: _unlocked(cluster))
    cluster.api.store.delete("pods", ("default", "bad"))


def _has(cluster: Cluster, labels: str, value: int) -> bool:
    lines = [
        line
        for line in (cluster.enforcer.metrics() or "").splitlines()
        if line.startswith("hami_vgpu_memory_") and labels in line
    ]
    return [float(line.split()[-1]) for line in lines] == [value, value]


def _unlocked(cluster: Cluster) -> bool:
    return "hami.io/mutex.lock" not in cluster.api.node_annotations(NODE)
