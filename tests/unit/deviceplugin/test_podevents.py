# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from deviceplugin.podevents import (
    CORRECTED,
    DRIFT,
    HELD,
    KILLED,
    NOT_HELD,
    OTHER,
    REFUSED,
    REFUSED_COMPUTE,
    SPARED,
    PodEvent,
    due,
    event_body,
    pod_events,
)
from enforcer.model import (
    MIB,
    ContainerUsage,
    HostSupport,
    Incident,
    Layer,
    LayerState,
    Snapshot,
    Usage,
    Why,
)

BDF = "0000:03:00.0"
SUPPORT = HostSupport(LayerState(Layer.GATE), LayerState(Layer.DMEM, "no"), "bo")
TEXT = "python[4711] refused 4294967296 bytes: over its share (2147483648 of 4294967296 used)"
INCIDENT = Incident(
    time=1000.25,
    namespace="team",
    pod="job",
    pod_uid="uid",
    container="train",
    bdf=BDF,
    reason="refused_limit",
    count=1,
    asked=4 << 30,
    used=2 << 30,
    limit=4 << 30,
    text=TEXT,
)
ROW = ContainerUsage(
    namespace="team",
    pod="job",
    pod_uid="uid",
    container="train",
    cgroup="kubepods/x",
    bdf=BDF,
    limit=4096 * MIB,
    usage=Usage(),
    layers=(LayerState(Layer.GATE), LayerState(Layer.DMEM, Why.NO_REGION)),
)
ON = LayerState(Layer.GATE)
OFF = LayerState(Layer.GATE, Why.NOT_LOADED)


def told(*rows: ContainerUsage, incidents: tuple[Incident, ...] = ()) -> list[PodEvent]:
    return pod_events(Snapshot(1.0, SUPPORT, (), rows, incidents=incidents))


def test_a_refusal_is_told_with_asked_used_and_limit() -> None:
    (event,) = told(incidents=(INCIDENT,))
    assert (event.reason, event.warning) == (REFUSED, True)
    assert event.message == f"GPU {BDF}: {TEXT}"
    (event,) = told(incidents=(replace(INCIDENT, count=7, bdf=""),))
    assert event.message == f"{TEXT}; 7 times so far"


@pytest.mark.parametrize(
    ("reason", "told_as"),
    [
        ("refused_no_ledger", REFUSED),
        ("refused_cu_mask", REFUSED_COMPUTE),
        ("refused_unmasked", REFUSED_COMPUTE),
        ("refused_queues_full", REFUSED_COMPUTE),
        ("overran", SPARED),
        ("switched_killed", KILLED),
        ("overrun_killed", KILLED),
        ("switched_spared", SPARED),
        ("ledger_corrected", CORRECTED),
        ("unfollowed", OTHER),
    ],
)
def test_a_kill_is_told_apart_from_a_refusal(reason: str, told_as: str) -> None:
    assert told(incidents=(replace(INCIDENT, reason=reason),))[0].reason == told_as


def test_a_layer_that_is_off_is_told_with_why() -> None:
    (event,) = told(ROW)
    assert (event.reason, event.warning) == (HELD, False)
    assert event.message == (f"GPU {BDF}, 4096 MiB: gate on, dmem off: no dmem region for this GPU")


def test_a_slice_that_nothing_holds_is_a_warning() -> None:
    (event,) = told(replace(ROW, layers=(OFF, LayerState(Layer.HOOK))))
    assert (event.reason, event.warning) == (NOT_HELD, True)


def test_whole_gpus_and_pods_have_no_limit_to_tell_of() -> None:
    assert told(replace(ROW, limit=None)) == []
    assert told(replace(ROW, container="")) == []
    assert told(replace(ROW, layers=())) == []


def test_drift_is_told_in_whole_mib() -> None:
    row = replace(ROW, limit=None, usage=Usage(drift=5 * MIB + 4096))
    (event,) = told(row)
    assert (event.reason, event.mark) == (DRIFT, "5")
    assert "5 MiB of VRAM more than the ledger" in event.message
    assert told(replace(row, usage=Usage(drift=0))) == []


def test_the_same_is_told_once_and_news_of_it_after_five_minutes() -> None:
    (first,) = told(incidents=(INCIDENT,))
    (more,) = told(incidents=(replace(INCIDENT, count=2, time=1010.0),))
    assert due([first], {}, {}, 0.0) == [first]
    known = {first.key: (first.mark, 0.0)}
    assert due([first], known, {}, 1000.0) == []
    assert due([more], known, {}, 299.0) == []
    assert due([more], known, {}, 300.0) == [more]


def test_how_a_slice_is_held_is_told_when_two_looks_agree() -> None:
    (early,) = told(replace(ROW, layers=(LayerState(Layer.GATE, Why.NOT_IN_PLACE),)))
    (late,) = told(ROW)
    assert due([early], {}, {}, 0.0) == []
    assert due([late], {}, {early.key: early.mark}, 5.0) == []
    assert due([late], {}, {late.key: late.mark}, 10.0) == [late]


def test_many_at_once_are_told_some_at_a_time() -> None:
    events = told(incidents=tuple(replace(INCIDENT, pod_uid=str(one)) for one in range(50)))
    assert due(events, {}, {}, 0.0) == events[:20]


def test_an_event_is_the_containers_and_has_its_name_for_ever() -> None:
    (event,) = told(incidents=(INCIDENT,))
    body = event_body(event, "node", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "job",
        "uid": "uid",
        "fieldPath": "spec.containers{train}",
    }
    assert body["metadata"] == {"name": event.name, "namespace": "team"}
    assert (body["type"], body["lastTimestamp"]) == ("Warning", "2026-01-02T03:04:05Z")
    again = told(incidents=(INCIDENT,))[0]
    other = told(incidents=(replace(INCIDENT, count=2),))[0]
    assert again.name == event.name != other.name
    assert event.name.startswith("job.")


def test_a_long_pods_name_still_makes_a_name() -> None:
    (event,) = told(incidents=(replace(INCIDENT, pod="p" * 253, text="x" * 5000, container=""),))
    body = event_body(event, "node", datetime.now(UTC))
    assert len(event.name) == 253
    assert len(body["message"]) == 1024
    assert "fieldPath" not in body["involvedObject"]
