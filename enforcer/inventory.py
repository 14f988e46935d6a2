# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, from what KFD and DRM say of them.

A GPU is what KFD has a topology node for: without one nothing computes on it. KFD's
``drm_render_minor`` ties the node to its DRM device. The DRM device names the PCI function; KFD's
domain and location are the check, and the only source for a partition, whose DRM device is a
platform device without an address.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from enforcer.host import drm, kfd, pciids
from enforcer.model import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from enforcer.host.drm import DrmDevice
    from enforcer.host.kfd import KfdNode
    from enforcer.host.roots import Roots

_WHOLE = 0xFF


def smi_uuid(unique_id: int | None, device_id: int | None, partition: int = _WHOLE) -> str | None:
    """The UUID AMD SMI prints for a GPU, or None where the GPU has no unique id.

    Bit layout of ``amdsmi_uuid_gen`` (ROCm/amdsmi, src/amd_smi/amd_smi_uuid.cc): a version 1,
    variant 2 UUID whose time is the PCI device id and whose clock and node are the 64-bit serial;
    byte 6 of the first word is the partition's number, 0xff for the GPU as a whole.
    """
    if not unique_id or device_id is None:
        return None
    first = (unique_id >> 56) << 24 | (partition & 0xFF) << 16 | device_id & 0xFFFF
    return (
        f"{first:08x}-0000-1000-80{unique_id >> 48 & 0xFF:02x}"
        f"-{unique_id >> 32 & 0xFFFF:04x}{unique_id & 0xFFFFFFFF:08x}"
    )


def inventory(
    nodes: Sequence[KfdNode],
    devices: Iterable[DrmDevice],
    names: Mapping[tuple[int, int], str],
) -> tuple[list[Gpu], list[str]]:
    """The GPUs in order of PCI address and render minor, and a line for each that is unusable.

    ``names`` are product names by (vendor, device), for GPUs that do not carry their own.
    A GPU that contradicts itself is left out; the others are not touched by it.
    """
    devices = tuple(devices)
    by_render = {device.render: device for device in devices if device.render is not None}
    by_bdf = {device.bdf: device for device in devices if device.bdf is not None}
    gpus: dict[int, Gpu] = {}
    problems: list[str] = []
    for node in nodes:
        if node.gpu_id == 0:
            continue
        try:
            gpus[node.node] = _gpu(node, by_render, by_bdf, names)
        except ValueError as error:
            problems.append(f"KFD node {node.node}: {error}")
    numbers = _partitions(nodes, gpus)
    found = []
    for node in nodes:
        gpu = gpus.get(node.node)
        if gpu is None:
            continue
        if node.node in numbers:
            number, count = numbers[node.node]
            # mem_info_vram_total is the whole device's; a partition has its own memory banks.
            size = node.local_memory or (gpu.vram_bytes or 0) // count or None
            gpu = replace(gpu, vram_bytes=size, partition=number)
        found.append(
            replace(
                gpu,
                xgmi_peers=_peers(node, gpu, gpus),
                system_memory=_in_system_memory(node, gpu, by_bdf.get(gpu.bdf)),
            )
        )
    return sorted(found, key=lambda gpu: (gpu.bdf, gpu.partition or 0, gpu.render)), problems


def read_inventory(roots: Roots) -> tuple[list[Gpu], list[str]]:
    """The GPUs of the node below ``roots``, and a line for each that cannot be used."""
    nodes, problems = kfd.topology(roots.sys)
    devices, drm_problems = drm.devices(roots.sys)
    unnamed = {
        (device.vendor, device.device)
        for device in devices
        if device.product_name is None and device.vendor is not None and device.device is not None
    }
    gpus, found = inventory(nodes, devices, pciids.device_names(roots.share, unnamed))
    return gpus, [*problems, *drm_problems, *found]


def _partitions(nodes: Iterable[KfdNode], gpus: Mapping[int, Gpu]) -> dict[int, tuple[int, int]]:
    """By topology node, where several share a device: the partition's number, and how many share.

    KFD ors it into the location (kfd_topology.c: ``location_id |= node_id``), so it is the same
    after every boot. A driver of 2024 has it in the location's highest bits instead (``<< 28``).
    Should it be missing in both, the order of the render nodes stands in.
    """
    sharing: dict[str, list[KfdNode]] = {}
    for node in nodes:
        if node.node in gpus:
            sharing.setdefault(gpus[node.node].bdf, []).append(node)
    numbers: dict[int, tuple[int, int]] = {}
    for group in sharing.values():
        if len(group) == 1:
            continue
        in_order = sorted(group, key=lambda node: gpus[node.node].render)
        ways = (
            {node.node: node.location & 7 for node in group},
            {node.node: node.location >> 28 & 0xF for node in group},
            {node.node: number for number, node in enumerate(in_order)},
        )
        located = next(way for way in ways if len(set(way.values())) == len(group))
        numbers |= {node: (number, len(group)) for node, number in located.items()}
    return numbers


