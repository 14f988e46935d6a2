# SPDX-License-Identifier: Apache-2.0
import os
import signal
from pathlib import Path

import pytest

from enforcer.host.lock import HeldError, hold


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
