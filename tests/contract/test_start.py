# SPDX-License-Identifier: Apache-2.0
"""PreStartContainer: a container starts when the enforcer holds its slice."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from enforcer.api.errors import NotFoundError
from enforcer.api.server import Server
from enforcer.model import HostSupport, ImageLibc, Layer, LayerState, Protection, Snapshot, Why
from tests.contract.conftest import eventually
from tests.contract.peers import hami
from tests.contract.peers.kubelet import StartError
from tests.contract.peers.sysfs import two_mi300x, write_sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.model import DeviceTest
    from tests.contract.conftest import Bench

BDF = "0000:05:00.0"
WHOLE = "196288,304"


class Enforcer:
    """The node side of the local API: every slice is held by ``layer``."""

    def __init__(self, layer: LayerState) -> None:
        self.layer = layer
        self.prepared: list[str] = []
        self.pods: set[str] | None = None
        """UIDs of those that have a cgroup; None: every one."""
        self.images: dict[str, ImageLibc] = {}
        """What the runtime has; with it nothing in the kernel holds a slice."""

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        if self.pods is not None and pod_uid not in self.pods:
            raise NotFoundError(f"pod {pod_uid} has no cgroup")
        self.prepared.append(container)
        return [(Protection(f"kubepods/pod{pod_uid}", BDF, (self.layer,)), False)]

    def snapshot(self) -> Snapshot | None:
        dmem = LayerState(Layer.DMEM, Why.NO_REGION)
        support = HostSupport(self.layer, dmem, "none")
        return Snapshot(1.0, support, (), ()) if self.images else None

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        return []

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        if image not in self.images:
            raise NotFoundError(f"there is no image {image}")
        return self.images[image]


@contextmanager
def enforcing(bench: Bench, layer: LayerState) -> Iterator[Enforcer]:
    """An enforcer on the node's socket."""
    enforcer = Enforcer(layer)
    server = Server(enforcer, bench.root / "enforcer.sock")
    server.start()
    try:
        yield enforcer
    finally:
        server.stop()


def admitted(bench: Bench, *options: str, share: str = "4096,76") -> str:
    """The UID of a pod that kubelet admitted."""
    bench.start(*options)
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,{share}:;")
    bench.admit(pod)
    return str(pod["metadata"]["uid"])


def test_a_held_slice_starts_and_starts_again(bench: Bench) -> None:
    uid = admitted(bench)
    with enforcing(bench, LayerState(Layer.GATE)) as enforcer:
        bench.kubelet.start_container(uid, "app")
        bench.kubelet.start_container(uid, "app")
    assert enforcer.prepared == ["app", "app"]


def test_a_slice_that_nothing_holds_does_not_start_and_says_why(bench: Bench) -> None:
    uid = admitted(bench)
    with (
        enforcing(bench, LayerState(Layer.GATE, "no BTF")),
        pytest.raises(StartError, match=r"FAILED_PRECONDITION.*default/one.*gate off: no BTF"),
    ):
        bench.kubelet.start_container(uid, "app")


def test_without_a_kernel_layer_the_image_decides_at_every_start(bench: Bench) -> None:
    (bench.root / "hook").mkdir()
    for name in ("libringfence-audit.so", "libringfence-hsa.so"):
        (bench.root / "hook" / name).write_bytes(b"\x7fELF")
    uid = admitted(bench)
    musl = ImageLibc("musl", "", tool_loads=False, auditor_loads=False, notes=("musl",))
    with enforcing(bench, LayerState(Layer.GATE, Why.NOT_POSSIBLE)) as enforcer:
        enforcer.images = {"rocm/dev": musl}
        with pytest.raises(StartError, match="image rocm/dev cannot load the hook: musl"):
            bench.kubelet.start_container(uid, "app")
        enforcer.images = {"rocm/dev": replace(musl, libc="glibc", tool_loads=True)}
        bench.kubelet.start_container(uid, "app")
        enforcer.images = {"other": musl}
        with pytest.raises(StartError, match="there is no image rocm/dev"):
            bench.kubelet.start_container(uid, "app")
        enforcer.images = {"rocm/dev": replace(musl, libc="glibc", tool_loads=True)}
        (bench.root / "hook/libringfence-hsa.so").unlink()
        with pytest.raises(StartError, match="the hook is not installed any more"):
            bench.kubelet.start_container(uid, "app")
    assert "the hook alone holds it, in image rocm/dev" in bench.log


@pytest.mark.parametrize("hooked", [True, False])
def test_without_a_kernel_layer_kubelets_record_knows_the_hook_where_the_checkpoint_was_lost(
    bench: Bench, hooked: bool
) -> None:
    def install() -> None:
        (bench.root / "hook").mkdir()
        for name in ("libringfence-audit.so", "libringfence-hsa.so"):
            (bench.root / "hook" / name).write_bytes(b"\x7fELF")

    if hooked:
        install()
    process = bench.start()
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    bench.admit(pod)
    bench.wait_phase("one", "success")
    bench.wait_unlocked()
    bench.kill(process)
    (bench.root / "state/slices.json").unlink()
    if not hooked:
        install()
    bench.start()
    eventually(lambda: len(bench.slices) == 1)
    assert bench.slices[0].hook is None
    uid = pod["metadata"]["uid"]
    with enforcing(bench, LayerState(Layer.GATE, Why.NOT_POSSIBLE)) as enforcer:
        enforcer.images = {
            "rocm/dev": ImageLibc("glibc", "2.36", tool_loads=True, auditor_loads=True)
        }
        if hooked:
            bench.kubelet.start_container(uid, "app")
        else:
            with pytest.raises(StartError, match="kubelet gives it no hook of this installation"):
                bench.kubelet.start_container(uid, "app")


