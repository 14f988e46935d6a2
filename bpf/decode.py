# SPDX-License-Identifier: Apache-2.0
"""The layouts of the pinned maps (schema 1, ``include/maps.h``) and what they mean. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA: Final = 1
"""Names the directory of the pins; grows with any change to a layout below."""

NO_LIMIT: Final = (1 << 64) - 1
MAX_CGROUP_DEPTH: Final = 16
"""The programs look at this many ancestors of a caller, from the root down."""

MAX_CUS: Final = 1024
"""Bits of a CU mask, beyond which the driver drops them."""

U32: Final = Struct("=I")
U64: Final = Struct("=Q")
S64: Final = Struct("=q")
ACTING: Final = Struct("=II")
KEY: Final = Struct("=QQ")
LIMIT: Final = Struct("=QII")
USAGE: Final = Struct("=qqqqqQQQ")
SVM_USAGE: Final = Struct("=qQ")
QUEUE: Final = Struct("=QQQQQIIII")
CU_MASK: Final = Struct("=34I")
COMPUTE: Final = Struct("=qqQQQ")
HOLDING: Final = Struct("=QQQQQIIQII")
EVENT: Final = Struct("=QQQQQQIIII16s")
SELF_TEST: Final = Struct("=QII")

HOLDING_UNFOLLOWED: Final = 1
TENANT_OVERRAN: Final = 2
"""In a value of the map ``tenants``."""

# Indices of the map ``policy``; what is 0 there is the default of ``Policy``.
POLICY_SPARE_SWITCHED: Final = 0
POLICY_REFUSE_IMPORTS: Final = 1
POLICY_REFUSE_PASSED: Final = 2


class Counter(IntEnum):
    """Indices of the map ``counters``; those in ``REASONS`` are reasons of an event."""

    REFUSED_LIMIT = 0
    REFUSED_UNKNOWN_GPU = 1
    REFUSED_NO_SHARE = 2
    REFUSED_ARGUMENTS = 3
    REFUSED_CONTENDED = 4
    REFUSED_USAGE_FULL = 5
    REFUSED_BUFFERS_FULL = 6
    REFUSED_TASK_STORAGE = 7
    REFUSED_NO_LEDGER = 8
    REFUSED_PLACEMENT = 9
    REFUSED_DEPTH = 10
    REFUSED_IMPORT = 11
    REFUSED_PASSED = 12
    SWITCHED_KILLED = 13
    SWITCHED_SPARED = 14
    SETTLED_UP = 15
    SETTLED_DOWN = 16
    UNRESERVED = 17
    GIVEN_BACK = 18
    UNRECORDED_BUFFER = 19
    UNRECORDED_RESOURCE = 20
    STALE_HOLDING = 21
    EVENTS_DROPPED = 22
    SELF_TESTS = 23
    ENTERED = 24
    NOT_ENTERED = 25
    IMPORTED = 26
    UNRECORDED_CLIENT = 27
    UNFOLLOWED = 28
    FORGOTTEN = 29
    SVM_FAULTED = 30
    SVM_UNOWNED = 31
    REFUSED_CU_MASK = 32
    REFUSED_UNMASKED = 33
    CU_MASK_WIDER = 34
    UNRECORDED_QUEUE = 35
    IMPORTED_BY_NAME = 36
    OVERRAN = 37
    WAIVED = 38
    REFUSED_QUEUES_FULL = 39
    UNRECORDED_PAGE_TABLE = 40


REASONS: Final = {
    Counter.REFUSED_LIMIT: "over its share",
    Counter.REFUSED_UNKNOWN_GPU: "a GPU the enforcer does not know",
    Counter.REFUSED_NO_SHARE: "no share of this GPU",
    Counter.REFUSED_ARGUMENTS: "arguments not readable in memory",
    Counter.REFUSED_CONTENDED: "too many callers at once",
    Counter.REFUSED_USAGE_FULL: "map usage is full",
    Counter.REFUSED_BUFFERS_FULL: "too many buffers",
    Counter.REFUSED_TASK_STORAGE: "no memory for the reservation",
    Counter.REFUSED_NO_LEDGER: "no ledger attached",
    Counter.REFUSED_PLACEMENT: "moving a buffer into VRAM",
    Counter.REFUSED_DEPTH: "too many limited cgroups above the caller",
    Counter.REFUSED_IMPORT: "import of another container's buffer",
    Counter.REFUSED_PASSED: "a buffer or GPU file passed from another container",
    Counter.SWITCHED_KILLED: "arguments switched under the driver's eyes, killed",
    Counter.SWITCHED_SPARED: "arguments switched under the driver's eyes, reported only",
    Counter.REFUSED_CU_MASK: "a CU mask beyond its slice",
    Counter.REFUSED_UNMASKED: "another queue beside one without a CU mask",
    Counter.REFUSED_QUEUES_FULL: "too many compute queues on the node",
    Counter.UNFOLLOWED: "the kernel passed over the ledger, it stays charged",
    Counter.OVERRAN: "made without being let pass, above its share",
}
"""Why a call was refused, its process killed, or what else is told of it, for people."""


_SWITCHED: Final = frozenset({Counter.SWITCHED_KILLED, Counter.SWITCHED_SPARED})
_LIMITED: Final = frozenset({Counter.REFUSED_LIMIT, Counter.OVERRAN})


@dataclass(frozen=True, slots=True)
class LedgerUsage:
    """What one cgroup holds on one GPU, in bytes."""

    requested: int
    """Live buffers plus reservations; what the limit is held against."""
    reserved: int = 0
    """Of these, not yet a buffer: 0 while no allocation is on its way."""
    resident: int = 0
    """Of its buffers, in VRAM now."""
    page_tables: int = 0
    """The driver's own buffers made for it, page tables before all, in VRAM now."""
    buffers: int = 0
    """Number of live buffers, the driver's own included."""
    peak: int = 0
    refusals: int = 0
    refused_bytes: int = 0
    """Size of the last refused call."""
    svm: int = 0
    """Of ``requested``, shared virtual memory that was given a place in VRAM."""
    svm_faulted: int = 0
    """All that page faults of the GPU ever moved there, which nothing can refuse."""
    queues: int = 0
    """Live compute queues; without type information of the driver they are not known."""
    queues_masked: int = 0
    """Of these, with a CU mask within the slice."""
    masks_wider: int = 0
    """CU masks that went beyond the slice, let pass or not."""
    masks_refused: int = 0
    """Calls refused for a wider mask, or for a further queue beside one without a mask."""

    @property
    def empty(self) -> bool:
        """True if nothing is held any more; only then may the entry go."""
        held = self.requested, self.reserved, self.resident, self.page_tables, self.buffers
        return not any((*held, self.queues))


