# SPDX-License-Identifier: Apache-2.0
"""The slices given out on this node: in memory and in the checkpoint, which only this writes."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from enforcer.slices import (
    CheckpointError,
    document,
    encode_slice,
    flush_document,
    read_checkpoint,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from enforcer.model import Slice

_log = logging.getLogger(__name__)


class Checkpoint:
    """All slices, in the order they were given; what is in memory is in the file.

    The disk is not waited for when a slice is given, only before a container starts with it, by
    ``flush``. Should the power fail in between, the file as last flushed lies beside it.
    """

    def __init__(self, path: Path) -> None:
        """Read the checkpoint; garbage is kept aside and reported, never in the way of a start.

        Raises CheckpointError for a file that cannot be read at all, which is not ours to replace.
        """
        self.giving = threading.Lock()
        """Held from a decision on the slices to the write that follows from it."""
        self._path = path
        self._flushed_path = path.with_name(f"{path.name}.flushed")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.problems: tuple[str, ...] = ()
        """What was wrong with the file that was read, a line each."""
        self._slices: tuple[Slice, ...] = ()
        self._of_pod: dict[str, tuple[Slice, ...]] = {}
        self._lines: dict[tuple[str, str], tuple[Slice, str]] = {}
        self._know(tuple(self._read()))
        self._durable: tuple[Slice, ...] | None = None

    def _read(self) -> list[Slice]:
        try:
            slices, problems = read_checkpoint(self._path)
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError):
                raise
            aside = self._path.with_name(f"{self._path.name}.bad-{int(time.time())}")
            self._path.rename(aside)
            return self._read_flushed(f"{error}; kept as {aside}")
        if problems:
            # The next write leaves the bad entries out, so keep them for whoever looks.
            aside = self._path.with_name(f"{self._path.name}.bad-{int(time.time())}")
            try:
                aside.write_bytes(self._path.read_bytes())
                kept = f"the file is kept as {aside}"
            except OSError as error:
                # A full disk is no reason to leave a node without its GPUs.
                kept = f"the file could not be kept: {error}"
            self._complain([f"{problem}; {kept}" for problem in problems])
        return slices

    def _read_flushed(self, problem: str) -> list[Slice]:
        try:
            slices, _ = read_checkpoint(self._flushed_path)
        except CheckpointError:
            slices = []
        if slices:
            self._flushed_path.replace(self._path)
            self._complain([f"{problem}, going on from {self._flushed_path}"])
        else:
            self._complain([f"{problem}, starting without slices"])
        return slices

    def _complain(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        for problem in problems:
            _log.error("%s", problem)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in the order they were given."""
        return self._slices

    def of_pod(self, uid: str) -> tuple[Slice, ...]:
        """The slices of a pod, the same object as long as they are the same."""
        return self._of_pod.get(uid, ())

    def add(self, item: Slice, timeout: float | None = None) -> None:
        """Give a slice out: in the file when this returns, whatever becomes of this process.

        Raises OSError, and then it is not given; also when the disk takes longer than ``timeout``
        seconds. Should it take the slice later, that is one to be taken back.
        """
        self._replace(
            lambda slices: (*(one for one in slices if one.key != item.key), item), timeout
        )

    def amend(self, items: Iterable[Slice], timeout: float | None = None) -> None:
        """Write slices anew, each in its place; what is not there is left out.

        Raises OSError as ``add``.
        """
        new = {item.key: item for item in items}
        self._replace(lambda slices: (new.get(one.key, one) for one in slices), timeout)

    def remove_pod(self, uid: str, timeout: float | None = None) -> list[Slice]:
        """Take back the slices of a pod; which they were. Raises OSError as ``add``."""
        removed: list[Slice] = []

        def keep(slices: tuple[Slice, ...]) -> Iterable[Slice]:
            removed.extend(one for one in slices if one.pod_uid == uid)
            return (one for one in slices if one.pod_uid != uid)

        self._replace(keep, timeout)
        return removed

    def flush(self) -> None:
        """What is given so far survives a power cut when this returns. Raises OSError."""
        self._writer.submit(self._flush).result()

    def _flush(self) -> None:
        if self._durable is not self._slices:
            if self._path.exists():
                flush_document(self._path)
            self._durable = self._slices

    def _replace(
        self, change: Callable[[tuple[Slice, ...]], Iterable[Slice]], timeout: float | None
    ) -> None:
        # By a thread of its own, as nothing else gets back from a disk that hangs.
        written = self._writer.submit(self._write, change)
        try:
            written.result(timeout)
        except TimeoutError:
            if not written.done():
                raise OSError(f"{self._path}: not written after {timeout:.1f} s") from None
            # It ended as we gave up, or the error is its own.
            written.result()

    def _write(self, change: Callable[[tuple[Slice, ...]], Iterable[Slice]]) -> None:
        slices = tuple(change(self._slices))
        if slices != self._slices:
            if self._durable is self._slices:
                self._keep()
            write_document(self._path, document(map(self._line, slices)))
            self._know(slices)

    def _keep(self) -> None:
        """The file is what the disk has for sure: it gets another name before it is replaced."""
        self._flushed_path.unlink(missing_ok=True)
        if self._path.exists():
            self._flushed_path.hardlink_to(self._path)

    def _line(self, item: Slice) -> str:
        known = self._lines.get(item.key)
        return known[1] if known is not None and known[0] is item else encode_slice(item)

    def _know(self, slices: tuple[Slice, ...]) -> None:
        self._lines = {item.key: (item, self._line(item)) for item in slices}
        pods: dict[str, list[Slice]] = {}
        for item in slices:
            pods.setdefault(item.pod_uid, []).append(item)
        before = self._of_pod
        self._of_pod = {
            uid: before[uid] if before.get(uid) == tuple(items) else tuple(items)
            for uid, items in pods.items()
        }
        self._slices = slices
