# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from deviceplugin.reap import gone_pods

from .given import BDF, CREATED, pod, slice_of

if TYPE_CHECKING:
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


def test_a_device_that_a_later_namesake_got_is_not_the_old_pods() -> None:
    old = replace(SLICE, pod_uid="uid-before")
    now = datetime.now(UTC)
    assert gone_pods([old, SLICE], ALIVE, HELD, now) == [("uid-before", "default", "pod")]
    assert gone_pods([SLICE, old], ALIVE, HELD, now) == []


def test_the_slice_of_a_replaced_pod_goes_and_its_successors_stays() -> None:
    old = replace(SLICE, pod_uid="uid-before", device_ids=(f"{BDF}#1",))
    now = datetime.now(UTC)
    assert gone_pods([old, SLICE], ALIVE, HELD, now) == [("uid-before", "default", "pod")]
