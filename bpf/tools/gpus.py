# SPDX-License-Identifier: Apache-2.0
"""Which GPU a device number or a KFD id is, as sysfs tells. Nothing is kept open."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def by_minor(sys: Path) -> dict[int, str]:
    """PCI addresses by DRM minor; a partition's platform device has its own name."""
    found = {}
    for node in (sys / "class/drm").glob("*[0-9]"):
        name = node.name
        number = name.removeprefix("renderD").removeprefix("card")
        if name.startswith(("renderD", "card")) and number.isdecimal():
            found[int(number)] = (node / "device").resolve().name
    return found


def by_kfd_id(sys: Path) -> dict[int, str]:
    """PCI addresses by KFD's ``gpu_id``; what cannot be read is left out."""
    found = {}
    for node in (sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*"):
        try:
            gpu_id = int((node / "gpu_id").read_text())
            lines = (node / "properties").read_text().splitlines()
            properties = {words[0]: int(words[1]) for words in map(str.split, lines)}
            location, domain = properties["location_id"], properties.get("domain", 0)
        except (OSError, ValueError, KeyError, IndexError):
            continue
        if gpu_id:
            found[gpu_id] = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"
    return found


def kfd_major(sys: Path) -> int | None:
    """The character major of ``/dev/kfd``; None without it."""
    try:
        major = (sys / "class/kfd/kfd/dev").read_text().partition(":")[0]
    except OSError:
        return None
    return int(major) if major.isdecimal() else None
