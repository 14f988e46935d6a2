# SPDX-License-Identifier: Apache-2.0
"""The strings a HAMi scheduler and this plugin exchange through annotations. Pure.

Every error is an ``AnnotationError`` that names the field, what was expected and what was found.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

TO_ALLOCATE = "hami.io/amd-devices-to-allocate"
ALLOCATED = "hami.io/amd-devices-allocated"
CU_ALLOCATED = "hami.io/amd-cu-allocated"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
VGPU_NODE = "hami.io/vgpu-node"
NODE_REGISTER = "hami.io/node-amd-register"
NODE_LOCK = "hami.io/mutex.lock"

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"

_T = TypeVar("_T")
_INT32 = range(-(1 << 31), 1 << 31)
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_CU = re.compile(r"[0-9]{1,5}", re.ASCII)
_LONGEST = 80
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class AnnotationError(ValueError):
    """An annotation that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """One device of one container's entry: what the scheduler booked for it."""

    id: str
    type: str
    mib: int
    """VRAM in MiB."""
    cus: int
    """Compute units, a count."""


Entry = tuple[DeviceShare, ...]
"""What one container gets; empty for a container without a GPU."""


def decode_devices(text: str) -> tuple[Entry, ...]:
    """Decode ``hami.io/amd-devices-to-allocate``: one entry per container, empty ones kept.

    The grammar is ``*(*(id "," type "," MiB "," CUs ":") ";")``; fields after the fourth are
    ignored. A piece that is no device refuses the whole value: half of it would be a guess.
    """
    return tuple(
        _decode_entry(number, piece) for number, piece in enumerate(_entry_texts(text), start=1)
    )


def encode_devices(entries: Iterable[Entry]) -> str:
    """The inverse of ``decode_devices``; raises AnnotationError for text that would break it."""
    return "".join(f"{''.join(map(_encode_device, entry))};" for entry in entries)


def blank_entries(text: str, count: int) -> str:
    """``text`` with its first ``count`` non-empty entries emptied, every other byte as it was."""
    pieces = text.split(";")
    for position, piece in enumerate(pieces):
        if count and piece.strip(":"):
            pieces[position] = ""
            count -= 1
    return ";".join(pieces)


def _entry_texts(text: str) -> list[str]:
    pieces = text.split(";")
    if not pieces[-1]:
        pieces.pop()
    return pieces


def _decode_entry(number: int, text: str) -> Entry:
    return tuple(_decode_device(number, piece) for piece in text.split(":") if piece)


def _decode_device(number: int, text: str) -> DeviceShare:
    fields = text.split(",")
    if len(fields) < 4:
        raise AnnotationError(
            f"entry {number}: expected id,type,MiB,CUs, found {len(fields)} fields in {_cut(text)}"
        )
    if not fields[0]:
        raise AnnotationError(f"entry {number}: expected a device id, found none in {_cut(text)}")
    return DeviceShare(
        id=fields[0],
        type=fields[1],
        mib=_decode_int32(number, "memory in MiB", fields[2]),
        cus=_decode_int32(number, "count of CUs", fields[3]),
    )


def _decode_int32(number: int, what: str, text: str) -> int:
    if _INTEGER.fullmatch(text) is None or int(text) not in _INT32:
        raise AnnotationError(f"entry {number}: expected the {what}, found {_cut(text)}")
    return int(text)


def _cut(text: str) -> str:
    """As it is shown: an annotation can be 256 KiB long, an answer to kubelet 8."""
    return f"{text[:_LONGEST]!r}{'...' * (len(text) > _LONGEST)}"


def _encode_device(device: DeviceShare) -> str:
    for name, value in (("id", device.id), ("type", device.type)):
        if re.search("[,:;]", value):
            raise AnnotationError(f"device {name} {value!r}: must not contain ',', ':' or ';'")
    if not device.id:
        raise AnnotationError("device id: expected text, found none")
    for name, number in (("memory", device.mib), ("CUs", device.cus)):
        if number not in _INT32:
            raise AnnotationError(f"device {name} {number}: must fit 32 bits")
    return f"{device.id},{device.type},{device.mib},{device.cus}:"


@dataclass(frozen=True, slots=True)
class RegisteredGpu:
    """One element of ``hami.io/node-amd-register``: a GPU as the scheduler shall see it."""

    id: str
    index: int
    """DRM primary minor."""
    count: int
    """How many containers may share it."""
    devmem: int
    """VRAM in MiB."""
    devcore: int
    """Compute units."""
    type: str
    numa: int
    mode: str
    health: bool
    pci_bdf: str
    cu_per_wgp: int
    compute_queues: int = 0
    xgmi_peers: tuple[str, ...] = ()
    partition_profile: str = ""
    """``<compute>_<memory>`` of a partition."""


def encode_register(gpus: Iterable[RegisteredGpu]) -> str:
    """``hami.io/node-amd-register`` as a Go encoder with ``omitempty`` writes it.

    Zero, false and empty members are absent (card 0 has no ``index``, an unhealthy GPU no
    ``health``); ``custominfo`` is a Go map, so its keys are sorted.
    """
    return json.dumps([_register_json(gpu) for gpu in gpus], separators=(",", ":"))


