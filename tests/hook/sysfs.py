# SPDX-License-Identifier: Apache-2.0
"""What sysfs says of made-up GPUs, as the thunk inside ROCr reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TOPOLOGY = "sys/devices/virtual/kfd/kfd/topology"
_FIRST_GPU_ID = 1001
_FIRST_BUS = 3

_CPU = {
    "cpu_cores_count": 2, "mem_banks_count": 1, "caches_count": 2, "io_links_count": 1,
    "max_engine_clk_ccompute": 2000,
}  # fmt: skip
_GPU = {
    "simd_count": 416, "mem_banks_count": 1, "caches_count": 2, "io_links_count": 1,
    "simd_id_base": 2147487744, "max_waves_per_simd": 8, "lds_size_in_kb": 64, "num_gws": 64,
    "wave_front_size": 64, "array_count": 8, "simd_arrays_per_engine": 1, "cu_per_simd_array": 14,
    "simd_per_cu": 4, "max_slots_scratch_cu": 32, "gfx_target_version": 90010, "vendor_id": 4098,
    "device_id": 29711, "num_sdma_engines": 2, "num_sdma_xgmi_engines": 0,
    "num_sdma_queues_per_engine": 8, "num_cp_queues": 24, "max_engine_clk_fcompute": 1700,
    "fw_version": 92, "capability": 746037888, "debug_prop": 470, "sdma_fw_version": 9,
    "num_xcc": 1, "max_engine_clk_ccompute": 2450,
}  # fmt: skip
"""An Instinct of gfx90a, 104 CUs."""


def _write(path: Path, content: Mapping[str, int] | str) -> None:
    if not isinstance(content, str):
        content = "".join(f"{name} {value}\n" for name, value in content.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _node(node: Path, gpu_id: int, name: str, properties: Mapping[str, int], vram: int) -> None:
    _write(node / "gpu_id", f"{gpu_id}\n")
    _write(node / "name", f"{name}\n")
    _write(node / "properties", properties)
    # Heap 1 is VRAM the host can reach, 0 the host's own memory.
    bank = {"heap_type": int(vram > 0), "size_in_bytes": vram or 16 << 30, "flags": 0,
            "width": 4096, "mem_clk_max": 1600}  # fmt: skip
    _write(node / "mem_banks/0/properties", bank)
    for level in (1, 2):
        cache = {"processor_id_low": 0, "level": level, "size": 16 << level,
                 "cache_line_size": 128, "cache_lines_per_tag": 1, "association": 16,
                 "latency": 1, "type": 9}  # fmt: skip
        _write(node / f"caches/{level - 1}/properties", cache)


def _link(node: Path, place: int, start: int, end: int) -> None:
    link = {"type": 2, "version_major": 0, "version_minor": 0, "node_from": start, "node_to": end,
            "weight": 20, "min_latency": 0, "max_latency": 0, "min_bandwidth": 0,
            "max_bandwidth": 0, "recommended_transfer_size": 0, "flags": 0}  # fmt: skip
    _write(node / f"io_links/{place}/properties", link)


def write(root: Path, gpus: int, vram: int) -> None:
    """Files of a node with this many GPUs of ``vram`` bytes, and empty files for its devices."""
    top = root / _TOPOLOGY
    _write(top / "generation_id", "1\n")
    _write(top / "system_properties", {"platform_oem": 1, "platform_id": 1, "platform_rev": 1})
    nodes = top / "nodes"
    _node(nodes / "0", 0, "", {**_CPU, "io_links_count": gpus}, 0)
    for gpu in range(gpus):
        own = {
            "location_id": (_FIRST_BUS + gpu) << 8,
            "drm_render_minor": 128 + gpu,
            "unique_id": 0x1234567890ABCD01 + gpu,
        }
        node = nodes / f"{gpu + 1}"
        _node(node, _FIRST_GPU_ID + gpu, "stand-in", {**_GPU, **own}, vram)
        _link(nodes / "0", gpu, 0, gpu + 1)
        _link(node, 0, gpu + 1, 0)
        _write(root / f"dev/dri/renderD{128 + gpu}", "")
    _write(root / "dev/kfd", "")