@dataclass(frozen=True, slots=True)
class Holding:
    """A buffer (or TTM resource) on the ledger and the cgroups charged for it."""

    gpu: int
    cgroups: tuple[int, ...]
    size: int
    kernel: bool
    """The driver's own (page tables), not one the tenant asked for."""
    followed: bool = True
    """False: a call that succeeded, of whose buffer nothing is known; its end will not be seen."""


@dataclass(frozen=True, slots=True)
class Event:
    """A call that was refused, or for which its process was killed or reported. Sizes in bytes."""

    time: float
    """Seconds on CLOCK_MONOTONIC."""
    pid: int
    """Process id in the initial PID namespace."""
    comm: str
    cgroup: int
    """The cgroup whose limit was in the way, or the caller's innermost limited one."""
    gpu: int
    """The GPU's key; 0 if it is unknown."""
    asked: int
    used: int
    """With switched arguments: what the gate had let pass."""
    limit: int | None
    """None: no limit was compared, see the reason."""
    reason: Counter
    nr: int
    """Number of the ioctl."""

    @property
    def refused(self) -> bool:
        """False: the call went on, see the reason."""
        return self.reason.name.startswith("REFUSED")

    def __str__(self) -> str:
        verb = "refused" if self.refused else "took"
        size = f" {self.asked} bytes" if self.asked else ""
        what = f"{self.comm}[{self.pid}] {verb}{size}: {REASONS[self.reason]}"
        if self.reason in _SWITCHED:
            return f"{what} ({self.used} were let pass)"
        return what if self.limit is None else f"{what} ({self.used} of {self.limit} used)"


@dataclass(frozen=True, slots=True)
class CuMask:
    """The compute units of a container's slice, as its queues may be masked to."""

    cus: int
    """Bit n: the CU of that number, as KFD and ``HSA_CU_MASK`` count them."""
    enforced: bool = False
    """Refuse a wider mask, and a further queue beside one that was left unmasked; False: count."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the programs do about a tenant's call that they cannot simply measure."""

    kill_switchers: bool = True
    """Kill a process that had more made than it had asked for; False: report it only."""
    refuse_imports: bool = False
    """Refuse to import another container's dma-buf, also a sibling's of the same pod."""
    refuse_passed: bool = False
    """Refuse another container's dma-buf and opened DRM files that arrive over a socket."""


def pack_key(cgroup: int, gpu: int) -> bytes:
    """Key of ``limits`` and ``usage``."""
    return KEY.pack(cgroup, gpu)


