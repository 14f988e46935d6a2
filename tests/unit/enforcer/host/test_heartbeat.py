# SPDX-License-Identifier: Apache-2.0
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from enforcer.host.heartbeat import (
    LIVE_SECONDS,
    READY_SECONDS,
    START_SECONDS,
    Beat,
    Heartbeat,
    Phase,
    Verdict,
    read_verdict,
    verdict,
)

NOW = 5000.0


def said(phase: Phase, *, age: float = 0.0, **fields: object) -> Beat:
    """A beat of ``age`` seconds ago, by a daemon that had been in its phase for 7 s."""
    then = NOW - age
    beat = Beat(42, 1234, phase, then - 7, step=then, well=then, every=2.0, why="")
    return beat._replace(**fields)  # type: ignore[arg-type]


def answers(found: Verdict) -> tuple[bool, bool]:
    return found.live, found.ready


def test_at_work_is_ready() -> None:
    assert verdict(said(Phase.AT_WORK), NOW, runs=True) == Verdict(True, True, "at work for 7 s")


def test_in_line_is_ready_and_says_behind_whom() -> None:
    beat = said(Phase.IN_LINE, well=None, why="x.lock is held by another process")
    found = verdict(beat, NOW, runs=True)
    assert found == Verdict(True, True, "in line for 7 s: x.lock is held by another process")


@pytest.mark.parametrize("phase", [Phase.AT_WORK, Phase.IN_LINE])
@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (READY_SECONDS, (True, True)),
        (READY_SECONDS + 1, (True, False)),
        (LIVE_SECONDS, (True, False)),
        (LIVE_SECONDS + 1, (False, False)),
    ],
)
def test_a_loop_that_does_not_come_by_is_first_not_ready_then_not_alive(
    phase: Phase, age: float, expected: tuple[bool, bool]
) -> None:
    found = verdict(said(phase, age=age), NOW, runs=True)
    assert answers(found) == expected
    assert (f"its loop has not come by for {age:.0f} s" in found.line) == (not expected[1])


def test_a_loop_that_comes_by_and_does_nothing_well_lives_and_is_not_ready() -> None:
    never = verdict(said(Phase.AT_WORK, well=None, why="the reason"), NOW, runs=True)
    assert answers(never) == (True, False)
    assert never.line == "at work for 7 s, but nothing has succeeded: the reason; see its log"
    long_ago = said(Phase.AT_WORK, well=NOW - READY_SECONDS - 1)
    assert answers(verdict(long_ago, NOW, runs=True)) == (True, False)
    assert answers(verdict(said(Phase.AT_WORK, well=NOW - READY_SECONDS), NOW, runs=True)) == (
        True,
        True,
    )


def test_a_start_may_take_its_time_without_a_step_and_is_not_ready() -> None:
    for since, live in ((START_SECONDS, True), (START_SECONDS + 1, False)):
        beat = said(Phase.STARTING, age=since, since=NOW - since)
        assert answers(verdict(beat, NOW, runs=True)) == (live, False)


def test_an_interval_of_minutes_is_waited_for() -> None:
    beat = said(Phase.AT_WORK, age=1000, every=300)
    assert answers(verdict(beat, NOW, runs=True)) == (True, True)


def test_a_word_of_a_process_that_has_ended_counts_for_nothing() -> None:
    for phase in Phase:
        found = verdict(said(phase), NOW, runs=False)
        assert answers(found) == (False, False)
        assert "process 42" in found.line


