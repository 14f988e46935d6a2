# SPDX-License-Identifier: Apache-2.0
"""The loop on synthetic trees, without kernel layers: those are proven in the VM."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.api.convert import snapshot_to_pb
from enforcer.api.errors import NotFoundError, UntoldError
from enforcer.devices import DEVICE
from enforcer.host.apart import Answer
from enforcer.host.roots import Roots
from enforcer.host.smi import SmiEvent, SmiKind
from enforcer.layers import KernelLayers
from enforcer.loop import Enforcer
from enforcer.metrics.page import page
from enforcer.model import ContainerKind, DeviceTest, Layer, Problem, Share, Slice, Why
from enforcer.slices import hook_directory, write_checkpoint
from tests.testbed.trees import (
    ContainerSpec,
    GpuSpec,
    NodeSpec,
    write_bundle,
    write_cgroup,
    write_pod,
    write_process,
    write_sys,
)
from tests.unit.enforcer.imagestore.runtime import containerd, serving

UID = "0f3c1d52-6a0b-4e5a-9d0e-2b1a4c7d8e9f"
GPU = GpuSpec("0000:03:00.0", kfd_id=5, card=1, render=128)
HANG = SmiEvent(5, SmiKind.PRE_RESET, "1 MES hang")
TRAIN = ContainerSpec("a" * 64, "train")
SANDBOX = ContainerSpec("b" * 64, sandbox=True)
POD = f"kubepods/pod{UID}"


def make(container: str, size: int | None = 4096, uid: str = UID) -> Slice:
    return Slice(
        uid, "ns", "p", container, ContainerKind.APP, (), (Share(GPU.bdf, size),),
        "2026-11-29T13:00:00Z",
    )  # fmt: skip


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    write_sys(tmp_path / "sys", NodeSpec((GPU,)))
    write_cgroup(tmp_path / "cgroup", controllers="cpu", enabled="cpu")
    return Roots(
        sys=tmp_path / "sys",
        proc=tmp_path / "proc",
        run=tmp_path / "run",
        cgroup=tmp_path / "cgroup",
        share=tmp_path / "share",
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "slices.json"


@pytest.fixture
def enforcer(tmp_path: Path, roots: Roots, checkpoint: Path) -> Enforcer:
    kernel = KernelLayers(tmp_path / "no objects", tmp_path / "bpf", roots.sys)
    return Enforcer(roots, checkpoint, kernel)


@pytest.fixture
def running(enforcer: Enforcer) -> Iterator[Enforcer]:
    thread = threading.Thread(target=enforcer.run, args=(0.05,))
    thread.start()
    yield enforcer
    enforcer.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_a_node_without_slices_is_seen_whole(enforcer: Enforcer) -> None:
    snapshot = enforcer.run_pass()
    assert [gpu.bdf for gpu in snapshot.gpus] == [GPU.bdf]
    assert snapshot.containers == ()
    assert snapshot.problems == ()
    assert [load.vram_used for load in snapshot.loads] == [0]
    assert enforcer.snapshot() is snapshot


def test_a_kernel_that_can_hold_nothing_leaves_it_to_the_hook_and_a_gate_that_failed_does_not(
    tmp_path: Path, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [replace(make("train"), hook=True)])
    write_pod(roots.cgroup, POD, (TRAIN,), "{}")
    write_bundle(roots.run, TRAIN)
    for off, hook in ((Why.NOT_POSSIBLE, ["on"]), (Why.NOT_LOADED, [])):
        kernel = KernelLayers(tmp_path / "no objects", tmp_path / "bpf", roots.sys)
        kernel.gate_off = off
        rows = {
            row.container: row for row in Enforcer(roots, checkpoint, kernel).run_pass().containers
        }
        layers = {
            name: [state for state in row.layers if state.layer is Layer.HOOK]
            for name, row in rows.items()
        }
        assert [str(state) for state in layers["train"]] == hook
        assert layers[""] == []


def test_layers_that_are_not_there_say_why(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (TRAIN,), "{}")
    write_bundle(roots.run, TRAIN)
    snapshot = enforcer.run_pass()
    assert snapshot.support.gate.reason == Why.NOT_LOADED
    assert snapshot.support.dmem.reason == Why.NO_REGION
    assert [(row.container, row.limit) for row in snapshot.containers] == [
        ("", 4096),
        ("train", 4096),
    ]
    assert {str(state) for row in snapshot.containers for state in row.layers} == {
        f"off: {Why.NOT_LOADED}",
        f"off: {Why.NO_REGION}",
    }


def test_a_container_is_held_to_the_smallest_slice_until_it_is_named(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train", 8192), make("infer", 4096)])
    write_pod(roots.cgroup, POD, (TRAIN, SANDBOX), "{}")
    write_bundle(roots.run, SANDBOX)
    rows = {row.container: row.limit for row in enforcer.run_pass().containers}
    assert rows == {"": 12288, TRAIN.id: 4096}
    write_bundle(roots.run, TRAIN)
    rows = {row.container: row.limit for row in enforcer.run_pass().containers}
    assert rows == {"": 12288, "train": 8192}


def test_a_half_written_bundle_costs_only_its_container(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    other = ContainerSpec("c" * 64, "infer")
    write_checkpoint(checkpoint, [make("train", 8192), make("infer", 4096)])
    write_pod(roots.cgroup, POD, (TRAIN, other), "{}")
    for one in (TRAIN, other):
        write_bundle(roots.run, one)
    path = roots.run / f"containerd/io.containerd.runtime.v2.task/k8s.io/{TRAIN.id}/config.json"
    path.write_text(path.read_text()[:20])
    snapshot = enforcer.run_pass()
    assert {row.container: row.limit for row in snapshot.containers} == {
        "": 12288,
        TRAIN.id: 4096,
        "infer": 4096,
    }
    assert [TRAIN.id in problem for problem in snapshot.problems] == [True]


def test_the_names_of_a_tenants_own_cgroups_keep_nobody_from_the_snapshot(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (TRAIN,), "{}")
    for name in (b"\xff", b"a\nGPU 0: WEDGED", b"\x1b[2J"):
        own = roots.cgroup / POD / TRAIN.id / os.fsdecode(name)
        own.mkdir()
        (own / "cgroup.procs").write_text("unread\n")
    snapshot = enforcer.run_pass()
    assert len(snapshot.problems) == 3
    assert all(line.isprintable() for line in snapshot.problems)
    assert snapshot_to_pb(snapshot).SerializeToString()
    assert page(snapshot, "node", "1").encode()


def test_problems_without_end_are_cut_short(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (TRAIN,), "{}")
    for number in range(500):
        own = roots.cgroup / POD / TRAIN.id / f"{number:0200}"
        own.mkdir()
        (own / "cgroup.procs").write_text("unread\n")
    problems = enforcer.run_pass().problems
    assert len(problems) == 201
    assert problems[-1] == "and 300 problems more"


@pytest.mark.parametrize("broken", ["checkpoint", "entry"])
def test_a_bad_checkpoint_costs_no_slice_that_is_held(
    enforcer: Enforcer, roots: Roots, checkpoint: Path, broken: str
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (), "{}")
    enforcer.run_pass()
    if broken == "checkpoint":
        checkpoint.write_text("{")
    else:
        text = checkpoint.read_text()
        checkpoint.write_text(text.replace('"slices": [', '"slices": [{"pod_uid": 7},'))
    snapshot = enforcer.run_pass()
    assert [row.limit for row in snapshot.containers] == [4096]
    assert [str(checkpoint) in problem for problem in snapshot.problems] == [True]


def test_a_container_that_went_has_no_row(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (), "{}")
    assert len(enforcer.run_pass().containers) == 1
    for path in (roots.cgroup / POD).iterdir():
        path.unlink()
    (roots.cgroup / POD).rmdir()
    assert enforcer.run_pass().containers == ()


def test_a_cgroup1_host_is_told_and_does_not_stop_the_rest(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    (roots.cgroup / "cgroup.controllers").unlink()
    snapshot = enforcer.run_pass()
    assert len(snapshot.gpus) == 1
    assert any("expected a cgroup2 mount" in problem for problem in snapshot.problems)
    assert snapshot.containers == ()
    assert snapshot.support.gate.reason == snapshot.support.dmem.reason == Why.NO_CGROUP2


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_pod_that_cgroup1_hides_is_refused_with_the_reason(
    running: Enforcer, roots: Roots, checkpoint: Path, hybrid: bool
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    (roots.cgroup / "cgroup.controllers").unlink()
    if hybrid:
        write_cgroup(roots.cgroup, "unified")
    why = "is hybrid" if hybrid else "expected a cgroup2 mount"
    with pytest.raises(NotFoundError, match=f"no cgroup of pod {UID} after .*{why}"):
        running.prepare(UID, "train", 0.5)


def test_pods_of_a_hybrid_host_are_found_in_its_cgroup2_tree(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    (roots.cgroup / "cgroup.controllers").unlink()
    write_cgroup(roots.cgroup, "unified", controllers="", enabled="")
    write_pod(roots.cgroup / "unified", POD, (TRAIN,), "{}")
    write_bundle(roots.run, TRAIN)
    snapshot = enforcer.run_pass()
    assert [row.container for row in snapshot.containers] == ["", "train"]
    assert snapshot.support.gate.reason == Why.NOT_LOADED


def test_the_hook_has_its_slice_before_the_container_is_there(
    running: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_pod(roots.cgroup, POD, (), "{}")
    write_checkpoint(checkpoint, [make("train"), make("whole", None)])
    running.prepare(UID, "train", 5)
    directory = hook_directory(roots.run / "ringfence", UID, "train")
    assert "refuse hook\n" in (directory / "slice").read_text()
    assert (directory / "ledger/usage.v1").exists()
    assert not hook_directory(roots.run / "ringfence", UID, "whole").exists()


def _remove(roots: Roots) -> None:
    for path in (roots.cgroup / POD).iterdir():
        path.unlink()
    (roots.cgroup / POD).rmdir()


def test_the_hooks_files_go_when_slice_and_pod_are_gone(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    directory = hook_directory(roots.run / "ringfence", UID, "train")
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (), "{}")
    enforcer.run_pass()
    write_checkpoint(checkpoint, [])
    enforcer.run_pass()
    assert (directory / "slice").exists()
    _remove(roots)
    enforcer.run_pass()
    assert not directory.parent.exists()


def test_a_bad_checkpoint_takes_no_files_from_the_hook(
    enforcer: Enforcer, roots: Roots, checkpoint: Path, tmp_path: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (), "{}")
    enforcer.run_pass()
    checkpoint.write_text("{")
    _remove(roots)
    kernel = KernelLayers(tmp_path / "no objects", tmp_path / "bpf", roots.sys)
    for one in (enforcer, Enforcer(roots, checkpoint, kernel)):
        one.run_pass()
        assert (hook_directory(roots.run / "ringfence", UID, "train") / "slice").exists()


def test_without_any_kernel_layer_usage_is_observed(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (TRAIN,), "{}")
    write_bundle(roots.run, TRAIN)
    path = roots.cgroup / POD / TRAIN.id / "cgroup.procs"
    path.write_text("4711\n")
    write_process(roots.sys, 4711, {GPU.kfd_id: 1024})
    snapshot = enforcer.run_pass()
    assert snapshot.support.ledger == "sysfs"
    assert snapshot.problems == ()
    for row in snapshot.containers:
        usage = row.usage
        assert (usage.kfd, usage.drm, usage.observed, usage.hook) == (1024, 0, 1024, 0)
        assert (usage.requested, usage.escaped, usage.drift) == (None, None, None)


def test_gpus_are_looked_at_again_only_when_told(enforcer: Enforcer, roots: Roots) -> None:
    enforcer.run_pass()
    (roots.sys / "class/kfd/kfd/topology/nodes/1/gpu_id").unlink()
    assert len(enforcer.run_pass().gpus) == 1
    enforcer.devices_changed()
    snapshot = enforcer.run_pass()
    assert snapshot.gpus == ()
    assert "KFD node 1" in snapshot.problems[0]


def test_a_problem_is_logged_when_it_comes_and_when_it_goes(
    enforcer: Enforcer, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_checkpoint(checkpoint, [])
    enforcer.run_pass()
    checkpoint.write_text("{")
    for _ in range(3):
        enforcer.run_pass()
    write_checkpoint(checkpoint, [])
    enforcer.run_pass()
    told = [record.message for record in caplog.records if "slices.json" in record.message]
    assert len(told) == 2
    assert told[1].startswith("no longer: ")


def test_prepare_reads_a_slice_written_just_before(
    running: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_pod(roots.cgroup, POD, (), "{}")
    write_checkpoint(checkpoint, [make("train")])
    ((protection, whole),) = running.prepare(UID, "train", 5)
    assert (protection.path, protection.bdf, protection.held, whole) == (POD, GPU.bdf, False, False)


def test_prepare_says_which_shares_are_whole(
    running: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_pod(roots.cgroup, POD, (), "{}")
    write_checkpoint(checkpoint, [make("train", None)])
    assert [whole for _, whole in running.prepare(UID, "train", 5)] == [True]


def test_prepare_of_an_unknown_slice_fails_at_once(running: Enforcer, checkpoint: Path) -> None:
    write_checkpoint(checkpoint, [make("train")])
    start = time.monotonic()
    with pytest.raises(NotFoundError, match=f"'infer' of pod {UID}"):
        running.prepare(UID, "infer", 5)
    assert time.monotonic() - start < 2


def test_prepare_says_what_is_wrong_with_the_checkpoint_that_lacks_a_slice(
    running: Enforcer, checkpoint: Path
) -> None:
    checkpoint.write_text("{")
    found = f"no slice for container 'train' of pod {UID} in {checkpoint}; {checkpoint}: expected"
    with pytest.raises(NotFoundError, match=found):
        running.prepare(UID, "train", 5)


def test_prepare_waits_for_the_pods_cgroup(
    running: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    timer = threading.Timer(0.4, write_pod, (roots.cgroup, POD, (), "{}"))
    timer.start()
    try:
        assert len(running.prepare(UID, "train", 5)) == 1
    finally:
        timer.join()


def test_prepare_gives_up_when_the_pods_cgroup_does_not_come(
    running: Enforcer, checkpoint: Path
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    with pytest.raises(NotFoundError, match=f"no cgroup of pod {UID} after 0.3 s"):
        running.prepare(UID, "train", 0.3)


class Here:
    """Answers for the processes apart."""

    def ask(self, kind: str, about: list[str], _: float) -> list[Answer]:
        assert kind == DEVICE
        return [Answer("" if one.endswith("kfd") else "cannot open") for one in about]


def test_the_devices_of_a_gpu_are_tested_and_of_an_unknown_one_not(
    tmp_path: Path, roots: Roots, checkpoint: Path
) -> None:
    kernel = KernelLayers(tmp_path / "no objects", tmp_path / "bpf", roots.sys)
    enforcer = Enforcer(roots, checkpoint, kernel, apart=Here())  # type: ignore[arg-type]
    enforcer.run_pass()
    tests = [DeviceTest("/dev/kfd"), DeviceTest("/dev/dri/renderD128", "cannot open")]
    assert enforcer.test_devices([], 5) == enforcer.test_devices([GPU.bdf], 5) == tests
    with pytest.raises(NotFoundError, match="no GPU 0000:99:00"):
        enforcer.test_devices([GPU.bdf, "0000:99:00.0"], 5)


def test_a_reset_whose_end_was_missed_is_over_when_kfd_opens(
    tmp_path: Path, roots: Roots, checkpoint: Path
) -> None:
    kernel = KernelLayers(tmp_path / "no objects", tmp_path / "bpf", roots.sys)
    enforcer = Enforcer(roots, checkpoint, kernel, apart=Here())  # type: ignore[arg-type]
    enforcer.run_pass()
    enforcer.health.hear([(GPU.bdf, HANG)], time.time() - 60)
    assert [one.healthy for one in enforcer.run_pass().health] == [False]
    enforcer.look_for_missed_ends()
    assert [one.healthy for one in enforcer.run_pass().health] == [True]


def test_a_reset_is_not_over_while_nobody_can_try_kfd(enforcer: Enforcer) -> None:
    enforcer.run_pass()
    enforcer.health.hear([(GPU.bdf, HANG)], time.time() - 60)
    enforcer.look_for_missed_ends()
    assert [one.healthy for one in enforcer.run_pass().health] == [False]


def test_a_gpu_long_gone_is_ill_as_long_as_a_slice_names_it_or_may(
    enforcer: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    def rows() -> list[bool]:
        return [one.healthy for one in enforcer.run_pass().health]

    write_checkpoint(checkpoint, [make("train")])
    assert rows() == [True]
    enforcer.health.see({}, time.time() - 7200)
    shutil.rmtree(roots.sys / "class/kfd")
    enforcer.devices_changed()
    assert rows() == [False]
    checkpoint.write_text("{ torn")
    assert rows() == [False]
    write_checkpoint(checkpoint, [])
    assert rows() == []


def test_only_an_image_that_no_runtime_has_is_not_found(
    tmp_path: Path, short_path: Path, roots: Roots, checkpoint: Path
) -> None:
    roots = replace(roots, host=short_path)
    kernel = KernelLayers(tmp_path / "no objects", tmp_path / "bpf", roots.sys)
    enforcer = Enforcer(roots, checkpoint, kernel)
    with pytest.raises(UntoldError, match="no container runtime"):
        enforcer.image_libc(UID, "train", "debian:12", 5)
    with serving(containerd(), roots.host / "run/containerd/containerd.sock"):
        with pytest.raises(UntoldError, match="a view of debian:12: not_found"):
            enforcer.image_libc(UID, "train", "debian:12", 5)
        with pytest.raises(NotFoundError, match="there is no image alpine:3"):
            enforcer.image_libc(UID, "train", "alpine:3", 5)


def test_an_image_is_looked_into_only_if_its_container_is_there(enforcer: Enforcer) -> None:
    enforcer.run_pass()
    with pytest.raises(NotFoundError, match=f"no container 'train' of pod {UID}"):
        enforcer.image_libc(UID, "train", "", 1)


def test_a_container_that_comes_wakes_the_loop(
    running: Enforcer, roots: Roots, checkpoint: Path
) -> None:
    write_pod(roots.cgroup, POD, (), "{}")
    write_checkpoint(checkpoint, [make("train")])
    running.prepare(UID, "train", 10)
    assert running.watch is not None
    assert not running.watch.wait(0.05)
    write_pod(roots.cgroup, POD, (TRAIN,), "{}")
    assert running.watch.wait(10)


def test_many_may_prepare_at_once(running: Enforcer, roots: Roots, checkpoint: Path) -> None:
    uids = [UID.replace("0f3c1d52", f"{index:08x}") for index in range(16)]
    write_checkpoint(checkpoint, [make("train", uid=uid) for uid in uids])
    for uid in uids:
        write_pod(roots.cgroup, f"kubepods/pod{uid}", (), "{}")
    found: dict[str, str] = {}

    def prepare(uid: str) -> None:
        ((protection, _),) = running.prepare(uid, "train", 10)
        found[uid] = protection.path

    threads = [threading.Thread(target=prepare, args=(uid,)) for uid in uids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {uid: f"kubepods/pod{uid}" for uid in uids}


def test_prepare_fails_in_time_when_the_loop_does_not_run(enforcer: Enforcer) -> None:
    with pytest.raises(TimeoutError):
        enforcer.prepare(UID, "train", 0.2)


def test_a_pass_that_fails_does_not_end_the_loop(
    running: Enforcer, roots: Roots, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(checkpoint, [make("train")])
    write_pod(roots.cgroup, POD, (), "{}")
    assert len(running.prepare(UID, "train", 5)) == 1
    devices, running._devices = running._devices, None  # type: ignore[assignment]
    with pytest.raises(TimeoutError, match=r"no pass .*: see its log; if it hangs, kill it"):
        running.prepare(UID, "train", 0.3)
    running._devices = devices
    assert len(running.prepare(UID, "train", 5)) == 1
    assert "a pass failed: limits stay in force, but new containers wait until" in caplog.text


def test_each_pass_is_told_of_by_whether_it_succeeded(enforcer: Enforcer) -> None:
    told: list[bool] = []

    def passed(well: bool) -> None:
        told.append(well)
        enforcer._devices = kept if len(told) == 2 else None  # type: ignore[assignment]
        if len(told) == 3:
            enforcer.stop()

    kept = enforcer._devices
    enforcer.run(0.01, passed)
    assert told == [True, False, True]


def test_a_pass_over_a_full_node_takes_less_than_20_ms(tmp_path: Path, checkpoint: Path) -> None:
    gpus = tuple(
        GpuSpec(f"0000:{bus:02x}:00.0", kfd_id=bus, card=bus, render=128 + bus)
        for bus in range(1, 9)
    )
    write_sys(tmp_path / "full", NodeSpec(gpus))
    write_cgroup(tmp_path / "tree", controllers="cpu")
    slices = []
    for index in range(80):
        uid = UID.replace("0f3c1d52", f"{index:08x}")
        container = ContainerSpec(f"{index:064x}", "train")
        write_pod(tmp_path / "tree", f"kubepods/pod{uid}", (container,), "{}")
        write_bundle(tmp_path / "run", container)
        slices.append(make("train", uid=uid))
    write_checkpoint(checkpoint, slices)
    roots = Roots(
        sys=tmp_path / "full", cgroup=tmp_path / "tree", run=tmp_path / "run", share=tmp_path
    )
    kernel = KernelLayers(tmp_path, tmp_path, roots.sys)
    enforcer = Enforcer(roots, checkpoint, kernel)
    first = enforcer.run_pass()
    assert len(first.containers) == 160
    taken = []
    for _ in range(10):
        # Of this thread: the machine may have more to do.
        start = time.thread_time()
        enforcer.run_pass()
        taken.append(time.thread_time() - start)
    assert min(taken) < 0.020


def test_a_problem_whose_number_changes_is_not_told_anew(
    enforcer: Enforcer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for size in (7, 9, 8):
        enforcer._report((Problem("drift of a", f"a has {size} MiB"), f"b {size // 8}"))
    enforcer._report(())
    told = [record.message for record in caplog.records]
    assert told == [
        "a has 7 MiB",
        "b 0",
        "b 1",
        "no longer: b 0",
        "no longer: a has 7 MiB",
        "no longer: b 1",
    ]


def test_a_pass_that_fails_again_and_again_is_told_once(
    enforcer: Enforcer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    tries = iter(range(9))

    def fail() -> None:
        raise ValueError(f"try {next(tries)}")

    def fail_elsewhere() -> None:
        raise ValueError(f"try {next(tries)}")

    for broken in (fail, fail, fail_elsewhere, fail_elsewhere):
        with monkeypatch.context() as patched:
            patched.setattr(enforcer, "run_pass", broken)
            assert enforcer.try_pass() is None
    assert caplog.text.count("a pass failed") == 2
    assert caplog.text.count("Traceback") == 2
    assert enforcer.try_pass() is not None
    assert enforcer.try_pass() is not None
    assert caplog.text.count("a pass succeeded again") == 1
