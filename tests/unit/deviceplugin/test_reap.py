# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client

from deviceplugin.apiserver import ApiServer
from deviceplugin.checkpoint import Checkpoint
from deviceplugin.pods import PodCache
from deviceplugin.reap import Reaper, gone_pods, over_pods

from .given import BDF, CREATED, DEVICES, NODE, OTHER, OTHER_ID, pod, slice_of

if TYPE_CHECKING:
    from pathlib import Path

    from deviceplugin.podresources import PodDevices

LATER = datetime.fromisoformat(CREATED) + timedelta(minutes=1)
SLICE = slice_of()
ALIVE = {"uid-pod": pod(";")}
ENDED = {"uid-pod": pod(";", phase="Failed")}
HELD = {("default", "pod"): {"app": (f"{BDF}#0",)}}
ELSEWHERE = {("default", "pod"): {"app": (f"{BDF}#7",)}}
GONE = [("uid-pod", "default", "pod")]


@pytest.mark.parametrize(
    ("pods", "held", "gone"),
    [
        (ALIVE, None, []),
        (ALIVE, HELD, []),
        (ALIVE, {}, []),
        ({}, None, GONE),
        ({}, {}, GONE),
        ({}, HELD, []),
        ({}, ELSEWHERE, GONE),
        (ENDED, None, []),
        (ENDED, HELD, []),
        (ENDED, {}, GONE),
    ],
    ids=[
        "alive-and-kubelet-silent",
        "alive-and-held",
        "alive-and-not-held",
        "deleted-and-kubelet-silent",
        "deleted-and-not-held",
        "deleted-and-held",
        "deleted-and-a-namesake-holds-others",
        "ended-and-kubelet-silent",
        "ended-and-held",
        "ended-and-not-held",
    ],
)
def test_a_slice_goes_when_neither_side_has_the_pod(
    pods: dict[str, object],
    held: PodDevices | None,
    gone: list[tuple[str, str, str]],
) -> None:
    assert gone_pods([SLICE], pods, held, LATER) == gone  # type: ignore[arg-type]


def test_a_young_slice_stays() -> None:
    now = datetime.fromisoformat(CREATED) + timedelta(seconds=2)
    assert gone_pods([SLICE], {}, {}, now) == []
    young = replace(slice_of("second"), created=LATER.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    assert gone_pods([SLICE, young], {}, {}, LATER) == []


def test_a_slice_from_before_the_clock_was_set_back_is_not_young_for_ever() -> None:
    now = datetime.fromisoformat(CREATED) - timedelta(days=400)
    assert gone_pods([SLICE], {}, {}, now) == GONE


def test_a_young_slice_goes_too_where_kubelets_record_is_known_to_be_up_to_date() -> None:
    now = datetime.fromisoformat(CREATED)
    assert gone_pods([SLICE], {}, {}, now, young=0.0) == GONE
    assert gone_pods([SLICE], {}, HELD, now, young=0.0) == []
    assert gone_pods([SLICE], ALIVE, {}, now, young=0.0) == []


def test_pods_that_are_over_or_gone_are_news_whatever_kubelet_has() -> None:
    assert over_pods([SLICE], ALIVE) == set()
    assert over_pods([SLICE], ENDED) == over_pods([SLICE], {}) == {"uid-pod"}
    assert over_pods([], ENDED) == set()


def test_a_device_that_a_later_namesake_got_is_not_the_old_pods() -> None:
    old = replace(SLICE, pod_uid="uid-before")
    now = datetime.now(UTC)
    assert gone_pods([old, SLICE], ALIVE, HELD, now) == [("uid-before", "default", "pod")]
    assert gone_pods([SLICE, old], ALIVE, HELD, now) == []


def test_the_slice_of_a_replaced_pod_goes_and_its_successors_stays() -> None:
    old = replace(SLICE, pod_uid="uid-before", device_ids=(f"{BDF}#1",))
    now = datetime.now(UTC)
    assert gone_pods([old, SLICE], ALIVE, HELD, now) == [("uid-before", "default", "pod")]


def test_what_keeps_it_from_its_work_is_told_when_it_begins_changes_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("deviceplugin.reap._PAUSE_SECONDS", 0.0)
    api = ApiServer(client.ApiClient(), "node")
    checkpoint = Checkpoint(tmp_path / "slices.json")
    reaper = Reaper(api, PodCache(api), checkpoint, lambda _: None, lambda: ())
    troubles = iter(["no space left", "no space left", "read-only", None, None])

    def flush() -> None:
        if (trouble := next(troubles)) is not None:
            raise OSError(trouble)

    monkeypatch.setattr(checkpoint, "flush", flush)
    for _ in range(5):
        reaper.work()
    assert [record.message for record in caplog.records] == [
        "the slices stay as they are for now: no space left",
        "the slices stay as they are for now: read-only",
        "the slices follow what runs again",
    ]


def test_what_others_left_is_taken_back_at_once_as_far_as_there_is_time(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "slices.json")
    for name in ("a", "b", "c"):
        checkpoint.add(slice_of(name=name))
    asked: list[float] = []
    deadline = time.monotonic() + 0.5

    def get_pod(_: str, name: str, timeout: float) -> None:
        asked.append(timeout)
        if name == "b":
            time.sleep(max(0.0, deadline - time.monotonic()))

    api: Any = SimpleNamespace(get_pod=get_pod)
    cache: Any = SimpleNamespace(pods=list, synced=True)
    held: PodDevices | None = None
    reaper = Reaper(api, cache, checkpoint, lambda _: held, lambda: ())
    reaper.reap_now(deadline)
    assert asked == [], "nothing is known of what kubelet has"
    held = {}
    reaper.reap_now(deadline)
    assert [item.pod for item in checkpoint.slices] == ["c"]
    assert len(asked) == 2
    assert max(asked) <= 0.5


def test_lost_slices_are_looked_for_until_kubelet_and_gpus_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = pod(
        ";",
        phase="Running",
        bind_phase="success",
        amd_devices_allocated=f"{OTHER_ID},T,4096,76:;",
    )
    held: PodDevices = {}
    devices = DEVICES[:1]
    checkpoint = Checkpoint(tmp_path / "slices.json")
    api: Any = SimpleNamespace(node=NODE)
    cache: Any = SimpleNamespace(pods=lambda: [served], synced=True)
    reaper = Reaper(api, cache, checkpoint, lambda _: held, lambda: devices)
    assert not reaper.recover(), "kubelet has just started"
    assert caplog.text == ""
    held = {("default", "pod"): {"app": (f"{OTHER}#0",)}}
    assert not reaper.recover(), "the GPU is not offered yet"
    assert not reaper.recover()
    assert caplog.text.count("cannot be made out") == 1
    devices = DEVICES
    assert reaper.recover()
    assert [item.pod for item in checkpoint.slices] == ["pod"]


def test_a_pod_that_has_just_ended_is_looked_at_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def reap(_: Reaper) -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(Reaper, "reap", reap)
    checkpoint = Checkpoint(tmp_path / "slices.json")
    checkpoint.add(SLICE)
    pods = [ALIVE["uid-pod"]]
    cache: Any = SimpleNamespace(pods=lambda: pods, synced=True)
    nobody: Any = None
    reaper = Reaper(nobody, cache, checkpoint, lambda _: None, lambda: ())
    reaper.work()
    assert reaper.work() < 2
    assert looks == 1
    pods = [ENDED["uid-pod"]]
    reaper.work()
    assert looks == 2
    # As long as kubelet has it, nothing is new.
    reaper.work()
    assert looks == 2