class Daemon:
    """A heartbeat of this process, and its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = NOW
        self.heart = Heartbeat(path, 2.0, clock=lambda: self.now)

    def verdict(self) -> Verdict:
        return read_verdict(self.path, self.now)


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path / "enforcer")


def test_a_daemon_is_starting_then_in_line_then_starting_then_at_work(daemon: Daemon) -> None:
    assert daemon.verdict() == Verdict(True, False, "starting for 0 s")
    assert daemon.heart.wait("another")
    daemon.now += 3
    assert not daemon.heart.wait("another")
    assert daemon.verdict() == Verdict(True, True, "in line for 3 s: another")
    daemon.heart.start()
    daemon.now += LIVE_SECONDS + 1
    assert daemon.verdict() == Verdict(True, False, "starting for 121 s")
    daemon.heart.beat(well=False, why="this")
    assert answers(daemon.verdict()) == (True, False)
    daemon.heart.beat(well=True)
    assert daemon.verdict() == Verdict(True, True, "at work for 0 s")


def test_passes_that_fail_lose_readiness_and_one_that_succeeds_gets_it_back(
    daemon: Daemon,
) -> None:
    daemon.heart.beat(well=True)
    for _ in range(40):
        daemon.now += 2
        daemon.heart.beat(well=False)
    assert answers(daemon.verdict()) == (True, False)
    daemon.heart.beat(well=True)
    assert answers(daemon.verdict()) == (True, True)


def test_a_step_of_before_ages_also_while_the_loop_beats(daemon: Daemon) -> None:
    step = daemon.now
    for _ in range(40):
        daemon.now += 2
        daemon.heart.beat(well=True, step=step)
    assert answers(daemon.verdict()) == (True, False)


def test_beats_without_news_are_not_written_each_time(daemon: Daemon) -> None:
    daemon.heart.beat(well=True)
    first = daemon.path.stat().st_ino
    daemon.now += 1
    daemon.heart.beat(well=True)
    assert daemon.path.stat().st_ino == first
    daemon.now += 10
    daemon.heart.beat(well=True)
    assert daemon.path.stat().st_ino != first


def test_the_file_of_an_earlier_container_is_no_life(tmp_path: Path) -> None:
    """Its number may be that of a process of now: the first of each container has the same."""
    path = tmp_path / "enforcer"
    code = (
        "from pathlib import Path; from enforcer.host.heartbeat import Heartbeat;"
        f"Heartbeat(Path({str(path)!r}), 2.0).beat(well=True)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    beat = json.loads(path.read_text())
    gone = read_verdict(path, beat["step"])
    assert answers(gone) == (False, False)
    path.write_text(json.dumps(beat | {"pid": os.getpid()}))
    assert answers(read_verdict(path, beat["step"])) == (False, False)


def test_a_process_that_nobody_has_reaped_has_ended(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "42").mkdir(parents=True)
    path = tmp_path / "enforcer"
    path.write_text(json.dumps(said(Phase.AT_WORK)._asdict()))
    stat = "42 (a) b) {} " + "0 " * 18 + "1234 0\n"
    for state, live in (("S", True), ("T", True), ("Z", False)):
        (proc / "42/stat").write_text(stat.format(state))
        assert read_verdict(path, NOW, proc).live is live
    (proc / "42/stat").write_text("")
    assert not read_verdict(path, NOW, proc).live


def test_before_the_first_word_there_is_no_life(tmp_path: Path) -> None:
    found = read_verdict(tmp_path / "enforcer", NOW)
    assert answers(found) == (False, False)
    assert "it has not begun" in found.line


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"pid": 1', "\x00"])
def test_a_file_that_says_nothing_is_no_life(tmp_path: Path, text: str) -> None:
    path = tmp_path / "enforcer"
    path.write_text(text)
    found = read_verdict(path, NOW)
    assert answers(found) == (False, False)
    assert str(path) in found.line


def test_a_file_that_cannot_be_written_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    daemon = Daemon(tmp_path / "gone/enforcer")
    daemon.heart.beat(well=True)
    daemon.heart.wait("another")
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "gone").mkdir()
    daemon.heart.beat(well=True)
    assert daemon.verdict().ready


def test_who_is_asked_by_nobody_writes_nothing() -> None:
    heart = Heartbeat(None, 2.0)
    assert heart.wait("another")
    heart.beat(well=True)
