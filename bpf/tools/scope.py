# SPDX-License-Identifier: Apache-2.0
"""Whom a line is about: processes by cgroup and container, GPUs by address, and who is wanted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import argparse

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_CONTAINER_ID: Final = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?(?=/|$)")


class Subject(Protocol):
    """What can be filtered by."""

    @property
    def pid(self) -> int: ...
    @property
    def cgroup(self) -> str: ...
    @property
    def gpu(self) -> str: ...


class Cgroups:
    """Paths of cgroups by id, which is the inode number of the directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[int, str] = {}

    def path(self, cgroup: int) -> str:
        """Below the root, without a leading slash; ``id:<number>`` if there is none (any more)."""
        if cgroup not in self._paths:
            self._walk()
        return self._paths.setdefault(cgroup, f"id:{cgroup}")

    def _walk(self) -> None:
        for directory, _, _ in os.walk(self._root):
            try:
                number = Path(directory).stat().st_ino
            except OSError:  # removed under the walk
                continue
            self._paths[number] = str(Path(directory).relative_to(self._root))


def container_of(path: str) -> str:
    """What to call a cgroup in 14 columns: the container's short id, or the last of its path."""
    found = _CONTAINER_ID.findall(path)
    return found[-1][:12] if found else path.rsplit("/", 1)[-1][-14:]


def printable(text: str) -> str:
    """With a ``?`` for what does not show as itself: a process's name must not move the cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def add_filters(parser: argparse.ArgumentParser, *, gpu: bool = True) -> None:
    """The options every tool has."""
    parser.add_argument("--container", metavar="ID|PATH", help="container id, or cgroup path")
    parser.add_argument("--pid", type=int)
    if gpu:
        parser.add_argument("--gpu", metavar="BDF", help="PCI address, as in 0000:c1:00.0")
    else:
        parser.set_defaults(gpu=None)
    parser.add_argument("--duration", type=float, metavar="S", help="stop after so many seconds")
    parser.add_argument("--count", type=int, metavar="N", help="stop after so many lines")


def wanted(subject: Subject, options: argparse.Namespace) -> bool:
    """Whether the filters let it through."""
    if options.pid is not None and subject.pid != options.pid:
        return False
    if options.gpu is not None and subject.gpu != options.gpu:
        return False
    return options.container is None or inside(subject.cgroup, options.container)


def inside(cgroup: str, container: str) -> bool:
    """Whether the cgroup is, or is in, the container: the first digits of an id, or a path."""
    path = container.strip("/")
    return (
        cgroup == path
        or cgroup.startswith(path + "/")
        or any(number.startswith(path) for number in _CONTAINER_ID.findall(cgroup))
    )


def bdf(key: int) -> str:
    """The PCI address packed as ``domain << 16 | bus << 8 | device << 3 | function``."""
    return f"{key >> 16:04x}:{key >> 8 & 0xFF:02x}:{key >> 3 & 0x1F:02x}.{key & 7}"


def size_text(size: int) -> str:
    """Signed, in the largest unit that loses nothing: ``+256M``, ``-4K``."""
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift:+d}{unit}"
    return f"{size:+d}"