def test_fail_open_starts_it_and_logs_why(bench: Bench) -> None:
    uid = admitted(bench, "--fail-open")
    with enforcing(bench, LayerState(Layer.GATE, "no BTF")):
        bench.kubelet.start_container(uid, "app")
    assert "started all the same, as --fail-open says" in bench.log


def test_an_enforcer_that_is_away_is_waited_for(bench: Bench) -> None:
    uid = admitted(bench)
    with enforcing(bench, LayerState(Layer.GATE)):
        bench.kubelet.start_container(uid, "app")
    with enforcing(bench, LayerState(Layer.GATE)) as enforcer:
        bench.kubelet.start_container(uid, "app")
    assert enforcer.prepared == ["app"]


def test_many_starts_that_wait_leave_room_for_an_allocate(bench: Bench) -> None:
    uid = admitted(bench)
    bench.wait_unlocked()
    errors: list[str] = []

    def start() -> None:
        try:
            bench.kubelet.start_container(uid, "app")
        except StartError as error:
            errors.append(str(error))

    starts = [threading.Thread(target=start) for _ in range(40)]
    for one in starts:
        one.start()
    eventually(lambda: len(errors) >= 20)
    assert "pod default/one: 20 other containers wait for the enforcer already" in errors[0]
    got = bench.admit(bench.bind("two", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    assert got["app"].allocate_seconds < 3
    with enforcing(bench, LayerState(Layer.GATE)) as enforcer:
        for one in starts:
            one.join()
    assert len(enforcer.prepared) == 20


def test_init_and_app_container_on_one_device_are_both_held(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    pod = bench.bind(
        "both",
        f"{gpu},T,1024,10:;{gpu},T,2048,20:;",
        hami.container("app", 1),
        init=(hami.container("init", 1),),
    )
    bench.admit(pod)
    with enforcing(bench, LayerState(Layer.DMEM)) as enforcer:
        bench.kubelet.start_container(pod["metadata"]["uid"], "app")
    assert enforcer.prepared == ["init", "app"]


def test_devices_whose_slice_is_lost_name_their_pod_and_what_helps(bench: Bench) -> None:
    process = bench.start()
    gpu = bench.gpu_ids()[0]
    pod = bench.bind("one", f"{gpu},T,4096,76:;")
    bench.admit(pod)
    bench.wait_unlocked()
    bench.kill(process)
    (bench.root / "state/slices.json").unlink()
    # Whose annotations would tell.
    bench.api.store.delete("pods", ("default", "one"))
    bench.start()
    helps = "of pod default/one: if it was lost, a new pod is given one: delete this one"
    with pytest.raises(StartError, match=helps):
        bench.kubelet.start_container(pod["metadata"]["uid"], "app")


def test_ids_nobody_was_given_do_not_start(bench: Bench) -> None:
    bench.start()
    with pytest.raises(StartError, match="no slice was given for no device"):
        bench.kubelet.start_container("never-admitted", "app")


def test_a_whole_gpu_starts_without_an_enforcer(bench: Bench) -> None:
    uid = admitted(bench, share=WHOLE)
    started = time.monotonic()
    bench.kubelet.start_container(uid, "app")
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("share", [WHOLE, "4096,76"])
@pytest.mark.parametrize("cdi", [True, False])
def test_a_container_does_not_start_again_with_a_gpu_that_has_its_number_now(
    bench: Bench, share: str, cdi: bool
) -> None:
    options = ["--fail-open", *([f"--cdi-dir={bench.root / 'cdi'}"] if cdi else [])]
    uid = admitted(bench, *options, share=share)
    with enforcing(bench, LayerState(Layer.DMEM)):
        bench.kubelet.start_container(uid, "app")
    bench.kill(bench.processes[0])
    first, second = two_mi300x()
    shutil.rmtree(bench.root / "sys")
    write_sysfs(bench.root / "sys", (replace(first, minor=1), replace(second, minor=0)))
    bench.start(*options)
    with (
        enforcing(bench, LayerState(Layer.DMEM)),
        pytest.raises(StartError, match=r"default/one.*another number since.*card0.*card1.* now"),
    ):
        bench.kubelet.start_container(uid, "app")


def test_a_whole_gpu_nobody_says_whose_it_is_starts_only_when_the_enforcer_knows_the_pod(
    bench: Bench,
) -> None:
    bench.kubelet.stop()
    bench.kubelet.pod_resources = False
    (bench.root / "kubelet/pod-resources/kubelet.sock").unlink(missing_ok=True)
    bench.kubelet.start()
    uid = admitted(bench, share=WHOLE)
    with enforcing(bench, LayerState(Layer.GATE)) as enforcer:
        enforcer.pods = set()
        with pytest.raises(StartError, match=f"pod {uid} has no cgroup"):
            bench.kubelet.start_container(uid, "app")
    with enforcing(bench, LayerState(Layer.GATE)) as enforcer:
        enforcer.pods = {uid}
        bench.kubelet.start_container(uid, "app")


def test_a_restarted_plugin_still_knows_the_slice(bench: Bench) -> None:
    uid = admitted(bench)
    bench.kill(bench.processes[0])
    bench.start()
    with enforcing(bench, LayerState(Layer.GATE)) as enforcer:
        bench.kubelet.start_container(uid, "app")
    assert enforcer.prepared == ["app"]
