# SPDX-License-Identifier: Apache-2.0
"""Health from AMD's exporter, Events on the node, and its capacity."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from enforcer.api.server import Server
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from enforcer.model import DeviceTest, GpuHealth, HostSupport, Layer, LayerState, Snapshot
from tests.contract.conftest import NODE, REGISTER, RESOURCE, eventually
from tests.contract.peers.exporter import Exporter
from tests.contract.peers.kubelet import AdmissionError, Second

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from enforcer.model import ImageLibc, Protection
    from tests.contract.conftest import Bench

BDF, OTHER = "0000:05:00.0", "0000:65:00.0"


def events(bench: Bench) -> list[tuple[str, str]]:
    items = bench.api.store.list("events", "")["items"]
    return [(item["reason"], item["type"]) for item in items]


def test_a_gpu_the_exporter_calls_unhealthy_is_so_for_all_and_recovers(bench: Bench) -> None:
    socket = bench.root / "exporter"
    exporter = Exporter(socket, {BDF: "healthy", OTHER: "healthy"})
    bench.start(f"--metrics-exporter={socket}")
    gpu, other = bench.gpu_ids()
    exporter.states[BDF] = "unhealthy"
    bench.kubelet.wait_devices(RESOURCE, lambda ids: ids[f"{BDF}#0"] == "Unhealthy", timeout=20)
    assert bench.kubelet.wait_devices(RESOURCE)[f"{OTHER}#0"] == "Healthy"

    def registered() -> list[bool]:
        value = bench.api.node_annotations(NODE)[REGISTER]
        return [entry.get("health", False) for entry in json.loads(value)]

    eventually(lambda: registered() == [False, True])
    eventually(lambda: events(bench) == [("AMDGPUUnhealthy", "Warning")])
    with pytest.raises(AdmissionError, match=r"is unhealthy: the metrics exporter says unhealthy"):
        bench.admit(bench.bind("one", f"{gpu},T,4096,76:;"))
    bench.admit(bench.bind("two", f"{other},T,4096,76:;"))

    exporter.states[BDF] = "healthy"
    bench.kubelet.wait_devices(RESOURCE, lambda ids: ids[f"{BDF}#0"] == "Healthy", timeout=20)
    eventually(lambda: events(bench)[1:] == [("AMDGPURecovered", "Normal")])
    exporter.close()


class Enforcer:
    """The node side of the local API, with what it says of two GPUs that this process reads."""

    def __init__(self, root: Path) -> None:
        self.gpus = tuple(read_inventory(Roots(sys=root / "sys"))[0])
        self.ill: dict[str, str] = {}
        self.shut: dict[str, str] = {}

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        return []

    def snapshot(self) -> Snapshot | None:
        gate, dmem = (LayerState(layer, "not tried") for layer in (Layer.GATE, Layer.DMEM))
        health = tuple(
            GpuHealth(one.bdf, one.bdf not in self.ill, self.ill.get(one.bdf, ""))
            for one in self.gpus
        )
        return Snapshot(0.0, HostSupport(gate, dmem, "none"), self.gpus, (), health=health)

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        paths = ["/dev/kfd", *(f"/dev/dri/renderD{one.render}" for one in self.gpus)]
        return [DeviceTest(path, self.shut.get(path, "")) for path in paths]

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        raise TimeoutError


def test_what_the_enforcer_says_of_a_gpu_reaches_kubelet_and_goes_again(bench: Bench) -> None:
    enforcer = Enforcer(bench.root)
    server = Server(enforcer, bench.root / "enforcer.sock")
    server.start()
    bench.start()
    bench.gpu_ids()

    def well(bdf: str) -> bool:
        return bench.kubelet.wait_devices(RESOURCE)[f"{bdf}#0"] == "Healthy"

    enforcer.ill[BDF] = "being reset: a hang"
    eventually(lambda: not well(BDF) and well(OTHER), timeout=20)
    eventually(lambda: events(bench) == [("AMDGPUUnhealthy", "Warning")])
    enforcer.shut["/dev/dri/renderD129"] = "Input/output error"
    eventually(lambda: not well(BDF) and not well(OTHER), timeout=20)
    enforcer.ill.clear()
    enforcer.shut.clear()
    eventually(lambda: well(BDF) and well(OTHER), timeout=20)
    messages = [item["message"] for item in bench.api.store.list("events", "")["items"]]
    assert any("is unhealthy: being reset: a hang" in one for one in messages)
    assert any("renderD129 cannot be used: Input/output error" in one for one in messages)
    server.stop()
    time.sleep(1)
    assert well(BDF), "an enforcer that is away says nothing of the GPUs"


def test_a_gpu_that_goes_and_comes_back_leaves_two_events(bench: Bench) -> None:
    bench.start()
    bench.gpu_ids()
    node = bench.root / "sys/class/kfd/kfd/topology/nodes/2"
    node.rename(bench.root / "gone")
    eventually(lambda: events(bench) == [("AMDGPUMissing", "Warning")], timeout=20)
    (bench.root / "gone").rename(node)
    eventually(lambda: events(bench)[1:] == [("AMDGPURecovered", "Normal")], timeout=20)
    item = bench.api.store.list("events", "")["items"][0]
    assert item["involvedObject"]["uid"] == bench.api.node(NODE)["metadata"]["uid"]
    assert OTHER in item["message"]


def test_events_wait_for_an_api_server_that_is_away(bench: Bench) -> None:
    bench.start()
    bench.gpu_ids()
    bench.api.faults.away = True
    node = bench.root / "sys/class/kfd/kfd/topology/nodes/2"
    node.rename(bench.root / "gone")
    bench.kubelet.wait_devices(RESOURCE, lambda ids: ids[f"{OTHER}#0"] == "Unhealthy", timeout=20)
    bench.api.faults.away = False
    eventually(lambda: events(bench) == [("AMDGPUMissing", "Warning")], timeout=40)


@pytest.mark.parametrize("status", [401, 408, 429, 503])
def test_events_that_the_api_server_does_not_take_now_are_told_later(
    bench: Bench, status: int
) -> None:
    bench.start()
    bench.gpu_ids()
    bench.api.faults.refuse_events = status
    node = bench.root / "sys/class/kfd/kfd/topology/nodes/2"
    node.rename(bench.root / "gone")
    eventually(lambda: "event AMDGPUMissing of the node cannot be told" in bench.log, timeout=20)
    bench.api.faults.refuse_events = 0
    eventually(lambda: events(bench) == [("AMDGPUMissing", "Warning")], timeout=40)


def test_another_plugin_that_owns_the_resource_is_told_once(bench: Bench) -> None:
    bench.kubelet.second = Second.REFUSED
    bench.start(f"--state-dir={bench.root / 'other'}")
    bench.start(wait=False)
    eventually(lambda: ("AMDGPUPluginConflict", "Warning") in events(bench))
    message = bench.api.store.list("events", "")["items"][0]["message"]
    assert "device plugin already connected" in message
    eventually(lambda: bench.log.count("now and then") == 1)
    assert len(events(bench)) == 1


def test_devices_that_another_plugin_took_over_are_told(bench: Bench) -> None:
    bench.start()
    other = bench.start(f"--state-dir={bench.root / 'other'}")
    bench.kubelet.wait_registrations(3, timeout=30)
    eventually(lambda: ("AMDGPUPluginConflict", "Warning") in events(bench))
    bench.kill(other)


def test_a_kubelet_that_restarts_is_no_conflict(bench: Bench) -> None:
    bench.start()
    for number in (2, 3):
        bench.kubelet.stop()
        time.sleep(2)
        bench.kubelet.start()
        bench.kubelet.wait_registrations(number, timeout=20)
    bench.kubelet.wait_devices(RESOURCE, lambda ids: "Healthy" in ids.values())
    assert events(bench) == []


def test_the_nodes_capacity_is_published_when_asked_for_and_put_right(bench: Bench) -> None:
    bench.start("--report-node-capacity")
    sums = {"amd.com/gpumem": "392576", "amd.com/gpucores": "608"}

    def reported() -> bool:
        status = bench.api.node(NODE)["status"]
        return bool(status.get("capacity") == sums == status.get("allocatable"))

    eventually(reported)
    bench.api.store.patch("nodes", ("", NODE), {"status": {"capacity": None}})
    eventually(reported)


def test_the_nodes_capacity_is_left_alone_otherwise(bench: Bench) -> None:
    bench.start()
    bench.gpu_ids()
    assert bench.api.node(NODE)["status"] == {}
    assert bench.requests("PATCH", "/status") == []
