# SPDX-License-Identifier: Apache-2.0
"""What the enforcer did to a pod, as Kubernetes Events on it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from enforcer.api.server import Server
from enforcer.model import (
    MIB,
    ContainerUsage,
    HostSupport,
    Incident,
    Layer,
    LayerState,
    Snapshot,
    Usage,
)
from tests.contract.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.model import DeviceTest, ImageLibc, Protection
    from tests.contract.conftest import Bench
    from tests.contract.peers.hami import Json

BDF = "0000:05:00.0"
LAYERS = (LayerState(Layer.GATE), LayerState(Layer.DMEM, "no dmem region for this GPU"))


class Enforcer:
    """The node side of the local API: answers with the snapshot it is given."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.latest = snapshot

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        raise TimeoutError

    def snapshot(self) -> Snapshot:
        return self.latest

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        return []

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        raise TimeoutError


@contextmanager
def enforcing(bench: Bench, *incidents: Incident) -> Iterator[Enforcer]:
    row = ContainerUsage("team", "job", "u", "train", "c", BDF, 4096 * MIB, Usage(), LAYERS)
    support = HostSupport(*LAYERS, "bo")
    enforcer = Enforcer(Snapshot(1.0, support, (), (row,), incidents=incidents))
    server = Server(enforcer, bench.root / "enforcer.sock")
    server.start()
    try:
        yield enforcer
    finally:
        server.stop()


def incident(reason: str, count: int = 1) -> Incident:
    return Incident(
        1000.0 + count, "team", "job", "u", "train", BDF, reason, count, 1, 2, 3, f"text {reason}"
    )


def events(bench: Bench) -> list[Json]:
    items = bench.api.store.list("events", "team")["items"]
    return sorted(items, key=lambda item: str(item["reason"]))


def reasons(bench: Bench) -> list[str]:
    return [item["reason"] for item in events(bench)]


def test_refusals_kills_and_layers_are_told_once_also_by_the_next_plugin(bench: Bench) -> None:
    done = ["AMDGPUMemoryRefused", "AMDGPUProcessKilled", "AMDGPUSliceHeld"]
    with enforcing(bench, incident("refused_limit"), incident("switched_killed")):
        process = bench.start()
        eventually(lambda: reasons(bench) == done, timeout=60)
        refused, _, held = events(bench)
        assert refused["message"] == f"GPU {BDF}: text refused_limit"
        assert refused["involvedObject"]["uid"] == "u"
        assert refused["involvedObject"]["fieldPath"] == "spec.containers{train}"
        assert held["message"].endswith("gate on, dmem off: no dmem region for this GPU")
        bench.kill(process)
        posts = len(bench.requests("POST", "/events"))
        bench.start()
        eventually(lambda: len(bench.requests("POST", "/events")) >= posts + 3, timeout=60)
        assert reasons(bench) == done


def test_what_could_not_be_told_is_told_when_the_api_server_is_back(bench: Bench) -> None:
    with enforcing(bench) as enforcer:
        bench.start()
        eventually(lambda: reasons(bench) == ["AMDGPUSliceHeld"], timeout=60)
        bench.api.faults.away = True
        enforcer.latest = replace(enforcer.latest, incidents=(incident("refused_limit"),))
        eventually(lambda: "AMDGPUMemoryRefused of pod team/job" in bench.log, timeout=60)
        bench.api.faults.away = False
        eventually(lambda: "AMDGPUMemoryRefused" in reasons(bench), timeout=60)


@pytest.mark.parametrize("status", [401, 408, 429, 503])
def test_what_the_api_server_does_not_take_now_is_told_later(bench: Bench, status: int) -> None:
    bench.api.faults.refuse_events = status
    with enforcing(bench):
        bench.start()
        eventually(lambda: "AMDGPUSliceHeld of pod team/job" in bench.log, timeout=60)
        bench.api.faults.refuse_events = 0
        eventually(lambda: reasons(bench) == ["AMDGPUSliceHeld"], timeout=60)


def test_what_the_api_server_never_takes_is_not_told_again_and_again(bench: Bench) -> None:
    bench.api.faults.refuse_events = 403
    with enforcing(bench) as enforcer:
        bench.start()
        eventually(lambda: "AMDGPUSliceHeld of pod team/job" in bench.log, timeout=60)
        enforcer.latest = replace(enforcer.latest, incidents=(incident("refused_limit"),))
        eventually(lambda: len(bench.requests("POST", "/events")) == 2, timeout=60)
        bench.api.faults.refuse_events = 0
        enforcer.latest = replace(enforcer.latest, incidents=(incident("switched_killed"),))
        eventually(lambda: reasons(bench) == ["AMDGPUProcessKilled"], timeout=60)


def test_without_an_enforcer_nothing_is_told(bench: Bench) -> None:
    bench.start()
    time.sleep(6)
    assert bench.requests("POST", "/events") == []
