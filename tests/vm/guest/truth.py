# SPDX-License-Identifier: Apache-2.0
"""What the driver itself says lies in VRAM: the simulation driver's list, by who put it there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

_DEBUG: Final = Path("/sys/kernel/debug/amdgpu")
_BUFFER: Final = re.compile(r"^(\d+) bytes by (.*)\[\d+\]$", re.MULTILINE)
_TABLES: Final = re.compile(r" bytes (\d+)$", re.MULTILINE)


def in_vram(bdf: str) -> Counter[str]:
    """Bytes in one GPU's VRAM, page tables among them, by the name of the task (``comm``)."""
    found: Counter[str] = Counter()
    for size, comm in _BUFFER.findall((_DEBUG / bdf / "sim_buffers").read_text()):
        found[comm] += int(size)
    return found


def page_tables(bdf: str) -> int:
    """Bytes of one GPU's page tables, of all open files."""
    text = (_DEBUG / bdf / "sim_page_tables").read_text()
    return sum(int(size) for size in _TABLES.findall(text))


def buffers(bdf: str) -> int:
    """Bytes of everything in one GPU's VRAM that is no page table."""
    tables = page_tables(bdf)
    while True:
        placed, before = in_vram(bdf).total(), tables
        # Two lists: a file that is closed between takes its table from the one of them only.
        if (tables := page_tables(bdf)) == before:
            return placed - tables
