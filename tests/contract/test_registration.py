# SPDX-License-Identifier: Apache-2.0
"""Being known to kubelet, whatever happens to it, to the sockets, or to the GPUs."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.api.v1beta1_pb2_grpc import DevicePluginStub
from deviceplugin.options import LONGEST_SOCKET
from enforcer.host.sockets import LONGEST
from tests.contract.conftest import NODE, REGISTER, RESOURCE, eventually, running_bench
from tests.contract.peers.kubelet import Second
from tests.contract.peers.sysfs import Card, two_mi300x, write_sysfs

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


def healthy(devices: dict[str, str]) -> bool:
    return bool(devices) and set(devices.values()) == {"Healthy"}


def sockets(bench: Bench) -> list[Path]:
    return sorted(bench.kubelet.plugins.glob("ringfence-*.sock"))


def elsewhere(bench: Bench) -> str:
    """The option that makes it another plugin: two of one state directory stand in line."""
    return f"--state-dir={bench.root / 'other'}"


def test_kubelet_gets_every_slot_with_its_numa_node(bench: Bench) -> None:
    bench.start("--split-count=3")
    assert bench.kubelet.wait_devices(RESOURCE, healthy).keys() == {
        f"{bdf}#{slot}" for bdf in ("0000:05:00.0", "0000:65:00.0") for slot in range(3)
    }
    numa = bench.kubelet._resources[RESOURCE].numa
    assert numa["0000:05:00.0#0"] == (0,)
    assert numa["0000:65:00.0#2"] == (1,)
    assert bench.kubelet.lists(RESOURCE) == 1


def test_a_kubelet_with_another_root_directory_has_its_plugins_where_all_have_them(
    bench: Bench,
) -> None:
    assert bench.kubelet.directory not in bench.kubelet.plugins.parents
    bench.start()
    assert len(sockets(bench)) == 1
    assert list(bench.kubelet.directory.rglob("ringfence-*")) == []
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    bench.admit(pod)
    assert len(bench.slices) == 1
    # That it is over is believed by PodResources alone, which is in the root directory.
    bench.end(pod, "Failed")
    eventually(lambda: bench.slices == [], timeout=30)


def test_a_kubelet_restarted_50_times_has_the_devices_again_each_time(bench: Bench) -> None:
    process = bench.start()
    used: list[tuple[int, int]] = []
    for number in range(50):
        started = time.monotonic()
        bench.kubelet.restart()
        bench.kubelet.wait_registrations(number + 2)
        bench.kubelet.wait_devices(RESOURCE, healthy)
        assert time.monotonic() - started < 10, "2 s are its aim, see the benchmark"
        if number % 10 == 9:
            name = f"after-{number}"
            bench.admit(bench.bind(name, f"{bench.gpu_ids()[0]},T,4096,10:;"))
            bench.wait_phase(name, "success")
            bench.wait_unlocked()
            used.append((descriptors(process.pid), threads(process.pid)))
    assert len(sockets(bench)) == 1
    assert len(bench.slices) == 5
    # Of 40 more restarts, one that kept a descriptor or a thread each time would have 40 more.
    for before, after in zip(used[0], used[-1], strict=True):
        assert after < before + 20, f"they grow: {used}"


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_slow_kubelet_is_registered_with_once_and_served(bench: Bench) -> None:
    bench.kubelet.slow = 3.0
    bench.start(wait=False)
    bench.kubelet.wait_devices(RESOURCE, healthy, timeout=20)
    time.sleep(3)
    assert len(bench.kubelet.registrations) == 1
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,196288,304:;")
    bench.admit(pod)
    bench.wait_phase("one", "success")


def test_a_kubelet_too_slow_to_answer_a_registration_is_asked_again(bench: Bench) -> None:
    # Long after the next try: its late answer alone would do, too.
    bench.kubelet.slow = 15.0
    bench.start(wait=False)
    eventually(lambda: "deadline_exceeded" in bench.log, timeout=20)
    bench.kubelet.slow = 0.0
    # The one it gave no answer to, and the next.
    bench.kubelet.wait_registrations(2, timeout=30)
    bench.kubelet.wait_devices(RESOURCE, healthy, timeout=30)
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    eventually(lambda: len(sockets(bench)) == 1)


def test_a_kubelet_that_starts_later_is_waited_for(bench: Bench) -> None:
    bench.kubelet.stop()
    shutil.rmtree(bench.kubelet.plugins)
    bench.start(wait=False)
    time.sleep(1.5)
    eventually(lambda: bench.standing() == "waiting")
    bench.kubelet.start()
    bench.kubelet.wait_devices(RESOURCE, healthy)
    eventually(lambda: bench.standing() == "registered")


@pytest.mark.parametrize("by_another", [False, True], ids=["deleted", "replaced"])
def test_a_socket_that_is_not_ours_any_more_is_replaced(bench: Bench, by_another: bool) -> None:
    bench.start()
    (mine,) = sockets(bench)
    mine.unlink()
    if by_another:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(mine))
    bench.kubelet.wait_registrations(2)
    bench.kubelet.wait_devices(RESOURCE, healthy)
    assert set(sockets(bench)) - {mine} != set()


def test_every_stream_gets_the_list_at_once_and_every_change(bench: Bench) -> None:
    bench.start()
    (mine,) = sockets(bench)
    lists: list[list[set[str]]] = [[], []]

    def follow(own: list[set[str]]) -> None:
        with grpc.insecure_channel(f"unix:{mine}") as channel:
            for answer in DevicePluginStub(channel).ListAndWatch(pb.Empty()):
                own.append({one.health for one in answer.devices})
                if len(own) == 3:
                    return

    followers = [threading.Thread(target=follow, args=(own,), daemon=True) for own in lists]
    for one in followers:
        one.start()
    eventually(lambda: all(len(own) == 1 for own in lists))
    node = bench.root / "sys/class/kfd/kfd/topology/nodes/2"
    node.rename(bench.root / "gone")
    eventually(lambda: all(len(own) == 2 for own in lists), timeout=20)
    (bench.root / "gone").rename(node)
    for one in followers:
        one.join(timeout=20)
    assert lists == [[{"Healthy"}, {"Healthy", "Unhealthy"}, {"Healthy"}]] * 2
    assert bench.kubelet.wait_devices(RESOURCE, healthy)


def test_a_pod_is_served_after_kubelet_restarted(bench: Bench) -> None:
    bench.start()
    bench.kubelet.restart()
    bench.kubelet.wait_devices(RESOURCE, healthy)
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    bench.wait_phase("one", "success")


def test_sockets_of_killed_predecessors_are_cleared_and_foreign_ones_are_not(
    bench: Bench,
) -> None:
    bench.kill(bench.start())
    (left,) = sockets(bench)
    foreign = bench.kubelet.plugins / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(foreign))
    bench.start()
    assert left not in sockets(bench)
    assert foreign.exists()


def test_a_predecessor_that_ends_late_does_not_end_its_successor(bench: Bench) -> None:
    first = bench.start(elsewhere(bench))
    bench.start()
    assert bench.terminate(first) == 0
    bench.kubelet.wait_devices(RESOURCE, healthy)
    time.sleep(1)
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))


def test_an_orderly_end_leaves_no_socket_and_no_error(bench: Bench) -> None:
    process = bench.start()
    started = time.monotonic()
    assert bench.terminate(process) == 0
    assert time.monotonic() - started < 15
    assert sockets(bench) == []
    assert "Traceback" not in bench.log
    bench.kubelet.wait_devices(RESOURCE, lambda devices: set(devices.values()) == {"Unhealthy"})


@pytest.mark.parametrize("second", [Second.REPLACES, Second.REPLACES_AND_DROPS])
def test_devices_that_another_plugin_took_down_come_back(bench: Bench, second: Second) -> None:
    bench.kubelet.second = second
    bench.start()
    other = bench.start(elsewhere(bench))
    count = len(bench.kubelet.registrations)
    bench.kill(other)
    bench.kubelet.wait_registrations(count + 1, timeout=30)
    bench.kubelet.wait_devices(RESOURCE, healthy, timeout=20)
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))


def test_a_take_over_that_nobody_tells_of_shows_in_the_node_s_status(bench: Bench) -> None:
    bench.kubelet.second = Second.REPLACES_UNTOLD
    bench.start()
    # Another plugin comes, and goes; ours has its stream all the while.
    bench.kubelet.register(
        pb.RegisterRequest(version="v1beta1", endpoint="other.sock", resource_name=RESOURCE)
    )
    bench.kubelet.wait_devices(RESOURCE, lambda devices: set(devices.values()) == {"Unhealthy"})

    def kubelet_says(devices: int, minutes: int) -> None:
        when = datetime.now(UTC) + timedelta(minutes=minutes)
        ready = {"type": "Ready", "lastHeartbeatTime": when.isoformat(timespec="seconds")}
        counted = {"allocatable": {RESOURCE: str(devices)}, "conditions": [ready]}
        bench.api.store.patch("nodes", ("", NODE), {"status": counted})

    # What it said before it can have heard of ours means nothing, nor does our own number.
    for devices, minutes in ((0, -5), (20, 5)):
        kubelet_says(devices, minutes)
        time.sleep(1.5)
        assert len(bench.kubelet.registrations) == 2
    kubelet_says(0, 5)
    bench.kubelet.wait_registrations(3)
    bench.kubelet.wait_devices(RESOURCE, healthy)
    eventually(lambda: any("counts 0 and not the 20" in one for one in told(bench)))
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))


def told(bench: Bench) -> list[str]:
    """The messages of the events."""
    return [item["message"] for item in bench.api.store.list("events", "")["items"]]


def test_a_refused_registration_is_tried_again_calmly(bench: Bench) -> None:
    bench.kubelet.second = Second.REFUSED
    owner = bench.start(elsewhere(bench))
    bench.start(wait=False)
    eventually(lambda: "device plugin already connected" in bench.log)
    eventually(lambda: bench.standing() == "refused")
    time.sleep(4)
    assert bench.log.count("device plugin already connected") == 1, "said once"
    assert len(bench.kubelet.registrations) == 1
    bench.kill(owner)
    bench.kubelet.wait_registrations(2, timeout=20)
    bench.kubelet.wait_devices(RESOURCE, healthy)


def test_a_node_without_a_gpu_claims_nothing_until_the_driver_is_there(short_path: Path) -> None:
    with running_bench(short_path, ()) as one:
        one.start(wait=False)
        time.sleep(2)
        assert one.kubelet.registrations == []
        assert REGISTER not in one.api.node_annotations(NODE)
        write_sysfs(short_path / "sys", [Card()])
        one.kubelet.wait_devices(RESOURCE, healthy, timeout=20)
        assert len(one.gpu_ids()) == 1


def test_the_longest_directory_of_a_kubelet_has_room_for_the_sockets(short_path: Path) -> None:
    plugins = LONGEST - len(LONGEST_SOCKET)
    root = Path(f"{short_path}/".ljust(plugins - len("/device-plugins"), "x"))
    with running_bench(root, two_mi300x()) as one:
        one.start()
        assert [len(str(path)) for path in sockets(one)] == [LONGEST]


def test_a_gpu_that_goes_is_unhealthy_for_kubelet_and_scheduler_until_it_is_back(
    bench: Bench,
) -> None:
    bench.start()
    bench.gpu_ids()
    node = bench.root / "sys/class/kfd/kfd/topology/nodes/2"
    aside = bench.root / "gone"
    node.rename(aside)
    bench.kubelet.wait_devices(
        RESOURCE, lambda devices: devices["0000:65:00.0#0"] == "Unhealthy", timeout=20
    )
    assert bench.kubelet.wait_devices(RESOURCE)["0000:05:00.0#0"] == "Healthy"

    def health() -> list[bool]:
        value = bench.api.node_annotations(NODE)[REGISTER]
        return [gpu.get("health", False) for gpu in json.loads(value)]

    eventually(lambda: health() == [True, False])
    aside.rename(node)
    bench.kubelet.wait_devices(RESOURCE, healthy, timeout=20)
    eventually(lambda: health() == [True, True])