def _register_json(gpu: RegisteredGpu) -> dict[str, object]:
    custom: dict[str, object] = {}
    if gpu.compute_queues:
        custom["computeQueues"] = gpu.compute_queues
    custom["cuPerWGP"] = gpu.cu_per_wgp
    if gpu.partition_profile:
        custom["partitionProfile"] = gpu.partition_profile
    custom["pciBDF"] = gpu.pci_bdf
    if gpu.xgmi_peers:
        custom["xgmiPeers"] = sorted(gpu.xgmi_peers)
    members: dict[str, object] = {
        "id": gpu.id,
        "index": gpu.index,
        "count": gpu.count,
        "devmem": gpu.devmem,
        "devcore": gpu.devcore,
        "type": gpu.type,
        "numa": gpu.numa,
        "mode": gpu.mode,
        "health": gpu.health,
        "devicevendor": "amd",
        "custominfo": custom,
    }
    return {name: value for name, value in members.items() if value}


def decode_register(text: str) -> tuple[RegisteredGpu, ...]:
    """What ``encode_register`` wrote, read as HAMi reads it: a missing member is its zero."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{NODE_REGISTER}: expected JSON, found {error}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise AnnotationError(f"{NODE_REGISTER}: expected an array of objects, found {text[:80]!r}")
    return tuple(_register_gpu(item) for item in items)


def _register_gpu(item: Mapping[str, object]) -> RegisteredGpu:
    custom = item.get("custominfo", {})
    if not isinstance(custom, dict):
        raise AnnotationError(
            f"{NODE_REGISTER}: custominfo: expected an object, found {type(custom).__name__}"
        )
    return RegisteredGpu(
        id=_member(item, "id", ""),
        index=_member(item, "index", 0),
        count=_member(item, "count", 0),
        devmem=_member(item, "devmem", 0),
        devcore=_member(item, "devcore", 0),
        type=_member(item, "type", ""),
        numa=_member(item, "numa", 0),
        mode=_member(item, "mode", ""),
        health=_member(item, "health", False),
        pci_bdf=_member(custom, "pciBDF", ""),
        cu_per_wgp=_member(custom, "cuPerWGP", 1),
        compute_queues=_member(custom, "computeQueues", 0),
        xgmi_peers=tuple(str(peer) for peer in _member(custom, "xgmiPeers", list[object]())),
        partition_profile=_member(custom, "partitionProfile", ""),
    )


def _member(item: Mapping[str, object], name: str, zero: _T) -> _T:
    value = item.get(name, zero)
    if type(value) is not type(zero):
        raise AnnotationError(
            f"{NODE_REGISTER}: {name}: expected {type(zero).__name__}, found {type(value).__name__}"
        )
    return value


def encode_cus(cus: Collection[int]) -> str:
    """A CU id list as ``HSA_CU_MASK`` and ``hami.io/amd-cu-allocated`` spell it: ``0-3,8``.

    Raises ValueError for no CU at all: the empty text would read as "every CU" elsewhere.
    """
    if not cus:
        raise ValueError("CU list: expected at least one CU, found none")
    runs: list[list[int]] = []
    for cu in sorted(set(cus)):
        if runs and cu == runs[-1][1] + 1:
            runs[-1][1] = cu
        else:
            runs.append([cu, cu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def decode_cus(text: str, count: int) -> frozenset[int]:
    """The CUs of an id list on a GPU with ``count`` of them.

    Raises AnnotationError for anything but ascending ranges within ``0..count - 1``.
    """
    cus: set[int] = set()
    for part in text.replace(" ", "").split(","):
        bounds = part.split("-")
        if len(bounds) > 2 or not all(map(_CU.fullmatch, bounds)):
            raise AnnotationError(
                f"CU list {_cut(text)}: expected a number or a-b, found {_cut(part)}"
            )
        first, last = int(bounds[0]), int(bounds[-1])
        if first > last or last >= count:
            raise AnnotationError(f"CU list {_cut(text)}: {part} is not within 0-{count - 1}")
        cus.update(range(first, last + 1))
    return frozenset(cus)


def encode_cu_allocated(cus: Mapping[str, str]) -> str:
    """``hami.io/amd-cu-allocated``: device id -> CU id list, compact and sorted as Go writes it."""
    return json.dumps(dict(sorted(cus.items())), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class NodeLock:
    """``hami.io/mutex.lock``: which pod's GPUs are being allocated on the node."""

    time: datetime
    owner: tuple[str, str] | None
    """(namespace, name); None where an old scheduler wrote no owner."""

    def names(self, namespace: str, pod: str) -> bool:
        """True if the lock was taken for this pod."""
        return self.owner == (namespace, pod)


def decode_lock(text: str) -> NodeLock:
    """Decode ``<RFC 3339 time>[,<namespace>,<pod>]``; the time may have nanoseconds."""
    fields = text.split(",")
    if len(fields) not in {1, 3} or not all(fields):
        raise AnnotationError(
            f"{NODE_LOCK}: expected a time, or time,namespace,pod; found {_cut(text)}"
        )
    match = _TIME.fullmatch(fields[0])
    try:
        if match is None:
            raise ValueError
        fraction = (match[2] or "")[:7]
        time = datetime.fromisoformat(f"{match[1]}{fraction}{match[3]}".upper())
    except ValueError:
        raise AnnotationError(
            f"{NODE_LOCK}: expected an RFC 3339 time, found {_cut(fields[0])}"
        ) from None
    return NodeLock(time, (fields[1], fields[2]) if len(fields) == 3 else None)


def encode_lock(lock: NodeLock) -> str:
    """The text of a lock, as a scheduler writes it."""
    return ",".join((lock.time.isoformat(), *(lock.owner or ())))
