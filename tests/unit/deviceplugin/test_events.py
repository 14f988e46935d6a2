# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from deviceplugin.devices import GONE, WITHHELD
from deviceplugin.events import (
    IDLE_DIES,
    MISSING,
    NOT_OFFERED,
    RECOVERED,
    UNHEALTHY,
    Event,
    device_events,
    event_body,
    just_told,
)

from .given import BDF, ID, OTHER, device

WELL = device()
ILL = replace(WELL, healthy=False, why="the metrics exporter says unhealthy")
LOST = replace(WELL, healthy=False, why=GONE)


def test_what_stays_as_it_was_is_nothing_to_tell() -> None:
    for one in (WELL, ILL, LOST):
        assert device_events([one], [one]) == []


def test_a_gpu_that_falls_ill_is_told_with_the_reason() -> None:
    (event,) = device_events([WELL], [ILL])
    assert event == Event(
        UNHEALTHY, f"GPU {BDF} (card0, {ID}) is unhealthy: the metrics exporter says unhealthy"
    )


def test_a_gpu_that_goes_and_comes_back_is_told() -> None:
    (gone,) = device_events([WELL], [LOST])
    assert (gone.reason, gone.warning) == (MISSING, True)
    (back,) = device_events([LOST], [WELL])
    assert (back.reason, back.warning) == (RECOVERED, False)


def test_a_gpu_that_the_terms_keep_back_is_not_missing() -> None:
    withheld = replace(WELL, healthy=False, why=WITHHELD)
    (event,) = device_events([WELL], [withheld])
    assert event == Event(
        NOT_OFFERED,
        f"GPU {BDF} (card0, {ID}): on the terms of this node it is not offered any more",
    )


def test_a_new_gpu_is_told_only_if_it_is_ill() -> None:
    assert device_events([WELL], [WELL, device(OTHER)]) == []
    ill = replace(device(OTHER), healthy=False, why="x")
    assert [event.reason for event in device_events([WELL], [WELL, ill])] == [UNHEALTHY]


def test_another_reason_is_news() -> None:
    assert [event.reason for event in device_events([ILL], [LOST])] == [MISSING]
    assert [event.reason for event in device_events([LOST], [ILL])] == [UNHEALTHY]


def test_what_was_told_long_ago_is_forgotten() -> None:
    events = [Event(IDLE_DIES, "text", pod=("team", f"job-{one}", "1")) for one in range(3)]
    told = dict(zip(events, (100.0, 101.0, 700.0), strict=True))
    assert list(just_told(told, 700.0)) == events[1:]
    assert just_told(told, 2000.0) == {}


def test_an_event_is_the_nodes() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    body = event_body(Event(RECOVERED, "text", warning=False), "node", "uid", now)
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node",
        "uid": "uid",
    }
    assert (body["type"], body["reason"], body["message"]) == ("Normal", RECOVERED, "text")
    assert body["firstTimestamp"] == "2026-01-02T03:04:05Z"
    assert len(event_body(Event(MISSING, "x" * 2000), "n", "u", now)["message"]) == 1024
    assert body["metadata"] == {"generateName": "node.", "namespace": "default"}


def test_an_event_of_a_pod_is_the_pods_and_in_its_namespace() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    body = event_body(Event(UNHEALTHY, "text", pod=("team", "job", "1-2")), "node", "uid", now)
    assert body["metadata"] == {"generateName": "job.", "namespace": "team"}
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "job",
        "uid": "1-2",
    }
    assert body["source"]["host"] == "node"
