# SPDX-License-Identifier: Apache-2.0
"""Paths of Unix sockets, which may be no longer than the kernel's address of one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

LONGEST: Final = 107
"""Bytes; ``sun_path`` has one more, for the NUL (unix(7))."""


def socket_path(text: str, ending: str = "") -> Path:
    """An option's value as a socket's path, once ``ending`` is put behind it.

    Raises ArgumentTypeError, with what is wrong in one line.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found none")
    room, found = LONGEST - len(ending), len(os.fsencode(text))
    if found > room:
        behind = f", {ending} behind it included" if ending else ""
        raise argparse.ArgumentTypeError(
            f"{text}: expected at most {room} bytes, found {found}: a Unix socket's path has "
            f"{LONGEST}{behind}"
        )
    return Path(text)
