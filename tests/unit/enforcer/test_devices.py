# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from pathlib import Path

import pytest

from enforcer import devices as module
from enforcer.api.errors import UntoldError
from enforcer.devices import Devices
from enforcer.host.apart import Answer
from enforcer.host.roots import Roots
from enforcer.layers import KernelLayers
from enforcer.model import DeviceTest, GpuLoad, HostSupport, Layer, LayerState, Why
from tests.testbed.trees import GpuSpec, NodeSpec, write_cgroup, write_sys

GPU = GpuSpec("0000:03:00.0", kfd_id=5, card=1, render=128, vram_used=4096)
REGION = "drm/0000:03:00.0/vram"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    write_sys(tmp_path / "sys", NodeSpec((GPU,)))
    write_cgroup(tmp_path / "cgroup", controllers="cpu dmem")
    return Roots(sys=tmp_path / "sys", cgroup=tmp_path / "cgroup", share=tmp_path)


def _devices(roots: Roots, *, use_dmem: bool = True) -> Devices:
    kernel = KernelLayers(roots.share, roots.share, roots.sys)
    return Devices(roots, kernel, use_dmem=use_dmem)


def _used(roots: Roots, size: int) -> None:
    (roots.sys / "bus/pci/devices" / GPU.bdf / "mem_info_vram_used").write_text(f"{size}\n")


def test_sensors_are_read_now_and_then_only(roots: Roots) -> None:
    devices = _devices(roots)
    devices.look(100)
    assert devices.loads == (GpuLoad(GPU.bdf, 4096, 0, 41.0, 90.0),)
    _used(roots, 8192)
    devices.look(104)
    assert devices.loads[0].vram_used == 4096
    devices.look(105)
    assert devices.loads[0].vram_used == 8192


def test_gpus_are_counted_again_after_a_change_or_half_a_minute(roots: Roots) -> None:
    devices = _devices(roots)
    devices.look(100)
    node = roots.sys / "class/kfd/kfd/topology/nodes/1/gpu_id"
    node.write_text("0\n")
    devices.look(129)
    assert len(devices.gpus) == 1
    devices.changed()
    devices.look(129)
    assert devices.gpus == ()
    node.write_text("5\n")
    devices.look(159)
    assert len(devices.gpus) == 1


def _bind(roots: Roots, *bdfs: str) -> None:
    driver = roots.sys / "bus/pci/drivers/amdgpu"
    driver.mkdir(parents=True, exist_ok=True)
    for bdf in bdfs:
        (driver / bdf).symlink_to("../../../../devices")


def test_a_gpu_that_the_driver_has_is_not_gone_because_kfd_builds_its_tree_anew(
    roots: Roots,
) -> None:
    _bind(roots, GPU.bdf)
    devices = _devices(roots)
    devices.look(100)
    nodes = roots.sys / "class/kfd/kfd/topology/nodes"
    nodes.rename(nodes.with_name("aside"))
    nodes.mkdir()
    # With as many events as there are devices behind it.
    for now in (101, 101.001, 101.9):
        devices.changed()
        devices.look(now)
    assert [one.bdf for one in devices.gpus] == [GPU.bdf]
    assert devices.instances.keys() == {GPU.bdf}
    nodes.rmdir()
    nodes.with_name("aside").rename(nodes)
    devices.look(102)
    assert [one.bdf for one in devices.gpus] == [GPU.bdf]


def test_a_gpu_that_kfd_has_not_on_the_second_look_either_is_gone(roots: Roots) -> None:
    _bind(roots, GPU.bdf)
    devices = _devices(roots)
    devices.look(100)
    (roots.sys / "class/kfd/kfd/topology/nodes/1/gpu_id").write_text("0\n")
    devices.changed()
    devices.look(101)
    assert len(devices.gpus) == 1
    devices.look(101.9)
    assert len(devices.gpus) == 1
    devices.look(102)
    assert devices.gpus == ()


