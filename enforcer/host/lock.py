# SPDX-License-Identifier: Apache-2.0
"""One holder of a file per machine; the kernel lets go of it when the holder dies."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

    from enforcer.host.event import SignalSafeEvent

_POLL = 0.2


class HeldError(Exception):
    """Another process holds the lock."""


def hold(path: Path) -> IO[bytes]:
    """Hold the lock until the returned file is closed. Raises HeldError, or OSError."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise HeldError(f"{path} is held by another process") from None
    return file


def wait_to_hold(
    path: Path, stop: SignalSafeEvent, waiting: Callable[[HeldError], object]
) -> IO[bytes] | None:
    """Hold the lock as soon as its holder lets go; None if ``stop`` was set before.

    ``waiting`` is told that there is a holder, each time that it was looked for. Raises OSError.
    """
    while not stop.is_set():
        try:
            return hold(path)
        except HeldError as error:
            waiting(error)
        stop.wait(_POLL)
    return None
