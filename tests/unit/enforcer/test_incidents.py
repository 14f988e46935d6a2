# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from bpf.decode import Counter, Event
from enforcer.incidents import Incidents
from enforcer.model import Container, ContainerKind, PodCgroup, Share, Slice, pci_key

GPU = "0000:03:00.0"
POD = PodCgroup("uid-a", "poda", 100)
TRAIN = Container("c" * 64, POD, "poda/c", 101, "train")
OWNERS: dict[int, Container | PodCgroup] = {100: POD, 101: TRAIN}
SLICE = Slice(
    "uid-a", "ns", "p", "train", ContainerKind.APP, (), (Share(GPU, 4096),), "2026-11-29T13:00:00Z"
)
EVENT = Event(
    time=50.0,
    pid=7,
    comm="python",
    cgroup=101,
    gpu=pci_key(GPU),
    asked=4096,
    used=1024,
    limit=4096,
    reason=Counter.REFUSED_LIMIT,
    nr=22,
)


def test_a_refusal_says_who_where_and_how_much() -> None:
    incidents = Incidents()
    (line,) = incidents.add([EVENT], OWNERS, [SLICE], 60.0, 1000.0)
    assert line == (
        "container train of ns/p on 0000:03:00.0: "
        "python[7] refused 4096 bytes: over its share (1024 of 4096 used)"
    )
    (row,) = incidents.rows
    assert (row.time, row.container, row.bdf, row.reason, row.count) == (
        990.0,
        "train",
        GPU,
        "refused_limit",
        1,
    )
    assert (row.asked, row.used, row.limit) == (4096, 1024, 4096)


def test_the_same_again_is_counted_and_told_once_a_minute() -> None:
    incidents = Incidents()
    (line,) = incidents.add([EVENT] * 3, OWNERS, [SLICE], 60.0, 0.0)
    assert line.endswith("(1024 of 4096 used); 3 times")
    assert incidents.add([EVENT] * 5, OWNERS, [SLICE], 90.0, 0.0) == []
    assert incidents.rows[0].count == 8
    (line,) = incidents.add([], OWNERS, [SLICE], 120.0, 0.0)
    assert line.endswith("; 5 times since it was last told")
    assert incidents.add([], OWNERS, [SLICE], 500.0, 0.0) == []


def test_another_reason_container_or_gpu_is_another_row() -> None:
    incidents = Incidents()
    others = [
        EVENT,
        replace(EVENT, reason=Counter.SWITCHED_KILLED),
        replace(EVENT, cgroup=100),
        replace(EVENT, gpu=0),
    ]
    lines = incidents.add(others, OWNERS, [SLICE], 60.0, 0.0)
    assert len(lines) == len(incidents.rows) == 4
    assert lines[2].startswith("pod ns/p on ")
    assert lines[3].startswith("container train of ns/p: ")


def test_a_container_that_went_meanwhile_is_still_known() -> None:
    incidents = Incidents()
    incidents.add([], OWNERS, [SLICE], 60.0, 0.0)
    assert len(incidents.add([EVENT], {100: POD}, [SLICE], 61.0, 0.0)) == 1


def test_a_container_that_the_walk_came_too_early_for_is_known_by_the_next() -> None:
    incidents = Incidents()
    assert incidents.add([EVENT], {100: POD}, [SLICE], 60.0, 1000.0) == []
    (line,) = incidents.add([], OWNERS, [SLICE], 62.0, 1002.0)
    assert line.startswith("container train of ns/p")
    (row,) = incidents.rows
    assert (row.time, row.count) == (990.0, 1)
    assert incidents.add([], OWNERS, [SLICE], 500.0, 1440.0) == []


def test_who_is_not_known_by_the_next_walk_either_is_left_out() -> None:
    incidents = Incidents()
    for now in (60.0, 62.0):
        assert incidents.add([EVENT] * int(now == 60.0), {100: POD}, [SLICE], now, now) == []
    assert incidents.add([], OWNERS, [SLICE], 64.0, 64.0) == []


def test_what_belongs_to_no_slice_is_left_out() -> None:
    incidents = Incidents()
    assert incidents.add([replace(EVENT, cgroup=7)], OWNERS, [SLICE], 60.0, 0.0) == []
    assert incidents.add([EVENT], OWNERS, [], 60.0, 0.0) == []
    assert incidents.rows == ()


def test_the_incidents_of_a_pod_go_with_it() -> None:
    incidents = Incidents()
    incidents.add([EVENT], OWNERS, [SLICE], 60.0, 0.0)
    incidents.add([], {}, [], 61.0, 0.0)
    assert incidents.rows == ()


def test_a_process_s_name_cannot_end_a_line() -> None:
    incidents = Incidents()
    (line,) = incidents.add([replace(EVENT, comm="a\nb\x1b[2J")], OWNERS, [SLICE], 60.0, 0.0)
    assert "a?b?[2J[7] refused" in line


def test_the_newest_comes_first() -> None:
    incidents = Incidents()
    later = replace(EVENT, time=55.0, cgroup=100)
    incidents.add([later, EVENT], OWNERS, [SLICE], 60.0, 0.0)
    assert [row.container for row in incidents.rows] == ["", "train"]
