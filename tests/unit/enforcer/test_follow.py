# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are listened to, and what is made of what is heard; the driver's own in the VM."""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer import follow
from enforcer.follow import FaultLines, KfdFollower, partitionable
from enforcer.health import Health
from enforcer.host import smi
from enforcer.host.uevents import Uevent
from enforcer.model import Gpu, GpuHealth, Snapshot
from tests.unit.enforcer.host.kfd_events import Driver
from tests.unit.enforcer.sample import SNAPSHOT

RADEON = Gpu("0000:03:00.0", 7, 1, 128, "", 1 << 30, 96, 110000)
INSTINCT = replace(RADEON, bdf="0000:83:00.0", kfd_id=8, compute_partition="spx")


# Its mode is not told during a reset.
IN_RESET = replace(INSTINCT, compute_partition=None, compute_partitions=("spx", "cpx"))


def test_a_gpu_with_a_mode_to_be_in_can_be_partitioned_also_during_a_reset() -> None:
    assert not partitionable([])
    assert not partitionable([RADEON])
    assert partitionable([RADEON, INSTINCT])
    assert partitionable([IN_RESET])


class Enforcer:
    """What a follower asks of the enforcer, and tells it."""

    def __init__(self) -> None:
        self.health = Health()
        self.health.see({RADEON.bdf: 1}, 0.0)
        self.woken = 0
        self.asked = 0
        self.gpus: tuple[Gpu, ...] = (RADEON,)
        self.instance = 1
        self.watch: Watch | None = None

    @property
    def row(self) -> GpuHealth:
        return self.health.rows[0]

    def snapshot(self) -> Snapshot:
        self.asked += 1
        return replace(SNAPSHOT, gpus=self.gpus)

    @property
    def looked(self) -> bool:
        """Whether its GPUs were asked for once and again."""
        return self.asked > 1

    def instances(self, gpus: Sequence[Gpu]) -> Mapping[int, int]:
        return {gpu.kfd_id: self.instance for gpu in gpus}

    def devices_changed(self) -> None:
        self.woken += 1

    def wake(self) -> None:
        self.woken += 1

    def look_for_missed_ends(self) -> None:
        pass


@pytest.fixture
def enforcer() -> Enforcer:
    return Enforcer()


@pytest.fixture
def follower(
    enforcer: Enforcer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KfdFollower, Driver]]:
    driver = Driver()
    monkeypatch.setattr(smi.fcntl, "ioctl", driver.ioctl)
    kfd = tmp_path / "kfd"
    kfd.touch()
    follower = KfdFollower(enforcer, kfd, on=True, always=False)  # type: ignore[arg-type]
    yield follower, driver
    follower.stop()
    driver.close()


@pytest.fixture
def driver(follower: tuple[KfdFollower, Driver]) -> Driver:
    follower[0].start()
    until("it listens", lambda: sum(mask != 0 for _, mask in follower[1].masks()) == 2)
    return follower[1]


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


def test_a_gpu_that_is_bound_anew_is_listened_to_anew(enforcer: Enforcer, driver: Driver) -> None:
    before = len(driver.masks())
    enforcer.instance = 2
    until("it listens anew", lambda: len(driver.masks()) > before)


def test_a_node_that_was_seen_to_have_partitions_is_left_alone_during_a_reset(
    enforcer: Enforcer, follower: tuple[KfdFollower, Driver]
) -> None:
    enforcer.gpus = (INSTINCT,)
    follower[0].start()
    until("it is seen", lambda: enforcer.looked)
    enforcer.gpus = (replace(INSTINCT, compute_partition=None),)
    time.sleep(2.5)
    assert follower[1].masks() == []


def test_a_gpu_that_cannot_be_heard_is_a_problem_with_a_remedy(
    enforcer: Enforcer, driver: Driver
) -> None:
    assert enforcer.health.problems == []
    driver.unknown.add(INSTINCT.kfd_id)
    enforcer.gpus = (RADEON, replace(INSTINCT, compute_partition=None))
    until("it is told", lambda: enforcer.health.problems)
    (line,) = enforcer.health.problems
    assert line.startswith("KFD events: not heard of the GPUs with the KFD ids 8: ")
    assert "delete the enforcer's pod" in line
    enforcer.gpus = ()
    until("it is not any more", lambda: not enforcer.health.problems)


class Watch:
    """Tells once of a change, and then of none."""

    def __init__(self) -> None:
        self.changes = 1

    def wait(self, seconds: float) -> bool:
        if self.changes:
            self.changes -= 1
            return True
        time.sleep(seconds)
        return False


def run_for_ever(target: Callable[[Enforcer], None], enforcer: Enforcer) -> None:
    threading.Thread(target=target, args=(enforcer,), daemon=True).start()


def test_a_tree_that_can_be_watched_later_is_followed_then(
    enforcer: Enforcer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_LOOK_SECONDS", 0.01)
    run_for_ever(follow.follow_tree, enforcer)  # type: ignore[arg-type]
    time.sleep(0.1)
    assert enforcer.woken == 0
    enforcer.watch = Watch()
    until("it is woken", lambda: enforcer.woken == 1)


def test_more_uevents_than_the_kernel_keeps_do_not_end_the_listening(
    enforcer: Enforcer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follow, "_LOOK_SECONDS", 0.01)
    again = threading.Event()
    rounds = []

    def listen(ready: Callable[[], None]) -> Iterator[Uevent]:
        rounds.append(enforcer.health.problems)
        if len(rounds) == 1:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        if len(rounds) == 2:
            raise OSError(errno.EPERM, "Operation not permitted")
        ready()
        yield Uevent("change", "drm", "/x", RADEON.bdf, "rebind")
        again.wait()

    monkeypatch.setattr(follow.uevents, "listen", listen)
    run_for_ever(follow.follow_uevents, enforcer)  # type: ignore[arg-type]
    until("it is heard", lambda: not enforcer.row.healthy)
    # Not allowed is a problem as long as it lasts, lost ones are made up for.
    assert rounds[:2] == [[], []]
    (line,) = rounds[2]
    assert line.startswith("uevents: not heard, devices are looked at now and then only: ")
    assert enforcer.health.problems == []
    assert caplog.text.count("uevents were lost, listening anew: [Errno 105]") == 1
    # Once for what was missed, once for the event.
    until("it looks", lambda: enforcer.woken == 2)


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
