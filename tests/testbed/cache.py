# SPDX-License-Identifier: Apache-2.0
"""Steps done once: built beside their place, moved into it whole, keyed by their inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_KEY_LENGTH = 16
_PROGRESS_INTERVAL_S = 20.0
_LOG_TAIL_LINES = 15
_UNUSED_AFTER_S = 7 * 24 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class StepError(Exception):
    """A step failed. The message names what failed, why, and what to do or read."""


def digest(*parts: str | bytes) -> str:
    """A key for these inputs, in this order."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # Length first, so that ("ab", "c") and ("a", "bc") differ.
        total.update(b"%d:" % len(data))
        total.update(data)
    return total.hexdigest()[:_KEY_LENGTH]


def digest_files(paths: Iterable[Path], root: Path) -> str:
    """A key for the names (relative to `root`) and contents of these files, in any order."""
    parts: list[str | bytes] = []
    for path in sorted(paths):
        parts += [str(path.relative_to(root)), path.read_bytes()]
    return digest(*parts)


@dataclass(frozen=True, slots=True)
class Report:
    """Where a step says what it does: one line each, with the seconds since the start."""

    write: Callable[[str], object] = field(
        default=lambda line: print(line, file=sys.stderr, flush=True)
    )
    started: float = field(default_factory=time.monotonic)

    def __call__(self, message: str) -> None:
        self.write(f"[{time.monotonic() - self.started:6.1f} s] {message}")


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is given: a name for messages, a report, and a log file for its tools' output.

    `lock` is the descriptor of the lock the step runs under. Its tools inherit it, so that the lock
    is held for as long as any of them still writes, even when we were killed.
    """

    name: str
    report: Report
    log: Path
    lock: int | None = None

    def say(self, message: str) -> None:
        """One line for the reader."""
        self.report(f"{self.name}: {message}")

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run a tool with its output in the log; a line of progress now and then.

        Raises StepError, with the log's end, if the tool is missing or fails.
        """
        words = [str(word) for word in argv]
        with self.log.open("a+b") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            start = log.tell()
            try:
                process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    env=None if env is None else {**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=() if self.lock is None else (self.lock,),
                )
            except FileNotFoundError as error:
                raise StepError(
                    f"{self.name}: {error.filename} is not there: "
                    "run tests/testbed/prepare packages"
                ) from error
            with _ended(process):
                while True:
                    try:
                        status = process.wait(_PROGRESS_INTERVAL_S)
                        break
                    except subprocess.TimeoutExpired:
                        self.say(_progress(self.log, start) or f"{words[0]} is running")
        if status != 0:
            tail = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            raise StepError(
                "\n".join(
                    [
                        f"{self.name}: `{' '.join(words[:4])}` ended with status {status}; "
                        f"its whole output is in {self.log}",
                        *(f"    {line}" for line in tail),
                    ]
                )
            )


@dataclass(frozen=True, slots=True)
class Cache:
    """The directory that holds everything built or downloaded, outside the source tree."""

    root: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Cache:
        """$RINGFENCE_CACHE, or "ringfence" in the user's cache directory (XDG base directories)."""
        if chosen := environ.get("RINGFENCE_CACHE"):
            return cls(Path(chosen).absolute())
        if base := environ.get("XDG_CACHE_HOME"):
            return cls(Path(base, "ringfence").absolute())
        home = environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
        return cls(Path(home, ".cache", "ringfence").absolute())

    def place(self, kind: str, name: str, key: str) -> Path:
        """Where the result of a step is, once it is there."""
        for word in (kind, name, key):
            if not _NAME.fullmatch(word):
                raise ValueError(f"cache: {word!r} cannot be part of a path")
        return self.root / kind / name / key

    def ensure(
        self,
        kind: str,
        name: str,
        key: str,
        report: Report,
        make: Callable[[Path, Step], None],
        *,
        unused_after_s: float = _UNUSED_AFTER_S,
    ) -> Path:
        """The directory for these inputs, made by `make` if it is not there yet.

        `make` fills a fresh directory beside the final place; only a complete one is moved there.
        Two at once: the second waits and finds the first one's result. Interrupted: the next run
        starts over. Results of other inputs that nobody used for `unused_after_s` are removed.
        """
        place = self.place(kind, name, key)
        if place.is_dir():
            os.utime(place)
            return place
        waiting = self.step(f"{kind} {name}", report, f"{kind}-{name}.log")
        with self.lock(f"{kind}-{name}", waiting) as step:
            if place.is_dir():
                return place
            started = time.monotonic()
            step.log.write_bytes(b"")
            partial = place.with_name(f".{key}.partial")
            # Under the lock, so what is there was left by one that was interrupted.
            for leftover in place.parent.glob(".*.partial"):
                shutil.rmtree(leftover)
            partial.mkdir(parents=True)
            make(partial, step)
            partial.rename(place)
            _remove_unused(place, unused_after_s)
            step.say(f"done in {time.monotonic() - started:.0f} s")
        return place

    def step(self, name: str, report: Report, log: str) -> Step:
        """A step whose tools write to the log file of that name."""
        path = self.root / "logs" / log
        path.parent.mkdir(parents=True, exist_ok=True)
        return Step(name, report, path)

    @contextlib.contextmanager
    def lock(self, name: str, step: Step) -> Iterator[Step]:
        """Hold the lock of that name and give the step under it.

        The kernel drops the lock when we and the step's tools have ended, however that comes about.
        """
        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                step.say("another run is preparing this, waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield dataclasses.replace(step, lock=file.fileno())


def write_whole(path: Path, text: str) -> None:
    """Replace a small file so that a reader sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_text(text)
    partial.rename(path)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leaves no tool running when we are interrupted."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _progress(log: Path, start: int) -> str:
    """How many lines the tool has written, and the last one."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    return f"{len(lines)} lines of output, now {lines[-1].strip()[:60]}" if lines else ""


def _remove_unused(place: Path, after_s: float) -> None:
    now = time.time()
    for sibling in place.parent.iterdir():
        if sibling != place and now - sibling.stat().st_mtime > after_s:
            shutil.rmtree(sibling, ignore_errors=True)
