# SPDX-License-Identifier: Apache-2.0
"""Product names from the PCI id database that distributions package (hwdata, pci.ids)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from enforcer.host.files import FileError, read_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_FILES = ("misc/pci.ids", "hwdata/pci.ids")
_DEVICE = re.compile(r"\t(?P<device>[0-9a-f]{4})  (?P<name>.+)")
_MARKETING = re.compile(r".*\[(?P<name>[^\[\]]+)\]")


def device_names(share: Path, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Names of some (vendor, device) pairs; a pair the database does not know is left out.

    ``share`` is the host's ``/usr/share``. Where the database gives a code name and a marketing
    name in brackets (``Aqua Vanjaram [Instinct MI300X]``), the latter is meant. Empty without a
    database; with nothing wanted it is not opened.
    """
    if not wanted:
        return {}
    for file in _FILES:
        try:
            return parse(read_text(share / file), wanted)
        except FileError:
            continue
    return {}


def parse(text: str, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The wanted names of a database in the pci.ids format."""
    names: dict[tuple[int, int], str] = {}
    vendor = -1
    for line in text.splitlines():
        if line[:1] not in ("\t", "#", ""):
            head = line[:4]
            # The class list at the end starts its lines with "C ".
            vendor = int(head, 16) if re.fullmatch(r"[0-9a-f]{4}", head) else -1
            continue
        match = _DEVICE.fullmatch(line)
        if match is None or (vendor, int(match["device"], 16)) not in wanted:
            continue
        marketing = _MARKETING.fullmatch(match["name"])
        names[vendor, int(match["device"], 16)] = marketing["name"] if marketing else match["name"]
    return names
