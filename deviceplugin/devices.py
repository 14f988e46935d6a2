# SPDX-License-Identifier: Apache-2.0
"""The GPUs as kubelet and the scheduler see them: ids, slots, capacity, health. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deviceplugin.codec import RegisteredGpu, encode_register
from deviceplugin.terms import RESOURCE, partition_resource
from enforcer.inventory import smi_uuid
from enforcer.model import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deviceplugin.terms import Terms
    from enforcer.model import Gpu, Share

_SHARES = 10
_SHARES_GFX12 = 2
"""RDNA4's throughput falls when more processes share it."""
_GFX12 = 120000
_TYPES = ("spx", "dpx", "tpx", "qpx", "cpx")
_PARTITION_SUFFIX = re.compile(rf"#({'|'.join(_TYPES)})$")
_WHOLE = 0xFF
GONE = "it is gone"
"""Why a device is unhealthy that is not there any more."""
WITHHELD = "on the terms of this node it is not offered any more"
"""Why a device is unhealthy that is there: the terms changed, and the log says which keeps it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one partition of it, that is offered."""

    gpu: Gpu
    id: str
    """Its name in the annotations: the UUID as AMD SMI forms it."""
    slots: tuple[str, ...]
    """The ids kubelet knows: how many containers may share it."""
    healthy: bool = True
    why: str = ""
    """Why it is unhealthy."""
    mode: str = ""
    """The compute partition type it is offered as; empty where its CUs are shared."""
    resource: str = RESOURCE
    """What kubelet knows it as."""
    scaling: float = 1.0
    """How many times its VRAM is offered."""

    @property
    def key(self) -> str:
        """Its name among the devices of this node: what its slots' ids start with."""
        return gpu_key(self.gpu)

    @property
    def mib(self) -> int:
        """VRAM in whole MiB, as registered."""
        return int((self.gpu.vram_bytes or 0) // MIB * self.scaling)

    @property
    def rocr_uuid(self) -> str | None:
        """What ROCR_VISIBLE_DEVICES calls it; None where that is nothing, or several."""
        if self.gpu.partition is not None or not self.gpu.unique_id:
            return None
        return f"GPU-{self.gpu.unique_id:016x}"


def gpu_key(gpu: Gpu) -> str:
    """The key of the device that a GPU or partition is offered as."""
    return _key(gpu.bdf, gpu.partition)


def share_key(share: Share) -> str:
    """The key of the device that a share is of."""
    return _key(share.bdf, share.partition)


def overlaps(share: Share, gpu: Gpu) -> bool:
    """True if a share is of this GPU or partition, of its partitions, or of the GPU it is of."""
    return share.bdf == gpu.bdf and (
        share.partition is None or gpu.partition is None or share.partition == gpu.partition
    )


def _key(bdf: str, partition: int | None) -> str:
    return bdf if partition is None else f"{bdf}-{partition}"


def shares_of(gpu: Gpu, terms: Terms) -> int:
    """Containers that may share one GPU: as the terms say, or by generation where that is 0."""
    if terms.whole:
        return 1
    return terms.split_count or (_SHARES_GFX12 if gpu.gfx_version >= _GFX12 else _SHARES)


def devices_of(gpus: Iterable[Gpu], terms: Terms) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The devices to offer, sorted by PCI address, and one line for each GPU that is left out.

    A line, too, for a GPU that is not in the partition mode the terms want.
    """
    devices: list[Device] = []
    problems: list[str] = []
    taken: dict[str, str] = {}
    modes: dict[str, str] = {}
    for gpu in sorted(gpus, key=lambda gpu: (gpu.bdf, gpu.partition or 0, gpu.render)):
        if terms.excludes(gpu):
            continue
        name = device_name(gpu)
        where = f"GPU {gpu.bdf} (renderD{gpu.render})"
        why = _unusable(gpu, terms)
        if why is None and name in taken:
            why = f"its UUID {name} is also that of {taken[name]}"
        if why is not None:
            problems.append(f"{where}: not offered: {why}")
            continue
        taken[name] = gpu.bdf
        mode = gpu.compute_partition or ""
        if terms.compute_partition and mode and mode != terms.compute_partition:
            modes[gpu.bdf] = _other_mode(gpu, mode, terms.compute_partition)
        devices.append(_device(gpu, name, terms))
    return tuple(devices), (*problems, *modes.values())


def _other_mode(gpu: Gpu, found: str, wanted: str) -> str:
    what = f"GPU {gpu.bdf}: expected compute partition mode {wanted}, found {found}"
    if gpu.compute_partitions and wanted not in gpu.compute_partitions:
        return f"{what}: it can be put in {', '.join(gpu.compute_partitions)} alone"
    return f"{what}: drain the node, then amd-smi set --compute-partition {wanted.upper()}"


def _unusable(gpu: Gpu, terms: Terms) -> str | None:
    if gpu.partition is not None and not terms.partitions:
        return (
            f"it is partition {gpu.partition} of its GPU, expected SPX mode or "
            "--operating-mode partition"
        )
    if gpu.vram_bytes is None or gpu.vram_bytes < MIB:
        return "the size of its VRAM is unknown"
    if gpu.cu_count <= 0:
        return "the count of its CUs is unknown"
    return None


def _device(gpu: Gpu, name: str, terms: Terms) -> Device:
    key = gpu_key(gpu)
    hard = terms.partitions and gpu.compute_partition in _TYPES
    resource = partition_resource(gpu) if hard and terms.mixed else RESOURCE
    if hard and not terms.whole:
        mode = gpu.compute_partition or ""
        return Device(gpu, f"{name}#{mode}", (f"{key}#{mode}",), mode=mode, resource=resource)
    slots = tuple(f"{key}#{slot}" for slot in range(shares_of(gpu, terms)))
    scaling = 1.0 if terms.whole else terms.memory_scaling
    return Device(gpu, name, slots, resource=resource, scaling=scaling)


def device_name(gpu: Gpu) -> str:
    """The id in the annotations: AMD SMI's UUID, or the PCI address of a GPU that has no serial.

    The annotations' separators are commas, colons and semicolons, so the address goes with dashes.
    """
    number = _WHOLE if gpu.partition is None else gpu.partition
    uuid = smi_uuid(gpu.unique_id, gpu.device_id, number)
    key = gpu_key(gpu)
    return f"amdgpu-{key.replace(':', '-')}" if uuid is None else uuid


def key_of_slot(device_id: str) -> str:
    """The key of the device that one of kubelet's device ids belongs to."""
    return device_id.partition("#")[0]


def find_device(devices: Sequence[Device], name: str) -> Device | None:
    """The device an annotation names, by the id it was registered with or its ROCr UUID."""
    name = _PARTITION_SUFFIX.sub("", name)
    for device in devices:
        if name in {_PARTITION_SUFFIX.sub("", device.id), device.rocr_uuid}:
            return device
    return None


def product_of(gpu: Gpu) -> str:
    """The product name for the annotation; HAMi matches AMD's GPUs by ``amd`` in it."""
    name = re.sub(r"[,:;\s]+", " ", gpu.name).strip()
    return name if "amd" in name.lower() else f"AMD {name}" if name else "amd-gpu"


def register_value(devices: Iterable[Device]) -> str:
    """The value of ``hami.io/node-amd-register``."""
    devices = tuple(devices)
    offered = {device.gpu.bdf for device in devices}
    return encode_register(
        RegisteredGpu(
            id=device.id,
            index=device.gpu.card or 0,
            count=len(device.slots),
            devmem=device.mib,
            devcore=device.gpu.cu_count,
            type=product_of(device.gpu),
            numa=0 if device.gpu.numa_node is None else device.gpu.numa_node,
            mode=device.mode,
            health=device.healthy,
            pci_bdf=device.gpu.bdf,
            cu_per_wgp=device.gpu.cu_per_wgp,
            compute_queues=device.gpu.compute_queues or 0,
            xgmi_peers=tuple(sorted(offered.intersection(device.gpu.xgmi_peers))),
            partition_profile=_profile(device),
        )
        for device in devices
    )


def _profile(device: Device) -> str:
    gpu = device.gpu
    if not device.mode or gpu.partition is None or gpu.memory_partition is None:
        return ""
    return f"{device.mode}_{gpu.memory_partition}"
