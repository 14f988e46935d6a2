# SPDX-License-Identifier: Apache-2.0
"""KFD, the compute side of amdgpu, in sysfs: topology and VRAM per process.

Formats: drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_process.c.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.host.files import FileError, FileVanished, optional, read_int, read_map, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

XGMI = 11
"""``type`` of a link between GPUs of one hive (CRAT: CRAT_IOLINK_TYPE_XGMI)."""

_LOCAL_HEAPS = (1, 2)  # CRAT heap types: frame buffer, public and private


@dataclass(frozen=True, slots=True)
class KfdLink:
    """A direct way from one topology node to another."""

    node_to: int
    type: int


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One node of the topology. ``gpu_id`` 0 is a CPU."""

    node: int
    gpu_id: int
    properties: Mapping[str, int]
    links: tuple[KfdLink, ...] = ()
    local_memory: int | None = None
    """Bytes of the node's own memory banks; None where the kernel lists none."""

    @property
    def pci_domain(self) -> int:
        return self.properties.get("domain", 0)

    @property
    def location(self) -> int:
        """bus << 8 | device << 3 | function, the last or-ed with the partition's number."""
        return self.properties.get("location_id", 0)


def topology(sys: Path) -> tuple[list[KfdNode], list[str]]:
    """Every node of the topology in order, and a line for each one that cannot be read.

    Empty without the driver.
    """
    nodes: list[KfdNode] = []
    problems: list[str] = []
    try:
        directories = _numbered(sys / "class/kfd/kfd/topology/nodes")
    except FileError as error:
        return [], [f"no GPU of KFD's can be seen: {error}"]
    for directory in directories:
        try:
            nodes.append(_node(directory))
        except FileError as error:
            problems.append(f"KFD node {directory.name}: {error}")
    return nodes, problems


def process_vram(sys: Path, pid: int) -> dict[int, int]:
    """Bytes of VRAM a process asked KFD for, by ``gpu_id``; none for one that does not use KFD.

    Pids are those of the initial namespace. Evicted buffers are included, and so is what a process
    holds in further KFD contexts (7.x). A process that exits while being read has none. Raises
    FileError for a count that is no number.
    """
    vram: dict[int, int] = {}
    pending = [sys / "class/kfd/kfd/proc" / str(pid)]
    try:
        while pending:
            directory = pending.pop()
            for name in os.listdir(directory):  # noqa: PTH208 - on every process, often
                kind, _, number = name.partition("_")
                if kind == "context" and number.isdecimal():
                    pending.append(directory / name)
                elif kind == "vram" and number.isdecimal():
                    vram[int(number)] = vram.get(int(number), 0) + read_int(directory / name)
    except (FileVanished, FileNotFoundError):
        return {}
    except OSError as error:
        raise FileError(f"{directory}: cannot list: {error.strerror}") from error
    return vram


@dataclass(frozen=True, slots=True)
class KfdActivity:
    """What one process does on one GPU, by KFD's count; None is a file this kernel has not."""

    cu_occupancy: int | None = None
    evicted_ms: int | None = None
    sdma_us: int | None = None
    queues: int = 0

    def __add__(self, other: KfdActivity) -> KfdActivity:
        return KfdActivity(
            _sum(self.cu_occupancy, other.cu_occupancy),
            _sum(self.evicted_ms, other.evicted_ms),
            _sum(self.sdma_us, other.sdma_us),
            self.queues + other.queues,
        )


def process_activity(sys: Path, pid: int) -> dict[int, KfdActivity]:
    """What a process does on each GPU, by ``gpu_id``; further contexts (7.x) are added up.

    Reading the occupancy asks the GPU's registers: not on every pass. A process that exits while
    being read does nothing. Raises FileError for a count that is no number.
    """
    found: dict[int, KfdActivity] = {}
    pending = [sys / "class/kfd/kfd/proc" / str(pid)]
    try:
        while pending:
            directory = pending.pop()
            for name in os.listdir(directory):  # noqa: PTH208 - on every process, often
                kind, _, number = name.partition("_")
                path = directory / name
                if kind == "context" and number.isdecimal():
                    pending.append(path)
                elif kind == "sdma" and number.isdecimal():
                    _add(found, int(number), KfdActivity(sdma_us=optional(read_int, path)))
                elif kind == "stats" and number.isdecimal():
                    evicted = optional(read_int, path / "evicted_ms")
                    occupancy = optional(read_int, path / "cu_occupancy")
                    _add(found, int(number), KfdActivity(occupancy, evicted))
            for queue in _numbered(directory / "queues"):
                if (gpu_id := optional(read_int, queue / "gpuid")) is not None:
                    _add(found, gpu_id, KfdActivity(queues=1))
    except (FileVanished, FileNotFoundError):
        return {}
    except OSError as error:
        raise FileError(f"{directory}: cannot list: {error.strerror}") from error
    return found


def _add(found: dict[int, KfdActivity], gpu_id: int, more: KfdActivity) -> None:
    found[gpu_id] = found.get(gpu_id, KfdActivity()) + more


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _node(directory: Path) -> KfdNode:
    gpu_id = read_int(directory / "gpu_id")
    properties = read_map(directory / "properties")
    links = [
        KfdLink(link["node_to"], link["type"])
        for kind in ("io_links", "p2p_links")
        for path in _numbered(directory / kind)
        if (link := read_map(path / "properties")).keys() >= {"node_to", "type"}
    ]
    return KfdNode(int(directory.name), gpu_id, properties, tuple(links), _local_memory(directory))


def _local_memory(directory: Path) -> int | None:
    banks = [
        bank
        for path in _numbered(directory / "mem_banks")
        if (bank := optional(read_map, path / "properties")) is not None
    ]
    local = [bank for bank in banks if bank.get("heap_type") in _LOCAL_HEAPS]
    return sum(bank.get("size_in_bytes", 0) for bank in local) if local else None


def _numbered(directory: Path) -> list[Path]:
    """The subdirectories named by a number, in numeric order; none where there is no directory.

    Raises FileError for one that cannot be listed.
    """
    try:
        names = [path for path in directory.iterdir() if path.name.isdecimal()]
    except OSError as error:
        problem = unreadable(directory, error)
        if isinstance(problem, FileVanished):
            return []
        raise problem from error
    return sorted(names, key=lambda path: int(path.name))
