# SPDX-License-Identifier: Apache-2.0
"""The terms on which GPUs are offered: no scheduler, partitions, names, what the node overrides."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB, Share
from tests.contract.conftest import NODE, REGISTER, RESOURCE, eventually, running_bench
from tests.contract.peers import hami
from tests.contract.peers.kubelet import AdmissionError
from tests.testbed.trees import GpuSpec, NodeSpec, PartitionSpec, write_sys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contract.conftest import Bench

BDF, OTHER = "0000:05:00.0", "0000:65:00.0"
CPX = "amd.com/cpx_nps4"


def running(bench: Bench, name: str, *containers: hami.Json) -> hami.Json:
    """A pod of a plain cluster that runs on the node: nobody wrote an annotation on it."""
    pod = hami.pod(name, *(containers or (hami.container("app", 1),)))
    pod["spec"]["nodeName"] = NODE
    pod["status"] = {"phase": "Running", "startTime": "2026-01-02T03:04:05Z"}
    return bench.api.put_pod(pod)


@pytest.fixture
def partitioned(short_path: Path) -> Iterator[Bench]:
    """A node with one GPU in CPX mode, NPS4, and one in no partition mode at all."""
    parts = tuple(
        PartitionSpec(100 + n, card=2 + n, render=130 + n, vram=24 << 30) for n in range(7)
    )
    split = GpuSpec(
        BDF,
        kfd_id=99,
        card=0,
        render=128,
        vram=192 << 30,
        gfx=90402,
        cus=304,
        xccs=8,
        device_id=0x74A1,
        unique_id=0x8EFF74B5801BB564,
        product_name="AMD Instinct MI300X",
        compute_partition="CPX",
        memory_partition="NPS4",
        partitions=parts,
    )
    whole = GpuSpec(OTHER, kfd_id=98, card=1, render=129, unique_id=77, vram=64 << 30)
    with running_bench(short_path, ()) as one:
        write_sys(short_path / "sys", NodeSpec((split, whole)))
        yield one


def test_without_a_scheduler_kubelet_hands_out_whole_gpus(bench: Bench) -> None:
    bench.start("--scheduler=none", "--split-count=4")
    assert bench.kubelet.wait_devices(RESOURCE).keys() == {f"{BDF}#0", f"{OTHER}#0"}
    pod = running(bench, "one", hami.container("app", 2))

    got = bench.admit(pod)["app"]

    assert got.allocate_seconds < 3
    assert set(got.response.envs) == {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
    assert got.response.mounts == []
    assert len(got.response.devices) == 5
    bench.kubelet.start_container(pod["metadata"]["uid"], "app")
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        bench.admit(running(bench, "two"))
    assert REGISTER not in bench.api.node_annotations(NODE)
    assert bench.requests("PATCH", "") == []


def test_without_a_scheduler_what_runs_is_known_to_the_enforcer(bench: Bench) -> None:
    bench.start("--scheduler=none")
    pod = running(bench, "one")
    got = bench.admit(pod)["app"]
    eventually(lambda: len(bench.slices) == 1)
    (item,) = bench.slices
    assert (item.pod_uid, item.container) == (pod["metadata"]["uid"], "app")
    assert item.shares == (Share(got.devices_ids[0].partition("#")[0], None),)
    bench.end(pod)
    eventually(lambda: bench.slices == [], timeout=20)


def test_a_plain_cluster_is_served_while_the_api_server_is_away(bench: Bench) -> None:
    bench.api.faults.away = True
    bench.start("--scheduler=none")
    pod = hami.pod("one", hami.container("app", 1), uid="a-uid")
    assert bench.admit(pod)["app"].allocate_seconds < 3


def test_partitions_are_given_by_their_own_ids(partitioned: Bench) -> None:
    bench = partitioned
    bench.start("--operating-mode=partition")
    listed = bench.kubelet.wait_devices(RESOURCE, lambda ids: len(ids) == 18)
    assert {f"{BDF}-{number}#cpx" for number in range(8)} < listed.keys()
    entries = json.loads(bench.api.node_annotations(NODE)[REGISTER])
    fifth = next(one for one in entries if one["id"].startswith("8e0574a1-"))
    assert (fifth["mode"], fifth["count"], fifth["devmem"]) == ("cpx", 1, 24576)

    got = bench.admit(bench.bind("one", f"{fifth['id']},T,24576,38:;"))["app"]

    assert got.devices_ids == [f"{BDF}-5#cpx"]
    assert got.response.envs["ROCR_VISIBLE_DEVICES"] == "0"
    assert [one.host_path for one in got.response.devices] == [
        "/dev/kfd",
        "/dev/dri/card6",
        "/dev/dri/renderD134",
    ]
    assert bench.slices[0].shares == (Share(BDF, None, partition=5),)
    bench.wait_unlocked()


def test_partitions_of_a_kind_have_a_resource_of_their_own(partitioned: Bench) -> None:
    bench = partitioned
    bench.start("--scheduler=none", "--resource-naming=mixed", wait=False)
    bench.kubelet.wait_devices(CPX, lambda ids: len(ids) == 8)
    assert bench.kubelet.wait_devices(RESOURCE).keys() == {f"{OTHER}#0"}
    container = hami.container("app") | {"resources": {"limits": {CPX: "2"}}}
    got = bench.admit(running(bench, "one", container))["app"]
    assert got.response.envs["ROCR_VISIBLE_DEVICES"] == "0,1"
    assert all(one.startswith(f"{BDF}-") for one in got.devices_ids)
    bench.kubelet.restart()
    bench.kubelet.wait_devices(CPX, lambda ids: len(ids) == 8)
    bench.kubelet.wait_devices(RESOURCE, lambda ids: len(ids) == 1)


def test_the_nodes_annotation_overrides_the_mode(partitioned: Bench) -> None:
    bench = partitioned
    bench.api.put_node(NODE, {"hami.io/amd-operating-mode": "partition"})
    bench.start()
    assert len(bench.kubelet.wait_devices(RESOURCE)) == 18
    assert bench.kubelet.lists(RESOURCE) == 1, "right from the start"
    overridden = {"metadata": {"annotations": {"hami.io/amd-operating-mode": "both"}}}
    bench.api.store.patch("nodes", ("", NODE), overridden)
    # Shared by CUs, a GPU that is split cannot be offered.
    bench.kubelet.wait_devices(
        RESOURCE, lambda ids: list(ids.values()).count("Healthy") == 10, timeout=30
    )
    assert "hami.io/amd-operating-mode: expected cu or partition, found 'both'" in bench.log
    eventually(lambda: len(bench.api.store.list("events", "")["items"]) == 8)
    for event in bench.api.store.list("events", "")["items"]:
        assert event["reason"] == "AMDGPUNotOffered"
        assert BDF in event["message"]


def test_an_excluded_gpu_is_nowhere(bench: Bench) -> None:
    bench.start(f"--exclude-gpus={BDF},card9")
    assert {one.partition("#")[0] for one in bench.kubelet.wait_devices(RESOURCE)} == {OTHER}
    assert len(bench.gpu_ids()) == 1


def test_scaled_memory_is_registered_and_given(bench: Bench) -> None:
    bench.start("--memory-scaling=1.5")
    gpu = bench.gpu_ids()[0]
    entry = json.loads(bench.api.node_annotations(NODE)[REGISTER])[0]
    assert entry["devmem"] == 294432
    got = bench.admit(bench.bind("one", f"{gpu},T,250000,76:;"))["app"]
    assert got.response.envs["HIP_OVERSUBSCRIBE"] == "true"
    (item,) = bench.slices
    assert (item.shares[0].vram_bytes, item.oversubscribe) == (250000 * MIB, True)


def test_the_priority_that_hamis_webhook_wrote_is_in_the_slice(bench: Bench) -> None:
    bench.start()
    item = hami.container("app", 1)
    item["env"] = [{"name": "AMD_TASK_PRIORITY", "value": "3"}]
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;", item))
    assert [one.priority for one in bench.slices] == [1]


def test_a_configuration_file_does_the_same_as_flags(bench: Bench) -> None:
    path = bench.root / "config.yaml"
    path.write_text(f"scheduler: none\nexclude-gpus:\n- '{OTHER}'\n")
    bench.start(f"--config={path}")
    assert bench.kubelet.wait_devices(RESOURCE).keys() == {f"{BDF}#0"}


def test_with_cdi_a_container_gets_names_that_the_spec_knows(bench: Bench) -> None:
    directory = bench.root / "cdi"
    bench.start(f"--cdi-dir={directory}")
    got = bench.admit(bench.bind("one", f"{bench.gpu_ids()[1]},T,4096,76:;"))["app"].response
    assert [one.name for one in got.cdi_devices] == ["amd.com/gpu=card1"]
    assert got.devices == []
    assert got.envs["HSA_CU_MASK"] == "0:0-75"
    spec = json.loads((directory / "amd.com-gpu.json").read_text())
    assert {one["name"] for one in spec["devices"]} == {"card0", "card1"}


def test_where_the_spec_cannot_be_written_it_gets_device_nodes(bench: Bench) -> None:
    (bench.root / "cdi").touch()
    bench.start(f"--cdi-dir={bench.root / 'cdi'}")
    got = bench.admit(bench.bind("one", f"{bench.gpu_ids()[1]},T,4096,76:;"))["app"].response
    assert got.cdi_devices == []
    assert got.devices[0].host_path == "/dev/kfd"
    assert "device nodes are given instead" in bench.log


def test_the_groups_of_the_device_nodes_are_published(bench: Bench) -> None:
    dev = bench.root / "dev"
    (dev / "dri").mkdir(parents=True)
    for name, group in (("kfd", 105), ("dri/card0", 44)):
        (dev / name).touch()
        os.chown(dev / name, -1, group)
    bench.start(f"--dev={dev}", "--scheduler=none")
    eventually(lambda: bench.api.node_annotations(NODE) == {"ringfence.io/gpu-groups": "44,105"})
