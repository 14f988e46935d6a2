# SPDX-License-Identifier: Apache-2.0
"""One holder of a file per machine; the kernel lets go of it when the holder dies."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO


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
