# SPDX-License-Identifier: Apache-2.0
"""The dmem controller's files, one typed line ``<region> <bytes or max>`` per GPU.

Format: kernel/cgroup/dmem.c and Documentation/admin-guide/cgroup-v2.rst ("DMEM").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cgroupspy.contenttypes import BaseContentType
from cgroupspy.controllers import Controller
from cgroupspy.interfaces import TypedFile

from enforcer.host.cgroups import Directory
from enforcer.host.files import FileError, FileVanished, parse_int, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_VRAM = re.compile(r"drm/[^/]+/vram")
"""As amdgpu names them (amdgpu_vram_mgr.c); other drivers have several a GPU, with a number."""


class RegionBytes(BaseContentType):  # type: ignore[misc]  # the package has no types
    """One line of a dmem file; ``size`` None is the kernel's ``max``."""

    def __init__(self, region: str, size: int | None) -> None:
        self.region = region
        self.size = size

    def __str__(self) -> str:
        return f"{self.region} {'max' if self.size is None else self.size}"

    @classmethod
    def from_string(cls, value: str) -> RegionBytes:
        words = value.split()
        if len(words) != 2:
            raise FileError(f"expected a region and a size, found {value!r}")
        size = None if words[1] == "max" else parse_int(words[1], 10, words[0])
        return cls(words[0], size)


class DmemFiles(Controller):  # type: ignore[misc]  # the package has no types
    """The dmem files of one cgroup.

    Reading and assigning raise OSError. Assign one RegionBytes: one line, one ``write()``, which is
    all 7.3 accepts.
    """

    capacity = TypedFile("dmem.capacity", RegionBytes, readonly=True, many=True)
    current = TypedFile("dmem.current", RegionBytes, readonly=True, many=True)
    peak = TypedFile("dmem.peak", RegionBytes, readonly=True, many=True)
    max = TypedFile("dmem.max", RegionBytes, many=True)


def capacity(root: Path) -> dict[str, int | None]:
    """Bytes per region of the machine; empty where the kernel has no dmem controller.

    Raises FileError for a file that is there and cannot be read.
    """
    try:
        return _read(root, "capacity")
    except FileVanished:
        return {}


def current(directory: Path) -> dict[str, int | None]:
    """Bytes each region charges to the cgroup now. FileVanished without the controller."""
    return _read(directory, "current")


def peak(directory: Path) -> dict[str, int | None]:
    """The highest ``current`` so far; FileVanished before 7.3."""
    return _read(directory, "peak")


def maximum(directory: Path) -> dict[str, int | None]:
    """The cgroup's limits; None is no limit. FileVanished without the controller."""
    return _read(directory, "max")


def regions(names: Iterable[str], bdfs: Iterable[str]) -> dict[str, str]:
    """The region of each GPU that has one, spelled as the kernel spells it: ``{bdf: region}``."""
    spelled = {name.lower(): name for name in names}
    return {bdf: spelled[key] for bdf in bdfs if (key := f"drm/{bdf}/vram") in spelled}


def unmatched(names: Iterable[str], bdfs: Iterable[str]) -> bool:
    """Whether there is a region of an AMD GPU that is none of these."""
    known = {f"drm/{bdf}/vram" for bdf in bdfs}
    return any(_VRAM.fullmatch(name) and name.lower() not in known for name in names)


def _read(directory: Path, name: str) -> dict[str, int | None]:
    try:
        lines: list[RegionBytes] = getattr(DmemFiles(Directory(directory)), name)
    except OSError as error:
        raise unreadable(f"{directory}/dmem.{name}", error) from error
    except (FileError, UnicodeDecodeError) as error:
        raise FileError(f"{directory}/dmem.{name}: {error}") from None
    return {line.region: line.size for line in lines}
