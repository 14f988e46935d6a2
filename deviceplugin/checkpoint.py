# SPDX-License-Identifier: Apache-2.0
"""The slices given out on this node: in memory and in the checkpoint, which only this writes."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from enforcer.slices import CheckpointError, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from enforcer.model import Slice

_log = logging.getLogger(__name__)


class Checkpoint:
    """All slices, in the order they were given; what is in memory is on disk."""

    def __init__(self, path: Path) -> None:
        """Read the checkpoint; garbage is kept aside and reported, never in the way of a start.

        Raises CheckpointError for a file that cannot be read at all, which is not ours to replace.
        """
        self.giving = threading.Lock()
        """Held from a decision on the slices to the write that follows from it."""
        self._path = path
        self._lock = threading.Lock()
        self.problems: tuple[str, ...] = ()
        """What was wrong with the file that was read, a line each."""
        self._slices = tuple(self._read())

    def _read(self) -> list[Slice]:
        try:
            slices, problems = read_checkpoint(self._path)
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError):
                raise
            aside = self._path.with_name(f"{self._path.name}.bad-{int(time.time())}")
            self._path.rename(aside)
            self._complain([f"{error}; kept as {aside}, starting without slices"])
            return []
        if problems:
            # The next write leaves the bad entries out, so keep them for whoever looks.
            aside = self._path.with_name(f"{self._path.name}.bad-{int(time.time())}")
            aside.write_bytes(self._path.read_bytes())
            self._complain([f"{problem}; the file is kept as {aside}" for problem in problems])
        return slices

    def _complain(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        for problem in problems:
            _log.error("%s", problem)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in the order they were given."""
        return self._slices

    def add(self, item: Slice) -> None:
        """Give a slice out: on disk when this returns. Raises OSError, and then it is not given."""
        self._replace(lambda slices: (*(one for one in slices if one.key != item.key), item))

    def remove_pod(self, uid: str) -> list[Slice]:
        """Take back the slices of a pod; which they were. Raises OSError, and then none is."""
        removed: list[Slice] = []

        def keep(slices: tuple[Slice, ...]) -> Iterable[Slice]:
            removed.extend(one for one in slices if one.pod_uid == uid)
            return (one for one in slices if one.pod_uid != uid)

        self._replace(keep)
        return removed

    def _replace(self, change: Callable[[tuple[Slice, ...]], Iterable[Slice]]) -> None:
        with self._lock:
            slices = tuple(change(self._slices))
            if slices != self._slices:
                write_checkpoint(self._path, slices)
                self._slices = slices