def unpack_key(data: bytes) -> tuple[int, int]:
    """(cgroup, gpu)."""
    cgroup, gpu = KEY.unpack(data)
    return cgroup, gpu


def pack_limit(size: int | None) -> bytes:
    """``None`` is accounted without a limit. Raises ValueError for what is no number of bytes."""
    if size is not None and not 0 <= size < NO_LIMIT:
        raise ValueError(f"limit of {size} bytes: expected 0 to {NO_LIMIT - 1}, or None")
    return LIMIT.pack(NO_LIMIT if size is None else size, 0, 0)


def unpack_limit(data: bytes) -> int | None:
    """Bytes, or None for no limit."""
    size: int = LIMIT.unpack(data)[0]
    return None if size == NO_LIMIT else size


def unpack_usage(
    data: bytes, svm: bytes | None = None, compute: bytes | None = None
) -> LedgerUsage:
    """A value of ``usage``, and those of ``svm`` and ``compute`` for the same key, if any."""
    asked = svm or bytes(SVM_USAGE.size)
    queues, masked, _since, wider, refused = COMPUTE.unpack(compute or bytes(COMPUTE.size))
    values = (*USAGE.unpack(data), *SVM_USAGE.unpack(asked), queues, masked, wider, refused)
    return LedgerUsage(*values)


def pack_cu_mask(mask: CuMask) -> bytes:
    """A value of ``cu_masks``. Raises ValueError for CUs no driver's mask has a bit for."""
    if not 0 <= mask.cus < 1 << MAX_CUS:
        raise ValueError(
            f"expected a mask of at most {MAX_CUS} CUs, found {mask.cus.bit_length()} bits"
        )
    words = (mask.cus >> shift & 0xFFFFFFFF for shift in range(0, MAX_CUS, 32))
    return CU_MASK.pack(*words, int(mask.enforced), 0)


def unpack_cu_mask(data: bytes) -> CuMask:
    """The reverse of ``pack_cu_mask``."""
    *words, enforced, _pad = CU_MASK.unpack(data)
    cus = sum(word << 32 * index for index, word in enumerate(words))
    return CuMask(cus, bool(enforced))


def unpack_holding(data: bytes) -> Holding:
    """A value of ``buffers`` or ``resources``."""
    gpu, *cgroups, count, _pad, size, kind, flags = HOLDING.unpack(data)
    return Holding(gpu, tuple(cgroups[:count]), size, kind == 1, not flags & HOLDING_UNFOLLOWED)


def unpack_event(data: bytes) -> Event:
    """A record of ``events``. Raises ValueError for a record of another size or reason."""
    if len(data) < EVENT.size:
        raise ValueError(f"event of {len(data)} bytes: expected {EVENT.size}")
    time, cgroup, gpu, asked, used, limit, pid, reason, nr, _pad, comm = EVENT.unpack_from(data)
    if reason not in REASONS:
        raise ValueError(f"event of reason {reason}: expected one of {sorted(map(int, REASONS))}")
    return Event(
        time=time / 1e9,
        pid=pid,
        comm=comm.split(b"\0", 1)[0].decode(errors="replace"),
        cgroup=cgroup,
        gpu=gpu,
        asked=asked,
        used=used,
        limit=limit if reason in _LIMITED and limit != NO_LIMIT else None,
        reason=Counter(reason),
        nr=nr,
    )


def unpack_events(records: Iterable[bytes]) -> tuple[list[Event], list[str]]:
    """What ``unpack_event`` can read of ``records``, and a line for each that it cannot.

    After a downgrade there can be some that only the later version's programs tell: they must not
    take the others with them.
    """
    events, problems = [], []
    for record in records:
        try:
            events.append(unpack_event(record))
        except ValueError as error:
            problems.append(str(error))
    return events, problems


def unpack_acting(data: bytes) -> tuple[int, int]:
    """(oldest, newest) generation that acts; (0, 0) is none."""
    oldest, newest = ACTING.unpack(data)
    return oldest, newest


def pack_policy(wanted: Policy) -> dict[int, int]:
    """Index in the map ``policy`` -> its word."""
    return {
        POLICY_SPARE_SWITCHED: int(not wanted.kill_switchers),
        POLICY_REFUSE_IMPORTS: int(wanted.refuse_imports),
        POLICY_REFUSE_PASSED: int(wanted.refuse_passed),
    }


def unpack_policy(words: dict[int, int]) -> Policy:
    """The reverse of ``pack_policy``."""
    return Policy(
        kill_switchers=not words[POLICY_SPARE_SWITCHED],
        refuse_imports=bool(words[POLICY_REFUSE_IMPORTS]),
        refuse_passed=bool(words[POLICY_REFUSE_PASSED]),
    )
