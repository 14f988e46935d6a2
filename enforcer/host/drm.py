# SPDX-License-Identifier: Apache-2.0
"""DRM devices in sysfs, and what a DRM file descriptor says of its client in fdinfo.

Formats: Documentation/gpu/drm-usage-stats.rst, drivers/gpu/drm/amd/amdgpu/amdgpu_fdinfo.c and
amdgpu_vram_mgr.c; Documentation/gpu/amdgpu/driver-misc.rst and thermal.rst for the device files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from enforcer.host.files import (
    FileError,
    FileVanished,
    optional,
    read_int,
    read_line,
    read_text,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_MINOR = re.compile(r"(card|renderD)(\d+)")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MOST_DESCRIPTORS = 4096
_ENGINE = "drm-engine-"
_COUNT = re.compile(r"[0-9]{1,20}")
_UNITS = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True, slots=True)
class DrmDevice:
    """A device that has DRM nodes: a PCI function, or the platform device of a partition."""

    name: str
    """The device's name in sysfs: a PCI address, or ``amdgpu_xcp_N``."""
    path: Path
    card: int | None
    render: int | None
    vendor: int | None = None
    device: int | None = None
    unique_id: int | None = None
    product_name: str | None = None
    numa_node: int | None = None
    vram_total: int | None = None
    memory_told: bool = True
    """False as long as the driver has not listed what memory the device has: it is being bound."""
    compute_partition: str | None = None
    memory_partition: str | None = None
    compute_partitions: tuple[str, ...] = ()
    """What the device can be put in; amdgpu_gfx.c and amdgpu_gmc.c list them with commas."""
    memory_partitions: tuple[str, ...] = ()

    @property
    def bdf(self) -> str | None:
        """The PCI address; None for a partition's platform device."""
        return self.name if _BDF.fullmatch(self.name) else None


@dataclass(frozen=True, slots=True)
class DrmLoad:
    """What the device reports of itself right now; None is not reported."""

    vram_used: int | None
    busy_percent: int | None
    temperature: float | None
    power: float | None


@dataclass(frozen=True, slots=True)
class DrmClient:
    """One client of an amdgpu device, as the fdinfo of any of its descriptors tells. Bytes."""

    bdf: str
    client: int
    resident: int | None
    total: int | None = None
    """Buffers created, evicted ones included; absent before the drm-total- keys."""
    shared: int | None = None
    requested: int | None = None
    evicted: int | None = None
    engines: tuple[tuple[str, int], ...] = ()
    """(engine, nanoseconds at work for it); an engine it never used is left out."""


def devices(sys: Path) -> tuple[list[DrmDevice], list[str]]:
    """Every device with a DRM minor, by name, and a line for each one that cannot be read."""
    minors: dict[Path, dict[str, int]] = {}
    try:
        entries = _entries(sys / "class/drm")
    except FileError as error:
        return [], [f"no DRM device can be seen: {error}"]
    for path in entries:
        match = _MINOR.fullmatch(path.name)
        if match is not None and (path / "device").exists():
            minors.setdefault((path / "device").resolve(), {})[match[1]] = int(match[2])
    found: list[DrmDevice] = []
    problems: list[str] = []
    for device, numbers in sorted(minors.items()):
        try:
            found.append(_device(device, numbers))
        except FileError as error:
            problems.append(f"DRM device {device.name}: {error}")
    return found, problems


def instance(device: Path) -> int | None:
    """A number that is another one each time a driver has bound the device; None while none has.

    It is the inode of the directory of DRM nodes, which the kernel counts up.
    """
    try:
        return (device / "drm").stat().st_ino
    except OSError:
        return None


def load(device: Path) -> DrmLoad:
    """What the device behind a ``device`` directory reports now; a failing sensor is absent.

    Reading some of these asks the GPU's firmware: not on every pass.
    """
    temperature, power = None, None
    try:
        monitors = _entries(device / "hwmon")
    except FileError:
        monitors = []
    for hwmon in monitors:
        if temperature is None:
            temperature = _sensor(hwmon, "temp1_input")
        if power is None:
            power = _sensor(hwmon, "power1_average", "power1_input")
    return DrmLoad(
        vram_used(device),
        _sensor(device, "gpu_busy_percent"),
        None if temperature is None else temperature / 1000,
        None if power is None else power / 1_000_000,
    )


def vram_used(device: Path) -> int | None:
    """Bytes in use in the device's VRAM, the kernel's own among them."""
    return _sensor(device, "mem_info_vram_used")


