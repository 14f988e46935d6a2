# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import pty
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.cli import top
from enforcer.cli.node import Seen
from enforcer.model import GIB, Usage
from tests.unit.enforcer.sample import GPUS, ILL, NO_DMEM, ORPHANED, ROWS, SNAPSHOT

if TYPE_CHECKING:
    from pathlib import Path

    from enforcer.model import Snapshot


def shown(snapshot: Snapshot, width: int = 80) -> list[str]:
    return top.lines(Seen(snapshot, "enforcer"), width)


def test_it_looks_like_this() -> None:
    assert (
        shown(SNAPSHOT)
        == """\
11:06:40 UTC   seen by enforcer   ledger bo
gate on   dmem on

GPU 0000:03:00.0  AMD Instinct MI300X  73%  61C  640W
[AAAAAAAbbbbCCCCCCCCCCCCccc..................] 81Gi used of 192Gi
  CONTAINER                    LIMIT    HELD SPILLED  CUS BUSY REFUSED LAYERS
A team-a/infer/main             32Gi    31Gi  3968Mi   76   12       7 gate+dmem
B team-a/noteb..g-name/main     16Gi       0       0   28   12       7 gate+dmem
C team-a/train/main             64Gi    48Gi  6144Mi  152   12       7 gate+dmem

GPU 0000:43:00.0  AMD Instinct MI300X  99%
[AAAAAAAAAAAAAAAAAAAAAAAaaaaaaaaaaaaaaaaaaaaa] 101Gi used of 192Gi
  CONTAINER                    LIMIT    HELD SPILLED  CUS BUSY REFUSED LAYERS
A team-a/whole/main            whole   100Gi  12.5Gi  all   12       7 -
""".splitlines()
    )


def test_nothing_that_others_named_moves_the_cursor() -> None:
    named = replace(SNAPSHOT, problems=("a\x1b[2J\udcff",), health=(replace(ILL, reason="b\x9b"),))
    lines = shown(named)
    assert all(line.isprintable() for line in lines)
    assert "! a?[2J?" in lines


def test_a_wider_terminal_shows_whole_names() -> None:
    text = "\n".join(shown(SNAPSHOT, 140))
    assert "team-a/notebook-of-somebody-with-a-long-name/main" in text


@given(st.text(max_size=90), st.integers(80, 200))
def test_no_line_is_longer_than_the_terminal(name: str, width: int) -> None:
    row = replace(ROWS[0], pod=name, layers=NO_DMEM, usage=Usage(1 << 50, 0, refusals=10**7))
    lines = shown(replace(SNAPSHOT, containers=(row,), problems=("x" * 300,)), width)
    assert max(map(len, lines)) <= width


def test_what_is_off_or_unknown_is_said() -> None:
    row = replace(ROWS[0], layers=NO_DMEM, usage=Usage(), activity=None)
    lines = shown(replace(SNAPSHOT, containers=(row,), problems=("a thing",)))
    assert lines[6].split() == ["A", "team-a/train/main", "64Gi", "-", "-", "152", "-", "-", "gate"]
    assert lines[-1] == "! a thing"


def test_without_a_layer_it_says_none() -> None:
    off = tuple(replace(state, reason="x") for state in NO_DMEM)
    assert shown(replace(SNAPSHOT, containers=(replace(ROWS[0], layers=off),)))[6].endswith(" none")


def test_what_outlived_its_container_is_told_with_the_gpu() -> None:
    text = "\n".join(shown(ORPHANED))
    assert text.count("charged for containers that are gone") == 1
    assert "! 4096Mi charged for containers that are gone: others keep it" in text


def test_a_gpu_that_is_ill_is_pointed_at() -> None:
    assert "! unhealthy: wedged" in shown(replace(SNAPSHOT, health=(ILL,)))[4]


def test_without_gpus_it_names_the_doctor() -> None:
    assert "ringfence doctor" in shown(replace(SNAPSHOT, gpus=(), containers=(), loads=()))[-1]


def test_a_gpu_without_a_known_size_has_no_bar() -> None:
    gpus = tuple(replace(gpu, vram_bytes=None) for gpu in GPUS)
    assert not any(line.startswith("[") for line in shown(replace(SNAPSHOT, gpus=gpus)))


def test_the_bar_keeps_its_width_when_more_is_booked_than_there_is() -> None:
    rows = tuple(replace(ROWS[0], pod=f"p{n}", limit=100 * GIB) for n in range(7))
    bars = [line for line in shown(replace(SNAPSHOT, containers=rows)) if line.startswith("[")]
    assert [line.index("]") for line in bars] == [45, 45]


def test_json_has_everything_to_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "look", lambda _: Seen(SNAPSHOT, "enforcer"))
    assert top.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by"] == "enforcer"
    assert told["containers"][0]["usage"]["requested"] == 48 * GIB
    assert told["containers"][0]["layers"][0]["layer"] == "gate"


def test_a_problem_is_an_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(replace(SNAPSHOT, problems=("one",)), "this command", "no socket")
    monkeypatch.setattr(top, "look", lambda _: seen)
    assert top.main(["--once"]) == 1
    assert "the enforcer was not asked: no socket" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "x", "4000"])
def test_an_interval_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        top.main(["--interval", text])
    assert caught.value.code == 2


def test_on_a_terminal_it_paints_until_ctrl_c_and_gives_the_screen_back(tmp_path: Path) -> None:
    options = [
        f"--{name}={tmp_path / name}"
        for name in ("sys", "proc", "run", "dev", "cgroup-root", "state-dir", "bpffs", "socket")
    ]
    code = "import sys; from enforcer.cli import main; sys.exit(main(sys.argv[1:]))"
    pid, terminal = pty.fork()
    if pid == 0:
        argv = [sys.executable, "-c", code, "top", "--interval", "0.1", *options]
        os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted
    shown, deadline = b"", time.monotonic() + 60
    while shown.count(b"seen by this command") < 3:
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 65536)
    os.kill(pid, signal.SIGINT)
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the terminal is closed at the other end
            break
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1  # a tree without anything has problems
    assert shown.startswith(b"\x1b[?1049h")
    assert shown.endswith(b"\x1b[?1049l")
    assert b"Traceback" not in shown
