# SPDX-License-Identifier: Apache-2.0
"""Synthetic sysfs and cgroup trees, written from a description.

The layouts are those of the kernel: drivers/gpu/drm/amd/amdkfd/kfd_topology.c, drm_sysfs.c, the
device attributes of amdgpu, and kernel/cgroup. Only files that Ringfence reads are written.
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

XGMI = 11
PCIE = 2


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A compute partition beyond the first: a platform device with minors of its own."""

    kfd_id: int
    card: int
    render: int
    vram: int
    """Bytes of its memory banks."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU. ``vram`` in bytes; a None leaves the file out."""

    bdf: str
    kfd_id: int
    card: int
    render: int
    vram: int | None = 64 << 30
    local_memory: int | None = None
    """What KFD lists as its memory, in bytes; None is as much as its VRAM, if it has any."""
    vram_used: int | None = 0
    gfx: int = 90010
    cus: int = 104
    simd_per_cu: int = 4
    xccs: int = 1
    queues: int = 24
    device_id: int = 0x740F
    unique_id: int = 0
    product_name: str | None = None
    numa: int | None = 0
    xgmi: tuple[str, ...] = ()
    """PCI addresses of the GPUs it is linked to."""
    compute_partition: str | None = None
    memory_partition: str | None = None
    compute_partitions: tuple[str, ...] = ()
    """The modes that it can be put in."""
    memory_partitions: tuple[str, ...] = ()
    partitions: tuple[PartitionSpec, ...] = ()
    hwmon: bool = True
    busy_percent: int | None = 0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node's processors and GPUs."""

    gpus: tuple[GpuSpec, ...] = ()
    cpus: int = 1


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container's cgroup; ``dmem`` are its dmem files by name (``{"max": "..."}``)."""

    id: str
    name: str | None = None
    sandbox: bool = False
    dmem: dict[str, str] = field(default_factory=dict)


def from_json(text: str) -> NodeSpec:
    """A node from ``{"cpus": 2, "gpus": [{"bdf": ...}]}``, the keys as in the classes above.

    Raises TypeError for an unknown or missing key, KeyError or ValueError for anything else amiss.
    """
    document: dict[str, Any] = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError(f"expected an object, found {type(document).__name__}")
    gpus = []
    for entry in document.get("gpus", ()):
        fields = dict(entry)
        fields["partitions"] = tuple(PartitionSpec(**one) for one in fields.get("partitions", ()))
        for name in ("xgmi", "compute_partitions", "memory_partitions"):
            fields[name] = tuple(fields.get(name, ()))
        gpus.append(GpuSpec(**fields))
    return NodeSpec(tuple(gpus), document.get("cpus", 1))


def to_json(node: NodeSpec) -> str:
    """The inverse of ``from_json``; what is as it is by default is left out."""
    gpus = []
    for gpu in node.gpus:
        entry = {
            name: value
            for name, value in asdict(gpu).items()
            if name in _REQUIRED or value != _DEFAULTS[name]
        }
        gpus.append(entry)
    return json.dumps({"cpus": node.cpus, "gpus": gpus}, indent=1)


_REQUIRED = {one.name for one in fields(GpuSpec) if one.default is MISSING}
_DEFAULTS = {one.name: one.default for one in fields(GpuSpec)}


def write_sys(sys: Path, node: NodeSpec) -> None:
    """The node's ``/sys`` below ``sys``."""
    nodes = sys / "class/kfd/kfd/topology/nodes"
    for cpu in range(node.cpus):
        _write(nodes / str(cpu) / "gpu_id", "0\n")
        _properties(nodes / str(cpu) / "properties", {"cpu_cores_count": 64, "simd_count": 0})
    numbers = {gpu.bdf: node.cpus + index for index, gpu in enumerate(node.gpus)}
    free = first = node.cpus + len(node.gpus)
    for gpu in node.gpus:
        number = numbers[gpu.bdf]
        _pci_device(sys, gpu)
        listed = gpu.vram if gpu.local_memory is None else gpu.local_memory
        _kfd_node(nodes / str(number), gpu, gpu.kfd_id, gpu.render, 0, listed)
        _links(nodes / str(number), number, [(0, PCIE), *((numbers[b], XGMI) for b in gpu.xgmi)])
        for index, partition in enumerate(gpu.partitions, 1):
            # Numbered through over all GPUs, as the driver does.
            _platform_device(sys, free - first, partition)
            _kfd_node(
                nodes / str(free), gpu, partition.kfd_id, partition.render, index, partition.vram
            )
            free += 1
    if any(gpu.partitions for gpu in node.gpus):
        _first_partitions(nodes, node, numbers)


def write_process(sys: Path, pid: int, vram: dict[int, int]) -> None:
    """KFD's files of one process: VRAM by gpu_id."""
    for gpu_id, size in vram.items():
        _write(sys / f"class/kfd/kfd/proc/{pid}/vram_{gpu_id}", f"{size}\n")