def parse_fdinfo(text: str, where: str) -> DrmClient | None:
    """The client a DRM descriptor's fdinfo describes; None for a file of another kind.

    Understands both generations of keys: ``drm-memory-vram`` (up to 6.12) and ``drm-total-``,
    ``drm-resident-``, ``drm-shared-`` (later). A number without a unit is bytes.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    if fields.get("drm-driver") != "amdgpu":
        return None
    try:
        bdf, client = fields["drm-pdev"].lower(), int(fields["drm-client-id"])
    except (KeyError, ValueError):
        raise FileError(f"{where}: expected drm-pdev and an integer drm-client-id") from None
    if not _BDF.fullmatch(bdf):
        raise FileError(f"{where}: drm-pdev: expected a PCI address, found {bdf!r}")
    resident = _memory(fields, "drm-resident-vram", where)
    return DrmClient(
        bdf=bdf,
        client=client,
        resident=_memory(fields, "drm-memory-vram", where) if resident is None else resident,
        total=_memory(fields, "drm-total-vram", where),
        shared=_memory(fields, "drm-shared-vram", where),
        requested=_memory(fields, "amd-requested-vram", where),
        evicted=_memory(fields, "amd-evicted-vram", where),
        engines=tuple(_engines(fields, where)),
    )


def clients(proc: Path, pids: Iterable[int]) -> tuple[list[DrmClient], list[str]]:
    """The distinct amdgpu clients of some processes.

    A client is counted once however many descriptors or processes share it: it is told apart by
    (device, client id). Processes that exit meanwhile are left out, and so are descriptors beyond
    the first 4096 of a process.
    """
    seen: dict[tuple[str, int], DrmClient] = {}
    problems: list[str] = []
    for pid in pids:
        for path in _drm_descriptors(proc / str(pid)):
            try:
                client = parse_fdinfo(read_text(path), str(path))
            except FileVanished:
                continue
            except FileError as error:
                problems.append(str(error))
                continue
            if client is not None:
                seen.setdefault((client.bdf, client.client), client)
    return list(seen.values()), problems


def _drm_descriptors(process: Path) -> list[Path]:
    """The fdinfo of the descriptors that can be DRM's.

    Reading a link is a tenth of the work of reading fdinfo, and unlike ``stat`` it cannot hang in a
    file system of the tenant's.
    """
    found = []
    try:
        with os.scandir(process / "fdinfo") as entries:
            for entry in islice(entries, _MOST_DESCRIPTORS):
                try:
                    target = os.readlink(f"{process}/fd/{entry.name}")  # noqa: PTH115 - many
                except OSError:
                    target = "/dri/"
                if "/dri/" in target:
                    found.append(process / "fdinfo" / entry.name)
    except OSError:
        return []
    return sorted(found)


def _device(path: Path, minors: Mapping[str, int]) -> DrmDevice:
    numa = optional(read_int, path / "numa_node")
    name = optional(read_text, path / "product_name")
    return DrmDevice(
        name=path.name.lower(),
        path=path,
        card=minors.get("card"),
        render=minors.get("renderD"),
        vendor=optional(_hexadecimal, path / "vendor"),
        device=optional(_hexadecimal, path / "device"),
        # 0 is what a GPU without a fused id reports.
        unique_id=optional(_hexadecimal, path / "unique_id") or None,
        product_name=(name or "").strip() or None,
        numa_node=None if numa is None or numa < 0 else numa,
        vram_total=optional(read_int, path / "mem_info_vram_total"),
        memory_told=(path / "mem_info_gtt_total").exists(),
        compute_partition=_partition(path / "current_compute_partition"),
        memory_partition=_partition(path / "current_memory_partition"),
        compute_partitions=_listed(path / "available_compute_partition"),
        memory_partitions=_listed(path / "available_memory_partition"),
    )


def _partition(path: Path) -> str | None:
    """Unreadable during a reset (EPERM), which is no reason to lose the GPU."""
    try:
        return read_line(path).lower()
    except FileError:
        return None


def _listed(path: Path) -> tuple[str, ...]:
    names = (_partition(path) or "").split(",")
    return tuple(name for one in names if (name := one.strip()).isalnum())


def _sensor(directory: Path, *names: str) -> int | None:
    for name in names:
        try:
            return read_int(directory / name)
        except FileError:
            continue
    return None


def _memory(fields: Mapping[str, str], key: str, where: str) -> int | None:
    if key not in fields:
        return None
    number, _, unit = fields[key].partition(" ")
    factor = _UNITS.get(unit.strip() or None)
    if factor is None or not _COUNT.fullmatch(number):
        raise FileError(f"{where}: {key}: expected bytes, KiB or MiB, found {fields[key]!r}")
    return int(number) * factor


def _engines(fields: Mapping[str, str], where: str) -> Iterator[tuple[str, int]]:
    for key, value in fields.items():
        if not key.startswith(_ENGINE) or key.startswith(f"{_ENGINE}capacity-"):
            continue
        number, _, unit = value.partition(" ")
        if unit.strip() != "ns" or not _COUNT.fullmatch(number):
            raise FileError(f"{where}: {key}: expected nanoseconds, found {value!r}")
        yield key.removeprefix(_ENGINE), int(number)


def _hexadecimal(path: Path) -> int:
    return read_int(path, 16)


def _entries(directory: Path) -> list[Path]:
    """What is in a directory; nothing where there is none. Raises FileError."""
    try:
        return sorted(directory.iterdir())
    except OSError as error:
        problem = unreadable(directory, error)
        if isinstance(problem, FileVanished):
            return []
        raise problem from error
