# SPDX-License-Identifier: Apache-2.0
import os
import signal
import threading
from pathlib import Path

import pytest

from enforcer.host.event import SignalSafeEvent
from enforcer.host.lock import HeldError, hold, wait_to_hold


def test_the_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path), pytest.raises(HeldError, match=str(path)):
        hold(path)
    hold(path).close()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = hold(path)
        os.write(tell, b"x")
        signal.pause()
        held.close()
        os._exit(0)
    os.read(ready, 1)
    with pytest.raises(HeldError):
        hold(path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    hold(path).close()


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        hold(tmp_path / "gone" / "lock")


def test_who_waits_gets_the_lock_when_it_is_let_go_and_is_told_of_it_meanwhile(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    first = hold(path)
    told: list[HeldError] = []
    timer = threading.Timer(0.5, first.close)
    timer.start()
    try:
        held = wait_to_hold(path, SignalSafeEvent(), told.append)
    finally:
        timer.join()
    assert held is not None
    assert len(told) > 1
    with held, pytest.raises(HeldError):
        hold(path)


def test_who_waits_can_be_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    stop = SignalSafeEvent()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    try:
        with hold(path):
            assert wait_to_hold(path, stop, lambda _: None) is None
    finally:
        timer.join()


def test_a_free_lock_is_had_without_a_word(tmp_path: Path) -> None:
    told: list[HeldError] = []
    held = wait_to_hold(tmp_path / "lock", SignalSafeEvent(), told.append)
    assert held is not None
    held.close()
    assert told == []


def test_waiting_where_nothing_can_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        wait_to_hold(tmp_path / "gone" / "lock", SignalSafeEvent(), lambda _: None)