def write_cgroup(root: Path, path: str = "", controllers: str = "", enabled: str = "") -> Path:
    """A cgroup with its core files; the parents must have been written before."""
    directory = root / path
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "cgroup.controllers", f"{controllers}\n")
    _write(directory / "cgroup.subtree_control", f"{enabled}\n")
    _write(directory / "cgroup.procs", "")
    return directory


def write_pod(
    root: Path,
    path: str,
    containers: Iterable[ContainerSpec],
    scope: str = "cri-containerd-{}.scope",
) -> None:
    """A pod's cgroup at ``path`` below the cgroup root, and its containers'."""
    write_cgroup(root, path)
    for one in containers:
        directory = write_cgroup(root, f"{path}/{scope.format(one.id)}")
        for name, text in one.dmem.items():
            _write(directory / f"dmem.{name}", text)


def write_bundle(run: Path, container: ContainerSpec) -> None:
    """containerd's OCI bundle of a container below ``run``."""
    annotations = {
        "io.kubernetes.cri.container-type": "sandbox" if container.sandbox else "container"
    }
    if container.name is not None:
        annotations["io.kubernetes.cri.container-name"] = container.name
    path = run / "containerd/io.containerd.runtime.v2.task/k8s.io" / container.id / "config.json"
    _write(path, json.dumps({"ociVersion": "1.2.0", "annotations": annotations}))


def _pci_device(sys: Path, gpu: GpuSpec) -> None:
    device = sys / "devices/pci0000:00" / gpu.bdf
    _drm(sys, device, gpu.card, gpu.render)
    (sys / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (sys / "bus/pci/devices" / gpu.bdf).symlink_to(os.path.relpath(device, sys / "bus/pci/devices"))
    files: dict[str, object] = {
        "vendor": "0x1002",
        "device": f"0x{gpu.device_id:04x}",
        "unique_id": f"{gpu.unique_id:016x}" if gpu.unique_id else None,
        "product_name": gpu.product_name,
        "numa_node": gpu.numa,
        "mem_info_vram_total": gpu.vram,
        "mem_info_vram_used": gpu.vram_used,
        "mem_info_gtt_total": 16 << 30,
        "gpu_busy_percent": gpu.busy_percent,
        "current_compute_partition": gpu.compute_partition,
        "current_memory_partition": gpu.memory_partition,
        "available_compute_partition": ", ".join(gpu.compute_partitions) or None,
        "available_memory_partition": ", ".join(gpu.memory_partitions) or None,
        "hwmon/hwmon3/temp1_input": 41000 if gpu.hwmon else None,
        "hwmon/hwmon3/power1_average": 90_000_000 if gpu.hwmon else None,
    }
    for name, value in files.items():
        if value is not None:
            _write(device / name, f"{value}\n")


def _platform_device(sys: Path, index: int, partition: PartitionSpec) -> None:
    device = sys / "devices/platform" / f"amdgpu_xcp_{index}"
    _drm(sys, device, partition.card, partition.render)


def _drm(sys: Path, device: Path, card: int, render: int) -> None:
    (sys / "class/drm").mkdir(parents=True, exist_ok=True)
    for name in (f"card{card}", f"renderD{render}"):
        node = device / "drm" / name
        node.mkdir(parents=True)
        (node / "device").symlink_to("../..")
        (sys / "class/drm" / name).symlink_to(os.path.relpath(node, sys / "class/drm"))


def _kfd_node(
    node: Path, gpu: GpuSpec, kfd_id: int, render: int, partition: int, vram: int | None
) -> None:
    domain, bus, rest = gpu.bdf.split(":")
    device, function = rest.split(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function) | partition
    parts = len(gpu.partitions) + 1
    _write(node / "gpu_id", f"{kfd_id}\n")
    _properties(
        node / "properties",
        {
            "cpu_cores_count": 0,
            "simd_count": gpu.cus * gpu.simd_per_cu // parts,
            "simd_per_cu": gpu.simd_per_cu,
            "gfx_target_version": gpu.gfx,
            "vendor_id": 0x1002,
            "device_id": gpu.device_id,
            "location_id": location,
            "domain": int(domain, 16),
            "drm_render_minor": render,
            "num_cp_queues": gpu.queues,
            "unique_id": gpu.unique_id,
            "num_xcc": gpu.xccs // parts or 1,
        },
    )
    if vram is not None:
        _bank(node, vram)


def _first_partitions(nodes: Path, node: NodeSpec, numbers: dict[str, int]) -> None:
    """The partition that keeps the PCI device's minors has the share of the others."""
    for gpu in node.gpus:
        if gpu.partitions:
            _bank(nodes / str(numbers[gpu.bdf]), gpu.partitions[0].vram)


def _bank(node: Path, vram: int) -> None:
    _properties(node / "mem_banks/0/properties", {"heap_type": 1, "size_in_bytes": vram})


def _links(node: Path, number: int, links: Iterable[tuple[int, int]]) -> None:
    for index, (target, kind) in enumerate(links):
        _properties(
            node / f"io_links/{index}/properties",
            {"type": kind, "node_from": number, "node_to": target, "weight": 15},
        )


def _properties(path: Path, values: dict[str, int]) -> None:
    _write(path, "".join(f"{key} {value}\n" for key, value in values.items()))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
