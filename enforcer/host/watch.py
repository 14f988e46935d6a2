# SPDX-License-Identifier: Apache-2.0
"""Tells when a directory gets or loses an entry: inotify(7), which cgroup file systems serve."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CREATE, _DELETE, _ONLYDIR = 0x100, 0x200, 0x1000000
_EVENT = struct.Struct("=iIII")
_IGNORED = 0x8000
_READ_BYTES = 1 << 16


class Watch:
    """Watches some directories. ``set`` is for one thread, ``wait`` for another."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._call(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        # Closes it with this object.
        self._file = os.fdopen(self._fd, "rb", buffering=0)
        self._watched: dict[Path, int] = {}
        self._ended: deque[int] = deque()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def set(self, directories: Iterable[Path]) -> None:
        """Watch these and no others; one that is gone is left out. Raises OSError for a full table.

        The limit is ``fs.inotify.max_user_watches``.
        """
        wanted = set(directories)
        # A directory of the same name may have come in the place of one that went.
        ended = {self._ended.popleft() for _ in range(len(self._ended))}
        self._watched = {path: one for path, one in self._watched.items() if one not in ended}
        for path in self._watched.keys() - wanted:
            # One whose directory is gone went by itself.
            self._libc.inotify_rm_watch(self._fd, self._watched.pop(path))
        for path in wanted - self._watched.keys():
            number = self._libc.inotify_add_watch(
                self._fd, os.fsencode(path), _CREATE | _DELETE | _ONLYDIR
            )
            if number < 0 and ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
                continue
            self._watched[path] = self._call(number)

    def wait(self, seconds: float) -> bool:
        """True as soon as an entry came or went, False if none did within ``seconds``."""
        if not self._poll.poll(seconds * 1000):
            return False
        data = self._file.read(_READ_BYTES)
        found = False
        while data:
            number, mask, _, length = _EVENT.unpack_from(data)
            if mask & _IGNORED:
                self._ended.append(number)
            else:
                found = True
            data = data[_EVENT.size + length :]
        return found

    def close(self) -> None:
        """Stop watching."""
        self._file.close()

    @staticmethod
    def _call(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"inotify: {os.strerror(number)}")
        return result
