# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are listened to, and what is made of what is heard; the driver's own in the VM."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.follow import FaultLines, KfdFollower, to_listen_to
from enforcer.health import Health
from enforcer.host import smi
from enforcer.model import Gpu, GpuHealth, Snapshot
from tests.unit.enforcer.host.kfd_events import Driver
from tests.unit.enforcer.sample import SNAPSHOT

RADEON = Gpu("0000:03:00.0", 7, 1, 128, "", 1 << 30, 96, 110000)
INSTINCT = replace(RADEON, bdf="0000:83:00.0", kfd_id=8, compute_partition="spx")


def test_gpus_that_cannot_be_partitioned_are_listened_to() -> None:
    assert to_listen_to([RADEON], always=False) == {7}


def test_nobody_is_where_one_can_be_partitioned() -> None:
    assert to_listen_to([RADEON, INSTINCT], always=False) == frozenset()


def test_all_are_when_asked_for() -> None:
    assert to_listen_to([RADEON, INSTINCT], always=True) == {7, 8}


def test_without_gpus_there_is_nothing_to_listen_to() -> None:
    assert to_listen_to([], always=True) == frozenset()


class Enforcer:
    """What a follower asks of the enforcer, and tells it."""

    def __init__(self) -> None:
        self.health = Health()
        self.health.see({RADEON.bdf: 1}, 0.0)
        self.woken = 0

    @property
    def row(self) -> GpuHealth:
        return self.health.rows[0]

    def snapshot(self) -> Snapshot:
        return replace(SNAPSHOT, gpus=(RADEON,))

    def wake(self) -> None:
        self.woken += 1

    def look_for_missed_ends(self) -> None:
        pass


@pytest.fixture
def enforcer() -> Enforcer:
    return Enforcer()


@pytest.fixture
def driver(enforcer: Enforcer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(smi.fcntl, "ioctl", driver.ioctl)
    kfd = tmp_path / "kfd"
    kfd.touch()
    follower = KfdFollower(enforcer, kfd, on=True, always=False)  # type: ignore[arg-type]
    follower.start()
    until("it listens", lambda: sum(mask != 0 for _, mask in driver.masks()) == 2)
    yield driver
    follower.stop()
    driver.close()


def until(what: str, done: object) -> None:
    end = time.monotonic() + 30
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_a_reset_is_heard_from_its_beginning_to_its_end(enforcer: Enforcer, driver: Driver) -> None:
    driver.reset(RADEON.kfd_id, 1, "job hang", ended=False)
    until("it begins", lambda: enforcer.row.reason == "being reset: job hang")
    driver.reset(RADEON.kfd_id, 1, "job hang", ended=True)
    until("it ends", lambda: enforcer.row.healthy)
    assert enforcer.woken == 2


def test_a_storm_of_faults_is_counted_and_costs_a_line_and_no_pass(
    enforcer: Enforcer, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        driver.fault(RADEON.kfd_id, 0x4F3, b"py\x1b[2J", times=400)
        until("they are counted", lambda: enforcer.row.vm_faults == 400)
        driver.fault(RADEON.kfd_id, 0x4F3, b"a\n3 1 x", times=400)
        until("these too", lambda: enforcer.row.vm_faults == 800)
        until("a line", lambda: caplog.messages)
    assert caplog.messages == [f"GPU {RADEON.bdf}: VM_FAULT 4f3:py?[2J; 400 times"]
    assert (enforcer.row.healthy, enforcer.woken) == (True, 0)


def test_faults_are_told_at_once_and_then_once_a_minute_for_each_gpu() -> None:
    lines = FaultLines()
    assert lines.due(0.0) == []
    lines.add("a", "1:x")
    assert lines.due(1.0) == ["GPU a: VM_FAULT 1:x"]
    lines.add("a", "2:y")
    lines.add("a", "3:z")
    lines.add("b", "4:w")
    assert lines.due(2.0) == ["GPU b: VM_FAULT 4:w"]
    assert lines.due(60.9) == []
    assert lines.due(61.0) == ["GPU a: VM_FAULT 3:z; 2 times since it was last told"]
    assert lines.due(500.0) == []
