# SPDX-License-Identifier: Apache-2.0
"""What a daemon says of itself in a file of its pod, and what that means to a probe.

The file is one JSON object, replaced as a whole. The pod's own, since in a rolling update two pods
share every directory of the node; it outlives a container, so it names the process that wrote it.
All times are seconds of the monotonic clock, which the containers of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from enforcer.host.files import FileError, FileVanished, read_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger

READY_SECONDS: Final = 60.0
"""Longer than any pass or registration that goes well, on a machine with little time for us."""
LIVE_SECONDS: Final = 120.0
"""Later than not ready: to be slow is no reason to be ended."""
START_SECONDS: Final = 1200.0
"""The kernel's verifier takes a minute and more for the programs, much more on a busy machine."""
_PASSES: Final = 5
_WRITE_SECONDS: Final = 5.0
_STARTTIME: Final = 19
"""Of ``/proc/<pid>/stat``, counted from behind the command's name: see proc_pid_stat(5)."""


class Phase(StrEnum):
    """Where a daemon is."""

    STARTING = "starting"
    IN_LINE = "in line"
    """Another one of its kind works on this node, and this one takes over when that ends."""
    AT_WORK = "at work"


# Not a dataclass, whose import alone would be a third of what a probe costs.
class Beat(NamedTuple):
    """One word of a daemon."""

    pid: int
    born: int
    """When the process began, in clock ticks: with ``pid`` it is this process and no other."""
    phase: Phase
    since: float
    """Of the phase."""
    step: float
    """When its loop last came by."""
    well: float | None
    """When the loop last did what it is for; None if it never did."""
    every: float
    """Seconds between two steps."""
    why: str
    """What it waits for or lacks."""


class Verdict(NamedTuple):
    """What a probe answers, and a line that says why."""

    live: bool
    ready: bool
    line: str


def verdict(beat: Beat, now: float, *, runs: bool) -> Verdict:
    """``runs``: whether the process that wrote the beat is there.

    A daemon in line is ready: the update that started it would otherwise never end the one that it
    waits for.
    """
    if not runs:
        return Verdict(False, False, f"process {beat.pid}, the last that said something, has ended")
    why = f": {beat.why}" if beat.why else ""
    here = f"{beat.phase} for {now - beat.since:.0f} s"
    if beat.phase is Phase.STARTING:
        return Verdict(now - beat.since <= START_SECONDS, False, here)
    silent = now - beat.step
    live = silent <= max(LIVE_SECONDS, _PASSES * beat.every)
    limit = max(READY_SECONDS, _PASSES * beat.every)
    if silent > limit:
        return Verdict(live, False, f"{here}, but its loop has not come by for {silent:.0f} s")
    if beat.phase is Phase.IN_LINE:
        return Verdict(live, True, f"{here}{why}")
    if beat.well is None or now - beat.well > limit:
        last = "" if beat.well is None else f" for {now - beat.well:.0f} s"
        return Verdict(live, False, f"{here}, but nothing has succeeded{last}{why}; see its log")
    return Verdict(live, True, f"{here}{why}")


def read_verdict(path: Path, now: float, proc: Path = Path("/proc")) -> Verdict:
    """The verdict on the daemon whose file this is; a file that says nothing is no life."""
    try:
        beat = _parse(read_text(path), path)
    except FileVanished:
        return Verdict(False, False, f"{path} is not there: it has not begun")
    except FileError as error:
        return Verdict(False, False, str(error))
    return verdict(beat, now, runs=_born(proc, beat.pid) == beat.born)


class Heartbeat:
    """The writer of the file; every method belongs to the daemon's main thread."""

    def __init__(
        self,
        path: Path | None,
        every: float,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins as starting. ``path`` None: nobody asks, and nothing is written."""
        self._path = path
        self._every = every
        self._clock = clock
        self._pid = os.getpid()
        self._born = _born(proc, self._pid) or 0
        self._written = float("-inf")
        self._well: float | None = None
        self._phase = Phase.STARTING
        self._since = clock()
        self._news: tuple[Phase, bool, str] | None = None
        self._trouble = ""
        self.start()

    def start(self) -> None:
        """It has its turn and makes itself ready, or has to once more."""
        self._tell(Phase.STARTING, self._clock(), "", well=False)

    def wait(self, why: str) -> bool:
        """It stands in line; True if that is news."""
        news = self._phase is not Phase.IN_LINE
        self._tell(Phase.IN_LINE, self._clock(), why, well=False)
        return news

    def beat(self, *, well: bool, why: str = "", step: float | None = None) -> None:
        """Its loop came by, now or at ``step``. ``well``: and did what it is for."""
        now = self._clock()
        if well:
            self._well = now
        self._tell(Phase.AT_WORK, now if step is None else step, why, well=well)

    def _tell(self, phase: Phase, step: float, why: str, *, well: bool) -> None:
        now = self._clock()
        if phase is not self._phase:
            self._phase, self._since = phase, now
        news = phase, well, why
        if news == self._news and now - self._written < _WRITE_SECONDS:
            return
        self._news, self._written = news, now
        if self._path is None:
            return
        beat = Beat(self._pid, self._born, phase, self._since, step, self._well, self._every, why)
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(f"{json.dumps(beat._asdict())}\n")
            new.replace(self._path)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log().warning("%s: what probes read cannot be written: %s", self._path, error)


def _log() -> Logger:
    # A probe, which only reads, would pay for the import each time.
    from logging import getLogger  # noqa: PLC0415

    return getLogger(__name__)


def _parse(text: str, path: Path) -> Beat:
    try:
        fields = json.loads(text)
        return Beat(
            pid=int(fields["pid"]),
            born=int(fields["born"]),
            phase=Phase(fields["phase"]),
            since=float(fields["since"]),
            step=float(fields["step"]),
            well=None if fields["well"] is None else float(fields["well"]),
            every=float(fields["every"]),
            why=str(fields["why"]),
        )
    except (ValueError, KeyError, TypeError):
        raise FileError(
            f"{path}: expected what a daemon of this version says, found {text[:80]!r}"
        ) from None


def _born(proc: Path, pid: int) -> int | None:
    """When a process began; None if it is not there, or is only not reaped yet."""
    try:
        fields = read_text(proc / str(pid) / "stat").rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else int(fields[_STARTTIME])
    except (FileError, IndexError, ValueError):
        return None
