# SPDX-License-Identifier: Apache-2.0
"""Machines with AMD GPUs, as descriptions for ``trees.write_sys``.

``python -m tests.testbed.machines`` names them, ``... "8 MI355X"`` prints one as JSON, and
``... --write DIR FILE`` makes DIR the ``/sys`` of the machine that such a file describes, for
``ringfence inventory --sys DIR`` and ``ringfence device-plugin --sys DIR``.

Counts of CUs, XCCs and gfx versions are those of AMD's data sheets and of amdgpu's IP discovery,
device ids those of amdgpu's PCI table and the PCI id database. Serials and addresses are made up.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.trees import GpuSpec, NodeSpec, PartitionSpec, from_json, to_json, write_sys

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1 << 30

MI210 = GpuSpec(
    "0000:03:00.0",
    kfd_id=0x1000,
    card=0,
    render=128,
    vram=64 * GIB,
    gfx=90010,
    cus=104,
    device_id=0x740F,
    product_name="AMD Instinct MI210",
)
MI300X = replace(
    MI210,
    vram=192 * GIB,
    gfx=90402,
    cus=304,
    xccs=8,
    device_id=0x74A1,
    product_name="AMD Instinct MI300X OAM",
    compute_partition="SPX",
    memory_partition="NPS1",
    compute_partitions=("SPX", "DPX", "QPX", "CPX"),
    memory_partitions=("NPS1", "NPS4"),
)
MI308X = replace(
    MI300X,
    cus=80,
    xccs=4,
    device_id=0x74A2,
    product_name="AMD Instinct MI308X OAM",
    compute_partitions=("SPX", "DPX", "CPX"),
)
MI355X = replace(
    MI300X,
    vram=288 * GIB,
    gfx=90500,
    cus=256,
    device_id=0x75A3,
    product_name="AMD Instinct MI355X",
    memory_partitions=("NPS1", "NPS2"),
)
RX7900XTX = GpuSpec(
    "0000:03:00.0",
    kfd_id=0x2000,
    card=0,
    render=128,
    vram=24 * GIB,
    gfx=110000,
    cus=96,
    simd_per_cu=2,
    queues=8,
    device_id=0x744C,
    unique_id=0x58C3A1F06C1E2D01,
)
RX9070XT = replace(
    RX7900XTX, vram=16 * GIB, gfx=120001, cus=64, device_id=0x7550, unique_id=0x17B29E44D0AA5C02
)
STRIX_HALO = GpuSpec(
    "0000:c4:00.0",
    kfd_id=0x3000,
    card=1,
    render=128,
    vram=512 << 20,
    local_memory=62 * GIB,
    gfx=110501,
    cus=40,
    simd_per_cu=2,
    queues=8,
    device_id=0x1586,
    numa=-1,
)
"""An APU: a carve-out instead of VRAM of its own, no serial, no NUMA node."""
MI300A = replace(
    MI300X, vram=None, vram_used=None, local_memory=64 * GIB, cus=228, xccs=6, device_id=0x74A0,
    unique_id=0x6E0A01,
)  # fmt: skip
"""An APU whose memory is the machine's: no VRAM at all."""
MI300X_VF = replace(
    MI300X,
    bdf="0000:05:02.1",
    vram=196288 << 20,
    device_id=0x74B5,
    unique_id=0x8E1BB56457ADDD1B,
    product_name="AMD Instinct MI300X VF",
    compute_partition=None,
    memory_partition=None,
    compute_partitions=(),
    memory_partitions=(),
    hwmon=False,
    busy_percent=None,
)
"""A virtual function: not function 0, no sensors, no partition modes."""


def eight(model: GpuSpec, hives: tuple[tuple[int, ...], ...]) -> NodeSpec:
    """Eight GPUs on two sockets, linked within each of the hives."""
    bdfs = [f"0000:{0x05 + 0x10 * index:02x}:00.0" for index in range(8)]
    return NodeSpec(
        tuple(
            replace(
                model,
                bdf=bdfs[index],
                kfd_id=model.kfd_id + index,
                card=index,
                render=128 + index,
                unique_id=0x8E00000000000100 + index,
                numa=index // 4,
                xgmi=tuple(
                    bdfs[peer] for hive in hives if index in hive for peer in hive if peer != index
                ),
            )
            for index in range(8)
        ),
        cpus=2,
    )


def partitioned(node: NodeSpec, compute: str, memory: str, count: int) -> NodeSpec:
    """The machine with each of its GPUs in ``count`` partitions."""
    gpus = []
    minor = len(node.gpus)
    for gpu in node.gpus:
        parts = tuple(
            PartitionSpec(
                kfd_id=gpu.kfd_id + 0x100 * number,
                card=minor + number - 1,
                render=128 + minor + number - 1,
                vram=(gpu.vram or 0) // count,
            )
            for number in range(1, count)
        )
        minor += count - 1
        gpus.append(
            replace(gpu, compute_partition=compute, memory_partition=memory, partitions=parts)
        )
    return replace(node, gpus=tuple(gpus))


TWO_HIVES = ((0, 1, 2, 3), (4, 5, 6, 7))
ONE_HIVE = (tuple(range(8)),)

MACHINES: dict[str, NodeSpec] = {
    "8 MI210 in two hives": eight(MI210, TWO_HIVES),
    "8 MI300X": eight(MI300X, ONE_HIVE),
    "8 MI300X, CPX and NPS4": partitioned(eight(MI300X, ONE_HIVE), "CPX", "NPS4", 8),
    "2 MI308X in domains 0 and 1, 4 partitions each": partitioned(
        NodeSpec(
            (
                replace(MI308X, unique_id=0x8E00000000000201),
                replace(
                    MI308X,
                    bdf="0001:03:00.0",
                    kfd_id=0x1080,
                    card=1,
                    render=129,
                    unique_id=0x8E00000000000202,
                ),
            )
        ),
        "CPX",
        "NPS1",
        4,
    ),
    "8 MI355X": eight(MI355X, ONE_HIVE),
    "a workstation with RDNA 3 and RDNA 4": NodeSpec(
        (RX7900XTX, replace(RX9070XT, bdf="0000:83:00.0", kfd_id=0x2001, card=1, render=129))
    ),
    "an APU": NodeSpec((STRIX_HALO,)),
    "an MI300A": NodeSpec((MI300A,)),
    "a virtual function": NodeSpec((MI300X_VF,)),
}


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.machines")
    parser.add_argument("machine", nargs="?", help="a machine's name, or with --write a JSON file")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="make this directory, as its /sys"
    )
    options = parser.parse_args(argv)
    if options.machine is None:
        sys.stdout.writelines(f"{name}\n" for name in MACHINES)
        return 0
    if options.write is None:
        if options.machine not in MACHINES:
            parser.error(f"expected one of {', '.join(MACHINES)}, found {options.machine!r}")
        sys.stdout.write(f"{to_json(MACHINES[options.machine])}\n")
        return 0
    try:
        node = from_json(Path(options.machine).read_text())
        options.write.mkdir(parents=True)
    except (OSError, KeyError, TypeError, ValueError) as error:
        parser.error(f"{options.machine}: {error}")
    write_sys(options.write, node)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
