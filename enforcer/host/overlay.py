# SPDX-License-Identifier: Apache-2.0
"""The layers of an image as one tree, for the calling process alone: see ``Apart``."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEWNS = 0x00020000
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REC, _SLAVE = 0x4000, 1 << 19
_MOST_OPTIONS = 4095
"""mount(2) takes a page of them."""
_PLACE = Path("/proc")
"""There on every host, and of no more use to this process."""


def enter_mounts(proc: Path) -> None:
    """See the host's files as its first process does, in a copy of its mounts. Raises OSError.

    There is no way back, and what is imported later is the host's: for a process of its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with (proc / "1/ns/mnt").open("rb") as namespace:
        _check(libc.setns(namespace.fileno(), _NEWNS), str(namespace.name))
    _check(libc.unshare(_NEWNS), "unshare")
    # What is done here stays here; what the host unmounts is let go here too.
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(_REC | _SLAVE), None), "/")


def mount_layers(layers: Sequence[PurePosixPath]) -> Path:
    """The tree of these directories, the uppermost first; read-only. Raises OSError.

    For a process that has its mounts to itself.
    """
    if len(layers) == 1:
        return Path(layers[0])
    # Relative to what they share the list is short enough for as many layers as images have.
    common = os.path.commonpath([str(layer) for layer in layers])
    os.chdir(common)
    options = "lowerdir=" + ":".join(str(layer.relative_to(common)) for layer in layers)
    if len(options) > _MOST_OPTIONS:
        raise OSError(f"{common}: {len(layers)} layers are more than one mount takes")
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_RDONLY | _NOSUID | _NODEV | _NOEXEC)
    place = os.fsencode(_PLACE)
    _check(libc.mount(b"overlay", place, b"overlay", flags, os.fsencode(options)), common)
    return _PLACE


def _check(result: int, about: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)
