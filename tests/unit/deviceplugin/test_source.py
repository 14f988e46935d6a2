# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

from deviceplugin.source import GpuSource
from enforcer.api.client import Client, EnforcerError
from enforcer.host.roots import Roots
from enforcer.model import DeviceTest, GpuHealth, HostSupport, Layer, LayerState, Snapshot
from tests.testbed.machines import MACHINES
from tests.testbed.trees import write_sys

from .given import BDF, OTHER, gpu

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from enforcer.model import Gpu


class TellingClient(Client):
    """A connection to an enforcer that tells what a test says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gpus: tuple[Gpu, ...] | None = None
        self.health: tuple[GpuHealth, ...] = ()
        self.shut: dict[str, str] | None = {}
        self.tests = 0

    def snapshot(self, timeout: float) -> Snapshot:
        if self.gpus is None:
            raise EnforcerError(f"no answer within {timeout} s")
        gate, dmem = (LayerState(layer, "not tried") for layer in (Layer.GATE, Layer.DMEM))
        support = HostSupport(gate, dmem, "none")
        return Snapshot(0.0, support, self.gpus, (), health=self.health)

    def test_devices(self, bdfs: Iterable[str] = (), *, timeout: float) -> list[DeviceTest]:
        self.tests += 1
        if self.shut is None:
            raise EnforcerError(f"no answer within {timeout} s")
        paths = ["/dev/kfd", *(f"/dev/dri/renderD{one.render}" for one in self.gpus or ())]
        return [DeviceTest(path, self.shut.get(path, "")) for path in paths]


def test_the_enforcer_sees_gpus_that_this_process_may_not(tmp_path: Path) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, [].append)
        gpus, problems = source.read()
        assert gpus == []
        assert "no GPU in sight here, and the enforcer says nothing" in problems[-1]
        client.gpus = (gpu(), gpu(OTHER))
        assert [one.bdf for one in source.read()[0]] == [BDF, OTHER]
        client.gpus = None
        assert [one.bdf for one in source.read()[0]] == [BDF, OTHER]
        client.gpus = (gpu(OTHER),)
        assert [one.bdf for one in source.read()[0]] == [OTHER]


def test_what_was_learned_before_work_stays_and_was_shown_to_nobody(tmp_path: Path) -> None:
    shown: list[Snapshot] = []
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, shown.append)
        source.learn()
        client.gpus = (gpu(), gpu(OTHER))
        client.health = (GpuHealth(BDF, False, "being reset: a hang"), GpuHealth(OTHER, True))
        client.shut = {f"/dev/dri/renderD{gpu(OTHER).render}": "Input/output error"}
        source.learn()
        assert shown == []
        client.gpus = None
        assert [one.bdf for one in source.read()[0]] == [BDF, OTHER]
        assert set(source.ailing()) >= {BDF}
        assert len(source.ailing()) == 2


def test_what_the_kernel_tells_of_a_gpu_is_believed_until_it_tells_otherwise(
    tmp_path: Path,
) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, [].append)
        client.gpus = (gpu(), gpu(OTHER))
        client.health = (GpuHealth(BDF, False, "being reset: a hang"), GpuHealth(OTHER, True))
        source.read()
        assert source.ailing() == {BDF: "being reset: a hang"}
        client.gpus = None
        source.read()
        assert source.ailing() == {BDF: "being reset: a hang"}, "an enforcer away is no news"
        client.gpus, client.health = (gpu(), gpu(OTHER)), (GpuHealth(BDF, True),)
        source.read()
        assert source.ailing() == {}


def test_a_render_node_that_cannot_be_opened_makes_its_device_unhealthy(tmp_path: Path) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, [].append)
        client.gpus = (gpu(partition=0, render=128), gpu(partition=1, render=130))
        client.shut = {"/dev/dri/renderD130": "No such device"}
        source.read()
        why = "/dev/dri/renderD130 cannot be used: No such device"
        assert source.ailing() == {f"{BDF}-1": why}
        client.shut = {}
        source.read()
        assert source.ailing() == {}, "what failed is tried at every look"


def test_without_kfd_no_gpu_can_be_used(tmp_path: Path) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, [].append)
        client.gpus = (gpu(), gpu(OTHER))
        client.shut = {"/dev/kfd": "Permission denied"}
        source.read()
        assert source.ailing().keys() == {BDF, OTHER}


def test_devices_that_can_be_used_are_opened_now_and_then(tmp_path: Path) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, [].append)
        client.gpus = (gpu(),)
        for _ in range(8):
            source.read()
        assert client.tests == 2


def test_an_enforcer_that_cannot_test_says_nothing_of_the_devices(tmp_path: Path) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, [].append)
        client.gpus, client.shut = (gpu(),), None
        source.read()
        assert source.ailing() == {}


def test_what_the_enforcer_sees_is_not_read_here_again(tmp_path: Path) -> None:
    write_sys(tmp_path / "sys", MACHINES["a virtual function"])
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path / "sys", share=tmp_path), client, [].append)
        client.gpus = (gpu(),)
        assert [one.bdf for one in source.read()[0]] == [BDF]
        client.gpus = ()
        assert [one.bdf for one in source.read()[0]] == ["0000:05:02.1"], "it sees none"
        client.gpus = None
        assert [one.bdf for one in source.read()[0]] == ["0000:05:02.1"], "it is away"


def test_what_the_enforcer_says_is_shown_to_whom_it_concerns(tmp_path: Path) -> None:
    shown: list[Snapshot] = []
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client, shown.append)
        source.read()
        assert shown == []
        client.gpus = (gpu(),)
        source.read()
    assert [one.gpus for one in shown] == [(gpu(),)]