def _gpu(
    node: KfdNode,
    by_render: Mapping[int, DrmDevice],
    by_bdf: Mapping[str, DrmDevice],
    names: Mapping[tuple[int, int], str],
) -> Gpu:
    properties = node.properties
    render = properties.get("drm_render_minor", 0)
    if render <= 0:
        raise ValueError(
            "expected a drm_render_minor, found none; is amdgpu's render node disabled?"
        )
    device = by_render.get(render)
    if device is None:
        raise ValueError(f"no DRM device has its render node renderD{render}")
    bdf = _bdf(node, device)
    simds, per_cu = properties.get("simd_count", 0), properties.get("simd_per_cu", 0)
    if simds <= 0 or per_cu <= 0:
        raise ValueError(f"{bdf}: expected simd_count and simd_per_cu, found {simds} and {per_cu}")
    # What a partition's platform device does not say, its GPU's does.
    whole = by_bdf.get(bdf, device)
    vendor, device_id = _ids(properties, whole)
    return Gpu(
        bdf=bdf,
        kfd_id=node.gpu_id,
        card=device.card,
        render=render,
        name=_name(whole, vendor, device_id, names),
        vram_bytes=whole.vram_total or node.local_memory,
        cu_count=simds // per_cu,
        gfx_version=properties.get("gfx_target_version", 0),
        device_id=device_id,
        unique_id=properties.get("unique_id") or whole.unique_id,
        numa_node=whole.numa_node,
        compute_queues=properties.get("num_cp_queues") or None,
        xcc_count=properties.get("num_xcc") or None,
        compute_partition=whole.compute_partition,
        memory_partition=whole.memory_partition,
        compute_partitions=whole.compute_partitions,
        memory_partitions=whole.memory_partitions,
    )


def _in_system_memory(node: KfdNode, gpu: Gpu, device: DrmDevice | None) -> bool:
    """Whether what KFD gives out as this GPU's memory is not its VRAM (amdgpu_amdkfd.c).

    ``amdgpu_amdkfd_get_local_mem_info`` then says how much of the machine's memory TTM may take,
    which may be less than an APU's carve-out. Else it is the VRAM to the byte, or a partition's
    share of that. Where KFD lists no memory nothing is known, and nothing is said.
    """
    if not node.local_memory or device is None:
        return False
    if device.vram_total is None and not device.memory_told:
        return False
    vram = device.vram_total or 0  # an MI300A says 0, or from Linux 7 has no such file
    shared = gpu.partition is not None or gpu.compute_partition is not None
    if shared or (gpu.xcc_count or 1) > 1:
        return node.local_memory > vram
    return node.local_memory != vram


def _bdf(node: KfdNode, device: DrmDevice) -> str:
    location = node.location
    slot = f"{node.pci_domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    if device.bdf is None:
        # The function bits carry the partition's number (kfd_topology.c); amdgpu partitions only
        # physical functions, which are function 0.
        return f"{slot}.0"
    if device.bdf.rpartition(".")[0] != slot:
        raise ValueError(
            f"KFD places it at {slot}, its render node renderD{device.render} is {device.bdf}"
        )
    return device.bdf


def _ids(properties: Mapping[str, int], device: DrmDevice) -> tuple[int | None, int | None]:
    vendor = device.vendor if device.vendor is not None else properties.get("vendor_id")
    return vendor, device.device if device.device is not None else properties.get("device_id")


def _name(
    device: DrmDevice,
    vendor: int | None,
    device_id: int | None,
    names: Mapping[tuple[int, int], str],
) -> str:
    if device.product_name is not None:
        return device.product_name
    if vendor is None or device_id is None:
        return "AMD GPU"
    return names.get((vendor, device_id)) or f"AMD GPU {vendor:04x}:{device_id:04x}"


def _peers(node: KfdNode, gpu: Gpu, gpus: Mapping[int, Gpu]) -> tuple[str, ...]:
    reached = {
        gpus[link.node_to].bdf
        for link in node.links
        if link.type == kfd.XGMI and link.node_to in gpus
    }
    return tuple(sorted(reached - {gpu.bdf}))
