# SPDX-License-Identifier: Apache-2.0
"""The amdgpu driver itself: a module, or part of the kernel."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from enforcer.host.files import FileError, read_line

if TYPE_CHECKING:
    from pathlib import Path

_DRM_MAJOR = 226
_DRIVER = "bus/pci/drivers/amdgpu"
_MODULE = "module/amdgpu"
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def devices(sys: Path) -> frozenset[str] | None:
    """PCI addresses of the driver's devices; None where there is no driver."""
    try:
        names = os.listdir(sys / _DRIVER)  # noqa: PTH208
    except OSError:
        return None
    return frozenset(filter(_BDF.fullmatch, names))


def idle(sys: Path) -> bool:
    """True if the driver is there and has no device: the administrator may want to reload it."""
    return devices(sys) == frozenset()


def settled(sys: Path) -> bool:
    """False while the driver's module comes or goes: devices come or go one after the other then.

    The kernel lets nothing of ours attach to a module before it is ``live``
    (``btf_try_get_module``). True for a driver that is built in, or not there.
    """
    try:
        return read_line(sys / _MODULE / "initstate") == "live"
    except FileError:
        return True


def builtin_majors(sys: Path) -> frozenset[int]:
    """The character majors of a driver that is built in; empty where it is a module or absent.

    Files of a module are known by their owner, those of a built-in driver only by their major. Only
    a module has ``initstate`` (kernel/module/sysfs.c). kfd's major is dynamic, and a kernel may be
    without kfd. Raises FileError.
    """
    module = sys / _MODULE
    if not module.is_dir() or (module / "initstate").exists():
        return frozenset()
    path = sys / "class" / "kfd" / "kfd" / "dev"
    if not path.exists():
        return frozenset({_DRM_MAJOR})
    major, colon, _ = read_line(path).partition(":")
    if not colon or not major.isdecimal():
        raise FileError(f"{path}: expected MAJOR:MINOR, found {major!r}")
    return frozenset({_DRM_MAJOR, int(major)})
