# SPDX-License-Identifier: Apache-2.0
"""A pod's way through the device plugin, with kubelet and API server at the other ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB, ContainerKind, Share
from enforcer.slices import hook_directory
from tests.contract.conftest import LOCK, NODE, RESOURCE, eventually, running_bench
from tests.contract.peers import hami
from tests.contract.peers.kubelet import AdmissionError, StartError
from tests.testbed.machines import MACHINES
from tests.testbed.trees import write_sys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.conftest import Bench

BDF, OTHER = "0000:05:00.0", "0000:65:00.0"


def test_a_slice_is_given_recorded_and_the_lock_released(bench: Bench) -> None:
    bench.start()
    _, second = bench.gpu_ids()
    devices = f"{second},AMD Instinct MI300X,4096,76:;"
    pod = bench.bind("one", devices)

    admitted = bench.admit(pod)["app"]

    assert dict(admitted.response.envs) == {
        "ROCR_VISIBLE_DEVICES": "GPU-1122334455667788",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-75",
        "HIP_DEVICE_MEMORY_LIMIT_0": "4096m",
    }
    assert [device.host_path for device in admitted.response.devices] == [
        "/dev/kfd",
        "/dev/dri/card1",
        "/dev/dri/renderD129",
    ]
    assert {device.permissions for device in admitted.response.devices} == {"rwm"}
    # kubelet's own record names the GPU the pod has.
    assert [one.partition("#")[0] for one in admitted.devices_ids] == [OTHER]
    (item,) = bench.slices
    assert (item.namespace, item.pod, item.container) == ("default", "one", "app")
    assert item.pod_uid == pod["metadata"]["uid"]
    assert item.shares == (Share(OTHER, 4096 * MIB, "0-75"),)
    assert item.device_ids == tuple(admitted.devices_ids)
    bench.wait_phase("one", "success")
    bench.wait_unlocked()
    assert bench.annotation("one", "amd-devices-to-allocate") == ";"
    assert bench.annotation("one", "amd-devices-allocated") == devices
    assert bench.annotation("one", "amd-cu-allocated") == f'{{"{second}":"0-75"}}'
    assert len(bench.kubelet.wait_devices(RESOURCE)) == 20


def test_the_hook_is_mounted_where_it_is_installed(bench: Bench) -> None:
    (bench.root / "hook").mkdir()
    for name in ("libringfence-audit.so", "libringfence-hsa.so"):
        (bench.root / "hook" / name).write_bytes(b"\x7fELF")
    bench.start()
    admitted = bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))["app"]
    own = hook_directory(bench.root, bench.slices[0].pod_uid, "app")
    assert [
        (one.host_path, one.container_path, one.read_only) for one in admitted.response.mounts
    ] == [
        (str(bench.root / "hook"), "/usr/local/ringfence", True),
        (str(own), "/etc/ringfence", True),
        (str(own / "ledger/usage.v1"), "/run/ringfence/ledger/usage.v1", False),
    ]
    assert admitted.response.envs["LD_AUDIT"].startswith("/usr/local/ringfence/")


@pytest.mark.parametrize(
    ("devices", "complaint"),
    [
        ("no-such-gpu,AMD Instinct MI300X,4096,76:;", "no-such-gpu"),
        ("{0},AMD Instinct MI300X,4096,76:{1},AMD Instinct MI300X,4096,76:;", "found 2"),
        ("{0},AMD Instinct MI300X,0,76:;", "found 0"),
        ("{0},AMD Instinct MI300X,999999,76:;", "found 999999"),
        ("{0},AMD Instinct MI300X,lots,76:;", "'lots'"),
        ("garbage;", "'garbage'"),
        (";", "found 0"),
    ],
)
def test_an_unusable_annotation_gives_nothing_and_frees_the_node(
    bench: Bench, devices: str, complaint: str
) -> None:
    bench.start()
    pod = bench.bind("bad", devices.format(*bench.gpu_ids()))

    with pytest.raises(AdmissionError) as caught:
        bench.admit(pod)

    assert complaint in str(caught.value)
    assert "pod default/bad" in str(caught.value)
    assert "hami.io/amd-devices-to-allocate" in str(caught.value)
    assert bench.slices == []
    bench.wait_phase("bad", "failed")
    bench.wait_unlocked()


def test_a_bad_pod_does_not_stand_in_the_way_of_the_next(bench: Bench) -> None:
    bench.start()
    with pytest.raises(AdmissionError):
        bench.admit(bench.bind("bad", "garbage;"))
    bench.wait_unlocked()
    bench.admit(bench.bind("good", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    bench.wait_phase("good", "success")


@pytest.mark.parametrize("layout", ["{init};;{app};", "{init};{app};"])
def test_init_and_app_container_each_get_their_own_entry(bench: Bench, layout: str) -> None:
    bench.start()
    first, second = bench.gpu_ids()
    pod = bench.bind(
        "both",
        layout.format(init=f"{first},T,1024,10:", app=f"{second},T,2048,20:"),
        hami.container("cpu"),
        hami.container("app", 1),
        init=(hami.container("init", 1),),
    )

    got = bench.admit(pod)

    assert got["init"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    assert got["app"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    # kubelet hands the init container's device on, whatever GPU the app container has.
    assert got["init"].devices_ids == got["app"].devices_ids
    assert [(item.container, item.kind) for item in bench.slices] == [
        ("init", ContainerKind.INIT),
        ("app", ContainerKind.APP),
    ]
    assert [item.shares[0].bdf for item in bench.slices] == [BDF, OTHER]
    bench.wait_phase("both", "success")
    bench.wait_unlocked()
    assert set(bench.annotation("both", "amd-devices-to-allocate") or "") == {";"}


def test_a_sidecar_keeps_its_share_beside_the_containers_after_it(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    pod = bench.bind(
        "three",
        f"{gpu},T,1024,10:;{gpu},T,2048,20:;{gpu},T,4096,30:;",
        hami.container("app", 1),
        init=(hami.container("setup", 1), hami.container("side", 1, restartPolicy="Always")),
    )
    got = bench.admit(pod)
    # The sidecar takes the device over from the init container, and keeps it.
    assert got["setup"].devices_ids == got["side"].devices_ids
    assert got["app"].devices_ids != got["side"].devices_ids
    assert [got[name].response.envs["HSA_CU_MASK"] for name in ("setup", "side", "app")] == [
        "0:0-9",
        "0:0-19",
        "0:20-49",
    ]
    assert [item.kind for item in bench.slices] == [
        ContainerKind.INIT,
        ContainerKind.SIDECAR,
        ContainerKind.APP,
    ]
    bench.wait_phase("three", "success")
    assert bench.annotation("three", "amd-cu-allocated") == f'{{"{gpu}":"0-49"}}'


def test_what_an_init_container_had_is_given_to_another_pod_once_it_is_over(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    pod = bench.bind(
        "first",
        f"{gpu},T,190000,300:;{gpu},T,1024,10:;",
        hami.container("app", 1),
        init=(hami.container("init", 1),),
    )
    bench.admit(pod)
    bench.wait_unlocked()
    with pytest.raises(AdmissionError, match="held by default/first"):
        bench.admit(bench.bind("early", f"{gpu},T,100000,200:;"))
    bench.wait_unlocked()
    conditions = [{"type": "Initialized", "status": "True"}]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    bench.api.store.patch("pods", ("default", "first"), status)
    got = bench.admit(bench.bind("second", f"{gpu},T,100000,200:;"))["app"]
    assert got.response.envs["HSA_CU_MASK"] == "0:10-209"
    assert [item.container for item in bench.slices if item.pod == "first"] == ["init", "app"]


def test_leading_empty_entries_that_the_scheduler_dropped_are_made_up_for(bench: Bench) -> None:
    """HAMi v2.10.0: two containers without a GPU come first, and have no entry."""
    bench.start()
    gpu = bench.gpu_ids()[0]
    containers = [hami.container("web"), hami.container("log")]
    containers += [hami.container("a", 1), hami.container("none"), hami.container("b", 1)]
    pod = bench.bind("five", f"{gpu},T,1024,10:;;{gpu},T,2048,20:;", *containers)
    got = bench.admit(pod)
    assert got["a"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    assert got["b"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    bench.wait_phase("five", "success")


def test_a_pod_keeps_its_lock_until_its_last_container_is_served(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    two = hami.container("a", 1), hami.container("b", 1)
    pod = bench.bind("two", f"{gpu},T,1024,10:;{gpu},T,2048,20:;", *two)
    half = {**pod, "spec": {**pod["spec"], "containers": [two[0]]}}
    bench.admit(half)
    eventually(lambda: bench.annotation("two", "amd-devices-to-allocate") == f";{gpu},T,2048,20:;")
    assert bench.annotation("two", "bind-phase") == "allocating"
    assert LOCK in bench.api.node_annotations(NODE)

    got = bench.admit(pod)

    assert got["b"].response.envs["HSA_CU_MASK"] == "0:10-29"
    bench.wait_phase("two", "success")
    bench.wait_unlocked()
    assert bench.annotation("two", "amd-cu-allocated") == json.dumps(
        {gpu: "0-29"}, separators=(",", ":")
    )


def test_a_refused_container_gives_back_what_its_siblings_got(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    two = hami.container("a", 1), hami.container("b", 1)
    with pytest.raises(AdmissionError, match="container b"):
        bench.admit(bench.bind("two", f"{gpu},T,1024,10:;nobody,T,2048,20:;", *two))
    assert bench.slices == []
    bench.wait_phase("two", "failed")
    bench.wait_unlocked()


def test_pods_share_a_gpu_with_different_cus(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    masks = []
    for name in ("a", "b", "c"):
        got = bench.admit(bench.bind(name, f"{gpu},T,4096,100:;"))["app"]
        masks.append(got.response.envs["HSA_CU_MASK"])
        bench.wait_unlocked()
    assert masks == ["0:0-99", "0:100-199", "0:200-299"]
    with pytest.raises(AdmissionError, match="needs 100 CUs, but only 4 are free"):
        bench.admit(bench.bind("d", f"{gpu},T,4096,100:;"))


def test_a_slice_too_small_for_the_dies_of_its_gpu_is_told_its_pod(short_path: Path) -> None:
    machine = MACHINES["8 MI300X"]
    with running_bench(short_path, ()) as one:
        write_sys(short_path / "sys", machine)
        one.start()
        gpu = one.gpu_ids()[0]
        pod = one.bind("one", f"{gpu},T,4096,3:;")
        one.admit(pod)
        eventually(lambda: one.api.store.list("events", "", "default")["items"] != [])
        (event,) = one.api.store.list("events", "", "default")["items"]
        assert event["reason"] == "AMDGPUSliceLeavesDiesIdle"
        assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        assert "3 CUs are on 3 of its 8 XCCs" in event["message"]


def test_two_pods_waiting_at_once_are_told_apart_by_the_lock(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    stuck = bench.bind("stuck", f"{gpu},T,1024,10:;", lock=False)
    pod = bench.bind("next", f"{gpu},T,2048,20:;")
    assert bench.admit(pod)["app"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    bench.wait_unlocked()
    assert bench.admit(stuck)["app"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    assert [item.pod for item in bench.slices] == ["next", "stuck"]


def test_a_lock_left_by_a_dead_pod_does_not_matter(bench: Bench) -> None:
    value = "2026-01-02T03:04:05Z,default,dead"
    bench.api.store.patch("nodes", ("", NODE), {"metadata": {"annotations": {LOCK: value}}})
    bench.start()
    bench.admit(bench.bind("alive", f"{bench.gpu_ids()[0]},T,1024,10:;", lock=False))
    bench.wait_phase("alive", "success")
    assert bench.api.node_annotations(NODE)[LOCK] == value, "not ours to release"


def test_a_pod_no_scheduler_annotated_gets_nothing(bench: Bench) -> None:
    bench.start()
    pod = hami.pod("plain", hami.container("app", 1))
    pod["spec"]["nodeName"] = NODE
    with pytest.raises(AdmissionError, match="default/plain asks for 1 GPUs and was not placed"):
        bench.admit(bench.api.put_pod(pod))
    assert bench.slices == []


def test_a_pod_no_scheduler_annotated_cannot_take_the_slice_of_one_that_waits(
    bench: Bench,
) -> None:
    bench.start()
    waiting = bench.bind("waiting", f"{bench.gpu_ids()[0]},T,1024,10:;")
    thief = hami.pod("thief", hami.container("app", 1))
    thief["spec"]["nodeName"] = NODE
    thief = bench.api.put_pod(thief)
    # The next test is about a plugin that was not told.
    bench.wait_told()
    with pytest.raises(AdmissionError, match="default/thief asks"):
        bench.admit(thief)
    bench.end(thief, "Failed")
    assert bench.annotation("waiting", "bind-phase") == "allocating"
    eventually(lambda: bench.admits(waiting))
    assert [item.pod for item in bench.slices] == ["waiting"]


def test_a_pod_the_plugin_has_not_heard_of_yet_does_not_start_with_the_slice_of_another(
    bench: Bench,
) -> None:
    bench.start()
    bench.bind("waiting", f"{bench.gpu_ids()[0]},T,1024,10:;")
    bench.wait_told()
    bench.api.faults.silent = True
    thief = hami.pod("thief", hami.container("app", 1))
    thief["spec"]["nodeName"] = NODE
    thief = bench.api.put_pod(thief)
    bench.admit(thief)
    with pytest.raises(
        StartError, match=r"kubelet starts pod default/thief with .* default/waiting"
    ):
        bench.kubelet.start_container(thief["metadata"]["uid"], "app")


def test_a_pod_from_before_does_not_stand_in_the_way(bench: Bench) -> None:
    running = hami.pod("running", hami.container("app", 1))
    running["spec"]["nodeName"] = NODE
    running["status"] = {"phase": "Running", "startTime": "2026-01-02T03:04:05Z"}
    bench.api.put_pod(running)
    bench.start()
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,1024,10:;"))


def test_kubelet_may_ask_again_for_what_it_lost(bench: Bench) -> None:
    bench.start()
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,1024,10:;")
    before = bench.admit(pod)["app"]
    bench.wait_unlocked()
    bench.kubelet.remove(pod["metadata"]["uid"])
    after = bench.admit(pod)["app"]
    assert after.devices_ids == before.devices_ids
    assert after.response == before.response
    assert len(bench.slices) == 1


def test_kubelet_asks_again_for_a_hook_that_is_gone(bench: Bench) -> None:
    (bench.root / "hook").mkdir()
    for name in ("libringfence-audit.so", "libringfence-hsa.so"):
        (bench.root / "hook" / name).write_bytes(b"\x7fELF")
    bench.start()
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,1024,10:;")
    assert "LD_AUDIT" in bench.admit(pod)["app"].response.envs
    assert [item.hook for item in bench.slices] == [True]
    bench.wait_unlocked()
    bench.kubelet.remove(pod["metadata"]["uid"])
    (bench.root / "hook/libringfence-hsa.so").unlink()
    assert "LD_AUDIT" not in bench.admit(pod)["app"].response.envs
    assert [item.hook for item in bench.slices] == [False]


def test_a_pod_of_the_same_name_is_another_pod(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    old = bench.bind("same", f"{gpu},T,1024,10:;")
    bench.admit(old)
    bench.wait_unlocked()
    bench.end(old)
    new = bench.bind("same", f"{gpu},T,2048,20:;")
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert bench.admit(new)["app"].response.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    bench.wait_phase("same", "success")
    eventually(
        lambda: [item.pod_uid for item in bench.slices] == [new["metadata"]["uid"]], timeout=30
    )


def test_the_slice_of_a_deleted_pod_is_taken_back_and_its_cus_given_again(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    first = bench.bind("a", f"{gpu},T,4096,300:;")
    bench.admit(first)
    bench.wait_unlocked()
    bench.end(first)
    eventually(lambda: bench.slices == [], timeout=30)
    got = bench.admit(bench.bind("b", f"{gpu},T,4096,300:;"))["app"]
    assert got.response.envs["HSA_CU_MASK"] == "0:0-299"


@pytest.mark.parametrize("name", ["b", "a"])
@pytest.mark.parametrize("phase", [None, "Succeeded"])
def test_what_a_pod_leaves_is_given_to_the_next_at_once(
    bench: Bench, name: str, phase: str | None
) -> None:
    """HAMi frees it on the same event; a replica has the name of the one before."""
    bench.start()
    gpu = bench.gpu_ids()[0]
    first = bench.bind("a", f"{gpu},T,196288,304:;")
    bench.admit(first)
    bench.wait_unlocked()
    bench.end(first, phase if name == "b" else None)
    got = bench.admit(bench.bind(name, f"{gpu},T,196000,300:;"))["app"]
    assert got.allocate_seconds < 1
    assert got.response.envs["HSA_CU_MASK"] == "0:0-299"
    bench.wait_phase(name, "success")


def test_what_a_pod_that_ended_has_is_given_to_nobody_while_kubelet_has_it(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    bench.admit(bench.bind("a", f"{gpu},T,4096,304:;"))
    bench.wait_unlocked()
    bench.api.store.patch("pods", ("default", "a"), {"status": {"phase": "Failed"}})
    with pytest.raises(AdmissionError, match="held by default/a"):
        bench.admit(bench.bind("b", f"{gpu},T,4096,304:;"))
    assert [item.pod for item in bench.slices] == ["a"]


def test_a_pod_that_ended_keeps_its_slice_while_kubelet_has_it(bench: Bench) -> None:
    bench.start()
    pod = bench.bind("a", f"{bench.gpu_ids()[0]},T,4096,300:;")
    bench.admit(pod)
    bench.wait_unlocked()
    key = "default", "a"
    bench.api.store.patch("pods", key, {"status": {"phase": "Failed"}})
    with pytest.raises(AssertionError):
        eventually(lambda: bench.slices == [], timeout=8)
    bench.kubelet.remove(pod["metadata"]["uid"])
    eventually(lambda: bench.slices == [], timeout=30)


def test_a_forged_record_of_cus_costs_nobody_anything(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    forger = hami.pod("forger", hami.container("app"))
    forger["metadata"]["annotations"]["hami.io/amd-cu-allocated"] = f'{{"{gpu}":"0-303"'
    forger["spec"]["nodeName"] = NODE
    bench.api.put_pod(forger)
    got = bench.admit(bench.bind("a", f"{gpu},T,4096,304:;"))["app"]
    assert got.response.envs["HSA_CU_MASK"] == "0:0-303"
