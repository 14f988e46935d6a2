# SPDX-License-Identifier: Apache-2.0
"""The layers of an image as one tree, for the calling process alone: see ``Apart``."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEWNS = 0x00020000
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REC, _SLAVE = 0x4000, 1 << 19
_CAPABILITIES = {"CAP_SYS_CHROOT": 18, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
"""What it takes, by bit (linux/capability.h): setns(2), and to open another's namespace."""
_EFFECTIVE = re.compile(r"^CapEff:\t([0-9a-f]+)$", re.MULTILINE)
_MOST_OPTIONS = 4095
"""mount(2) takes a page of them."""
_PLACE = Path("/proc")
"""There on every host, and of no more use to this process."""


def enter_mounts(proc: Path) -> None:
    """See the host's files as its first process does, in a copy of its mounts. Raises OSError.

    There is no way back, and what is imported later is the host's: for a process of its own.
    """
    try:
        _enter(proc)
    except PermissionError as error:
        raise PermissionError(f"{error.filename}: {error.strerror}: {_cure(proc)}") from None


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


def _enter(proc: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with (proc / "1/ns/mnt").open("rb") as namespace:
        _check(libc.setns(namespace.fileno(), _NEWNS), str(namespace.name))
    _check(libc.unshare(_NEWNS), "unshare")
    # What is done here stays here; what the host unmounts is let go here too.
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(_REC | _SLAVE), None), "/")


def _cure(proc: Path) -> str:
    """What to do for a process that may not enter the host's mounts."""
    why = "an image is looked into in the host's mounts"
    has = int(_EFFECTIVE.findall((proc / "self/status").read_text())[0], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not has >> bit & 1]
    if lacking:
        return f"{why}, which takes {' and '.join(lacking)}: set enforcer.privileged to true"
    return f"{why}, which AppArmor, SELinux or seccomp may forbid: see the node's audit log"


def _check(result: int, about: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)