class Kernel(KernelLayers):
    """Writes down what is asked of it."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(roots.share, roots.share, roots.sys)
        self.asked: list[str] = []

    def retry_gate(self) -> None:
        self.asked.append("retry")

    def set_gpus(self, by_kfd_id: Mapping[int, int], by_minor: Mapping[int, int]) -> None:
        self.asked.append(f"gpus {len(by_kfd_id)}")

    def attach(self) -> None:
        self.asked.append("attach")

    def let_go(self) -> None:
        self.asked.append("let go")


def test_nothing_is_attached_before_the_drivers_module_is_live(roots: Roots) -> None:
    state = roots.sys / "module/amdgpu/initstate"
    state.parent.mkdir(parents=True)
    state.write_text("coming\n")
    _bind(roots, GPU.bdf)
    kernel = Kernel(roots)
    devices = Devices(roots, kernel, use_dmem=False)
    for now in (100, 100.5):
        devices.look(now)
        devices.attach()
    assert kernel.asked == ["retry", "gpus 1"]
    assert not devices.settled
    state.write_text("live\n")
    devices.look(101)
    # What is told of the GPU meanwhile finds it known.
    assert devices.instances.keys() == {GPU.bdf}
    devices.attach()
    devices.attach()
    assert kernel.asked[2:] == ["retry", "gpus 1", "attach"]


def test_a_driver_that_comes_for_a_minute_is_a_problem(roots: Roots) -> None:
    state = roots.sys / "module/amdgpu/initstate"
    state.parent.mkdir(parents=True)
    state.write_text("coming\n")
    devices = _devices(roots, use_dmem=False)
    for now in range(100, 160):
        devices.look(now)
        assert devices.problems == []
    devices.look(160)
    (line,) = devices.problems
    assert line.startswith("the driver's module has been coming or going for a minute")
    state.write_text("live\n")
    devices.look(189)
    assert devices.problems == [line]
    devices.look(190)
    assert devices.problems == []


def test_a_driver_without_a_gpu_is_let_go(roots: Roots) -> None:
    _bind(roots)
    kernel = Kernel(roots)
    devices = Devices(roots, kernel, use_dmem=False)
    devices.look(100)
    devices.attach()
    assert kernel.asked[-1] == "let go"


def test_a_region_that_took_no_limit_is_never_claimed(roots: Roots) -> None:
    # A plain directory is no cgroup: the probe's write does not read back.
    (roots.cgroup / "dmem.capacity").write_text(f"{REGION} 4096\n")
    devices = _devices(roots)
    devices.look(100)
    assert devices.regions == {}
    assert devices.dmem_off is Why.NOT_IN_PLACE
    assert devices.dmem.reason is Why.NOT_IN_PLACE


@pytest.mark.parametrize(
    "capacity", [None, "", "drm/0000:00:02.0/vram0 4096\n", "drm/0000:03:00.0/gtt 4096\n"]
)
def test_a_gpu_without_a_region_is_the_reason(roots: Roots, capacity: str | None) -> None:
    if capacity is not None:
        (roots.cgroup / "dmem.capacity").write_text(capacity)
    devices = _devices(roots)
    devices.look(100)
    assert (devices.dmem_off, devices.dmem.reason) == (None, Why.NO_REGION)


def test_a_region_of_a_gpu_that_is_not_seen_is_no_gpu_without_a_region(roots: Roots) -> None:
    (roots.cgroup / "dmem.capacity").write_text(f"{REGION} 4096\n")
    node = roots.sys / "class/kfd/kfd/topology/nodes/1/gpu_id"
    node.write_text("nonsense\n")
    devices = _devices(roots)
    devices.look(100)
    assert (devices.gpus, devices.dmem.reason) == ((), Why.UNREAD)
    assert not _can_hold_nothing(devices)
    node.write_text("5\n")
    devices.look(130)
    assert devices.dmem.reason is Why.NOT_IN_PLACE


@pytest.mark.parametrize("how", ["malformed", "unreadable"])
def test_a_capacity_that_cannot_be_read_does_not_say_that_there_is_none(
    roots: Roots, how: str
) -> None:
    capacity = roots.cgroup / "dmem.capacity"
    if how == "malformed":
        capacity.write_text("nonsense\n")
    else:
        capacity.symlink_to(capacity)
    devices = _devices(roots)
    devices.look(100)
    assert "dmem.capacity" in devices.problems[0]
    assert (devices.dmem_off, devices.dmem.reason) == (Why.UNREAD, Why.UNREAD)
    assert not _can_hold_nothing(devices)
    capacity.unlink()
    devices.look(130)
    assert devices.dmem.reason is Why.NO_REGION
    assert _can_hold_nothing(devices)


def test_regions_that_took_a_limit_stay_in_use_while_the_capacity_cannot_be_read(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "probe_dmem", lambda _, regions: dict.fromkeys(regions))
    capacity = roots.cgroup / "dmem.capacity"
    capacity.write_text(f"{REGION} 4096\n")
    devices = _devices(roots)
    devices.look(100)
    assert (devices.regions, devices.dmem.on) == ({GPU.bdf: REGION}, True)
    capacity.unlink()
    capacity.symlink_to(capacity)
    devices.look(130)
    assert (devices.regions, devices.dmem.on) == ({GPU.bdf: REGION}, True)
    capacity.unlink()
    devices.look(160)
    assert (devices.regions, devices.dmem.reason) == ({}, Why.NO_REGION)


def test_a_region_that_is_told_and_not_taken_is_no_gpu_without_a_region(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = lambda _, regions: dict.fromkeys(regions, Why.NO_REGION)  # noqa: E731
    monkeypatch.setattr(module, "probe_dmem", refused)
    (roots.cgroup / "dmem.capacity").write_text(f"{REGION} 4096\n")
    devices = _devices(roots)
    devices.look(100)
    assert devices.dmem.reason is Why.REFUSED


def _can_hold_nothing(devices: Devices) -> bool:
    gate = LayerState(Layer.GATE, Why.NOT_POSSIBLE)
    return HostSupport(gate, devices.dmem, "none").kernel_can_hold_nothing


def test_dmem_that_is_switched_off_is_not_tried(roots: Roots) -> None:
    (roots.cgroup / "dmem.capacity").write_text(f"{REGION} 4096\n")
    before = (roots.cgroup / "cgroup.subtree_control").read_text()
    devices = _devices(roots, use_dmem=False)
    devices.look(100)
    assert devices.dmem.reason is Why.SWITCHED_OFF
    assert (roots.cgroup / "cgroup.subtree_control").read_text() == before


def test_a_cgroup1_host_keeps_its_gpus(roots: Roots) -> None:
    (roots.cgroup / "cgroup.controllers").unlink()
    devices = _devices(roots)
    devices.look(100)
    assert (len(devices.gpus), devices.problems) == (1, [])


class Here:
    """Answers for the processes apart."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def ask(self, _: str, about: list[str], __: float) -> list[Answer]:
        return [self.answer for _ in about]


def test_only_a_device_that_was_tried_is_called_unusable(roots: Roots) -> None:
    here = Here(Answer("does not answer within 5.0 s", silent=True))
    kernel = KernelLayers(roots.share, roots.share, roots.sys)
    devices = Devices(roots, kernel, use_dmem=False, apart=here)  # type: ignore[arg-type]
    assert devices.test([], 5) == [DeviceTest("/dev/kfd", here.answer.text)]
    with pytest.raises(UntoldError, match=r"in 0\.5 s: the call waited too long"):
        devices.test([], 0.5)
    here.answer = Answer("ended without an answer", silent=True, failed=True)
    with pytest.raises(UntoldError, match="/dev/kfd cannot be tested: ended without an answer"):
        devices.test([], 5)
    with pytest.raises(UntoldError, match="no process for it"):
        _devices(roots).test([], 5)
