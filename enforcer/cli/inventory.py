# SPDX-License-Identifier: Apache-2.0
"""``ringfence inventory``: the GPUs of a node as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory, smi_uuid
from enforcer.model import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enforcer.model import Gpu

_HEAD = ("BDF", "CARD", "RENDER", "KFD-ID", "MODEL", "VRAM", "CUS", "NUMA")


def main(argv: Sequence[str]) -> int:
    """Exit status 0 also without a GPU; 1 if one of them could not be read."""
    parser = argparse.ArgumentParser(prog="ringfence inventory", description=__doc__)
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument(
        "--sys", type=Path, default=Roots().sys, metavar="DIR", help="read this tree as /sys"
    )
    options = parser.parse_args(argv)
    gpus, problems = read_inventory(Roots(sys=options.sys))
    if options.json:
        print(json.dumps([_entry(gpu) for gpu in gpus], indent=2))
    elif gpus:
        print(table(gpus))
    else:
        print(f"no AMD GPU: nothing in {options.sys}/class/kfd/kfd/topology; is amdgpu loaded?")
    for problem in problems:
        print(f"ringfence inventory: {problem}", file=sys.stderr)
    return 1 if problems else 0


def table(gpus: Sequence[Gpu]) -> str:
    """Aligned columns, one line per GPU, within 80 columns; a dash is unknown."""
    rows = [_HEAD, *(_row(gpu) for gpu in gpus)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(gpu: Gpu) -> tuple[str, ...]:
    return (
        gpu.bdf,
        "-" if gpu.card is None else f"card{gpu.card}",
        f"renderD{gpu.render}",
        str(gpu.kfd_id),
        gpu.name,
        _size(gpu.vram_bytes),
        str(gpu.cu_count),
        "-" if gpu.numa_node is None else str(gpu.numa_node),
    )


def _size(size: int | None) -> str:
    """In GiB where that is exact: cards have whole GiB, virtual functions often not."""
    if size is None:
        return "-"
    gib, rest = divmod(size, GIB)
    return f"{size // MIB} MiB" if rest else f"{gib} GiB"


def _entry(gpu: Gpu) -> dict[str, object]:
    known = {key: value for key, value in asdict(gpu).items() if value is not None}
    uuid = smi_uuid(gpu.unique_id, gpu.device_id, 0xFF if gpu.partition is None else gpu.partition)
    return known if uuid is None else {**known, "uuid": uuid}
