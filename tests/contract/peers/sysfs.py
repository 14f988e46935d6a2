# SPDX-License-Identifier: Apache-2.0
"""A sysfs tree with AMD GPUs, as amdgpu and KFD lay it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SIMDS_PER_CU = 4


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of the tree; the defaults are an MI300X."""

    bdf: str = "0000:05:00.0"
    minor: int = 0
    name: str = "AMD Instinct MI300X"
    vram: int = 196288 << 20
    cus: int = 304
    gfx: int = 90402
    unique_id: int = 0x8EFF74B5801BB564
    device: int = 0x74A1
    numa: int = 0
    queues: int = 24
    xgmi: tuple[int, ...] = ()
    """Minors of the GPUs it is linked to."""

    @property
    def render(self) -> int:
        return 128 + self.minor


def two_mi300x() -> tuple[Card, Card]:
    """Two linked MI300X on two NUMA nodes."""
    return (
        Card(xgmi=(1,)),
        Card("0000:65:00.0", 1, unique_id=0x1122334455667788, numa=1, xgmi=(0,)),
    )


def write_sysfs(root: Path, cards: Sequence[Card]) -> Path:
    """Write the tree below ``root``, which then stands for ``/sys``."""
    nodes = root / "class/kfd/kfd/topology/nodes"
    _write(nodes / "0", {"gpu_id": "0", "properties": "cpu_cores_count 64\nsimd_count 0"})
    for number, card in enumerate(cards, start=1):
        domain, bus, rest = card.bdf.split(":")
        slot, _, function = rest.partition(".")
        location = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        properties = {
            "simd_count": card.cus * _SIMDS_PER_CU,
            "simd_per_cu": _SIMDS_PER_CU,
            "gfx_target_version": card.gfx,
            "vendor_id": 0x1002,
            "device_id": card.device,
            "location_id": location,
            "domain": int(domain, 16),
            "drm_render_minor": card.render,
            "unique_id": card.unique_id,
            "num_cp_queues": card.queues,
            "num_xcc": 1,
        }
        lines = "".join(f"{name} {value}\n" for name, value in properties.items())
        _write(nodes / str(number), {"gpu_id": str(4000 + number), "properties": lines})
        for link, peer in enumerate(card.xgmi):
            _write(
                nodes / str(number) / "io_links" / str(link),
                {"properties": f"type 11\nnode_from {number}\nnode_to {peer + 1}\n"},
            )
        device = root / f"devices/pci{domain}:00" / card.bdf
        _write(
            device,
            {
                "vendor": "0x1002",
                "device": f"{card.device:#06x}",
                "unique_id": f"{card.unique_id:016x}",
                "product_name": card.name,
                "numa_node": str(card.numa),
                "mem_info_vram_total": str(card.vram),
            },
        )
        for minor in (f"card{card.minor}", f"renderD{card.render}"):
            directory = root / "class/drm" / minor
            directory.mkdir(parents=True)
            (directory / "device").symlink_to(device)
    return root


def _write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text.rstrip()}\n")
