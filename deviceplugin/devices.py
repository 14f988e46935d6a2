# SPDX-License-Identifier: Apache-2.0
"""The GPUs as kubelet and the scheduler see them: ids, slots, capacity, health. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deviceplugin.codec import RegisteredGpu, encode_register
from enforcer.inventory import smi_uuid
from enforcer.model import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from enforcer.model import Gpu

_SHARES = 10
_SHARES_GFX12 = 2
"""RDNA4's throughput falls when more processes share it."""
_GFX12 = 120000
_PARTITION_SUFFIX = re.compile(r"#(spx|dpx|tpx|qpx|cpx)$")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU that is offered."""

    gpu: Gpu
    id: str
    """Its name in the annotations: the UUID as AMD SMI forms it."""
    slots: tuple[str, ...]
    """The ids kubelet knows: how many containers may share it."""
    healthy: bool = True

    @property
    def mib(self) -> int:
        """VRAM in whole MiB, as registered."""
        return (self.gpu.vram_bytes or 0) // MIB

    @property
    def rocr_uuid(self) -> str | None:
        """What ROCR_VISIBLE_DEVICES calls it; None for a GPU without a unique id."""
        return f"GPU-{self.gpu.unique_id:016x}" if self.gpu.unique_id else None


def shares_of(gpu: Gpu, split_count: int) -> int:
    """Containers that may share one GPU: ``split_count``, or by generation where that is 0."""
    return split_count or (_SHARES_GFX12 if gpu.gfx_version >= _GFX12 else _SHARES)


def devices_of(gpus: Iterable[Gpu], split_count: int) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The devices to offer, sorted by PCI address, and one line for each GPU that is left out."""
    devices: list[Device] = []
    problems: list[str] = []
    gpus = sorted(gpus, key=lambda gpu: (gpu.bdf, gpu.render))
    partitions = Counter(gpu.bdf for gpu in gpus)
    taken: dict[str, str] = {}
    for gpu in gpus:
        name = device_name(gpu)
        why = None
        if partitions[gpu.bdf] > 1:
            why = f"it is split into {partitions[gpu.bdf]} partitions, expected SPX mode"
        elif name in taken:
            why = f"its UUID {name} is also that of {taken[name]}"
        elif gpu.vram_bytes is None or gpu.vram_bytes < MIB:
            why = "the size of its VRAM is unknown"
        elif gpu.cu_count <= 0:
            why = "the count of its CUs is unknown"
        if why is not None:
            problems.append(f"GPU {gpu.bdf} (renderD{gpu.render}): not offered: {why}")
            continue
        taken[name] = gpu.bdf
        slots = tuple(f"{gpu.bdf}#{slot}" for slot in range(shares_of(gpu, split_count)))
        devices.append(Device(gpu, name, slots))
    return tuple(devices), tuple(problems)


def device_name(gpu: Gpu) -> str:
    """The id in the annotations: AMD SMI's UUID, or the PCI address of a GPU that has no serial.

    The annotations' separators are commas, colons and semicolons, so the address goes with dashes.
    """
    uuid = smi_uuid(gpu.unique_id, gpu.device_id)
    return f"amdgpu-{gpu.bdf.replace(':', '-')}" if uuid is None else uuid


def bdf_of_slot(device_id: str) -> str:
    """The GPU a kubelet device id belongs to."""
    return device_id.partition("#")[0]


def find_device(devices: Sequence[Device], name: str) -> Device | None:
    """The device an annotation names, by the id it was registered with or its ROCr UUID."""
    name = _PARTITION_SUFFIX.sub("", name)
    for device in devices:
        if name in {device.id, device.rocr_uuid}:
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
            mode="",
            health=device.healthy,
            pci_bdf=device.gpu.bdf,
            cu_per_wgp=device.gpu.cu_per_wgp,
            compute_queues=device.gpu.compute_queues or 0,
            xgmi_peers=tuple(sorted(offered.intersection(device.gpu.xgmi_peers))),
        )
        for device in devices
    )
