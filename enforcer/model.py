# SPDX-License-Identifier: Apache-2.0
"""The words every part of Ringfence shares: plain, frozen facts without behaviour or I/O.

Sizes are bytes, GPUs are named by their PCI address (``dddd:bb:dd.f``, lower case), an unknown
value is ``None`` and never 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Self

MIB = 1 << 20
GIB = 1 << 30

_BDF = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


@lru_cache(maxsize=1024)  # asked thousands of times a pass, of a few GPUs
def pci_key(bdf: str) -> int:
    """Pack a PCI address into the integer that names a GPU in the BPF maps.

    The layout is the kernel's own (``domain << 16 | bus << 8 | device << 3 | function``), so a BPF
    program can build it from ``struct pci_dev``.

    Raises ValueError for anything but ``dddd:bb:dd.f`` in lower case.
    """
    match = _BDF.fullmatch(bdf)
    if match is None or int(match[3], 16) > 0x1F:
        raise ValueError(f"PCI address {bdf!r}: expected dddd:bb:dd.f in lower-case hexadecimal")
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return domain << 16 | bus << 8 | device << 3 | function


def pci_bdf(key: int) -> str:
    """The PCI address that ``pci_key`` packed."""
    return f"{key >> 16:04x}:{key >> 8 & 0xFF:02x}:{key >> 3 & 0x1F:02x}.{key & 7}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the node, as KFD topology, DRM and PCI sysfs describe it."""

    bdf: str
    kfd_id: int
    """``gpu_id`` of the KFD topology node: the number KFD's ioctls carry."""
    card: int | None
    """DRM primary minor N of ``/dev/dri/cardN``."""
    render: int
    """DRM render minor M of ``/dev/dri/renderDM``."""
    name: str
    vram_bytes: int | None
    cu_count: int
    gfx_version: int
    """KFD ``gfx_target_version``: major * 10000 + minor * 100 + stepping."""
    device_id: int | None = None
    unique_id: int | None = None
    numa_node: int | None = None
    compute_queues: int | None = None
    xcc_count: int | None = None
    xgmi_peers: tuple[str, ...] = ()
    compute_partition: str | None = None
    memory_partition: str | None = None
    partition: int | None = None
    """Number of this compute partition; None where the device is one GPU. Stable over reboots."""
    compute_partitions: tuple[str, ...] = ()
    """The compute partition modes it can be put in; empty where there is none, or none is told."""
    memory_partitions: tuple[str, ...] = ()
    """The memory partition modes, likewise."""
    system_memory: bool = False
    """What KFD gives out as its VRAM is the machine's memory, which no layer of the kernel holds:
    an APU."""

    @property
    def cu_per_wgp(self) -> int:
        """CUs that share a work-group processor and can only be masked together: 2 from gfx10."""
        return 2 if self.gfx_version >= 100000 else 1


class ContainerKind(StrEnum):
    """What kubelet runs a container as; the pod's limit is booked by kind."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Share:
    """What one container gets of one GPU."""

    bdf: str
    vram_bytes: int | None
    """The promise, to the byte; None is the whole GPU: accounted, never limited."""
    cus: str | None = None
    """CU id list as in ``HSA_CU_MASK`` (``0-3,8``); None is every CU."""
    partition: int | None = None
    """Number of the compute partition that is shared; None is the whole device."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One container's shares, as the device plugin gave them out at Allocate."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    kind: ContainerKind
    device_ids: tuple[str, ...]
    """The kubelet device ids this slice answers for: all PreStartContainer will name."""
    shares: tuple[Share, ...]
    created: str
    """RFC 3339 time of the Allocate, UTC."""
    oversubscribe: bool = False
    """True where the shares of a GPU may add up to more VRAM than it has."""
    hook: bool | None = None
    """Whether the container was given the hook; None is not known. kubelet gives it the same at
    every start."""
    priority: int | None = None
    """0: its queues go first, 1: last; None leaves them as the process makes them."""

    @property
    def key(self) -> tuple[str, str]:
        """What is unique on the node: pod UID and container name."""
        return self.pod_uid, self.container


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """The cgroup of a pod."""

    uid: str
    path: str
    """Relative to the root of the cgroup2 mount, without a leading slash."""
    cgroup_id: int
    """Inode of the directory: what ``bpf_get_current_cgroup_id`` returns."""


@dataclass(frozen=True, slots=True)
class Container:
    """A running container: its cgroup, and its name once the runtime's record tells it."""

    id: str
    pod: PodCgroup
    path: str
    cgroup_id: int
    name: str | None = None
    sandbox: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """The most VRAM a cgroup may hold on one GPU."""

    path: str
    cgroup_id: int
    bdf: str
    vram_bytes: int | None
    """The slice; None is accounted without a limit."""
    slices: int = 1
    """How many containers' slices may be in use at once below this limit."""

    @property
    def key(self) -> tuple[int, int]:
        """The key of this limit in the BPF maps: (cgroup id, GPU)."""
        return self.cgroup_id, pci_key(self.bdf)


class Layer(StrEnum):
    """The independent means by which a slice is held."""

    GATE = "gate"
    DMEM = "dmem"
    HOOK = "hook"


class Why(StrEnum):
    """Every reason for which a layer is off, as a label value stable enough to alert on."""

    SWITCHED_OFF = "switched off"
    NOT_LOADED = "gate not loaded"
    NOT_POSSIBLE = "kernel without BTF or too old for the gate"
    NOT_PROVEN = "gate self-test not refused"
    NO_LEDGER = "no ledger for this driver"
    MAP_FULL = "gate map full"
    NO_CGROUP2 = "no cgroup2 mount"
    NO_REGION = "no dmem region for this GPU"
    UNREAD = "GPUs or dmem regions cannot be read"
    NO_CONTROLLER = "dmem not enabled for the cgroup"
    BUSY = "dmem refused by processes in a parent cgroup"
    NOT_TAKEN = "dmem.max unchanged by a successful write"
    DENIED = "permission denied"
    VANISHED = "cgroup vanished"
    NOT_IN_PLACE = "limit not read back"
    REFUSED = "refused by the kernel"
    TOO_DEEP = "cgroup too deep for the gate"
    SYSTEM_MEMORY = "memory of this GPU is system memory"
    NO_HOOK = "container has no hook"
    HOOK_UNKNOWN = "not known whether the container has the hook"
    HOOK_PASSED = "more in use than the hook lets pass"


@dataclass(frozen=True, slots=True)
class LayerState:
    """Whether a layer holds, in the words used everywhere: ``on`` or ``off: <why>``."""

    layer: Layer
    reason: str | None = None
    """None: on. Otherwise why it is off."""

    @property
    def on(self) -> bool:
        return self.reason is None

    def __str__(self) -> str:
        return "on" if self.reason is None else f"off: {self.reason}"


@dataclass(frozen=True, slots=True)
class Protection:
    """Which layers hold one cgroup on one GPU right now, each proven by reading back."""

    path: str
    bdf: str
    layers: tuple[LayerState, ...]

    @property
    def held(self) -> bool:
        """True if a layer the tenant cannot reach, the gate or dmem, holds the limit."""
        return any(state.on and state.layer is not Layer.HOOK for state in self.layers)


class LedgerSource(StrEnum):
    """What the accounting of a node rests on, as a label value."""

    BO = "bo"
    """The BPF ledger, buffer by buffer, by the driver's type information."""
    BO_PROBES = "bo-probes"
    """The BPF ledger, buffer by buffer, by kprobes on a driver without."""
    SYSFS = "sysfs"
    """No ledger: what KFD and fdinfo tell of the processes that are there."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class HostSupport:
    """What this node can hold, found by trying."""

    gate: LayerState
    dmem: LayerState
    ledger: str
    """A ``LedgerSource``, or what an enforcer of another version calls its own."""
    dmem_regions: tuple[tuple[str, str], ...] = ()
    """(BDF, region name as the kernel spells it)."""

    @property
    def kernel_can_hold_nothing(self) -> bool:
        """True only where no kernel layer can ever hold, or the operator wants none.

        A layer that is off for any other reason may have failed this once, or have been left out
        for the sake of one that fails: then nothing else makes up for it.
        """
        return (self.gate.reason, self.dmem.reason) in (
            (Why.NOT_POSSIBLE, Why.NO_REGION),
            (Why.SWITCHED_OFF, Why.SWITCHED_OFF),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """VRAM of one cgroup on one GPU, from every source side by side; None is unknown."""

    requested: int | None = None
    """Sum of the live buffers it asked for (the ledger)."""
    resident: int | None = None
    """Of those, in VRAM now (the ledger)."""
    page_tables: int | None = None
    peak: int | None = None
    refusals: int | None = None
    dmem_current: int | None = None
    hook: int | None = None
    """What its processes say they hold, in the hook's ledger: the tenant's to write."""
    kfd: int | None = None
    """Sum over its processes of what they asked KFD for, by KFD's own count."""
    drm: int | None = None
    """Sum over its DRM clients of the buffers in their reach, by fdinfo."""
    observed: int | None = None
    """The last two together: a process that uses both has most of its buffers in both."""
    escaped: int | None = None
    """In VRAM by the ledger, and not charged to it by dmem."""
    drift: int | None = None
    """By how much the kernel counts more than the ledger; 0 within ``accounting.DRIFT_BOUND``."""
    queues: int | None = None
    """Its live compute queues (the ledger)."""
    queues_masked: int | None = None
    """Of these, with a CU mask within its slice."""
    masks_wider: int | None = None
    """CU masks it asked for that went beyond its slice."""
    svm: int | None = None
    """Of ``requested``, shared virtual memory that has a place in VRAM (the ledger)."""
    svm_faulted: int | None = None
    """All that page faults of the GPU ever brought there, which nothing can refuse."""
    orphaned: int | None = None
    """Of a pod's ``requested``, what none of its live containers has; None for a container."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the processes of one cgroup do on one GPU; None is not told by this GPU or kernel.

    Times only grow, also when a process ends. They count from the container's start, or from this
    enforcer's if that is later.
    """

    cu_occupancy: int | None = None
    """Compute units that its waves kept busy at the last look."""
    queues: int | None = None
    """KFD queues that it has."""
    evicted_seconds: float | None = None
    """Sum over its processes: KFD had its queues stopped to make room for others."""
    sdma_seconds: float | None = None
    """Sum over its KFD processes: SDMA engines at work for it."""
    engines: tuple[tuple[str, float], ...] = ()
    """(engine as in fdinfo's ``drm-engine-``, seconds at work for its DRM clients)."""
    evicted_bytes: int | None = None
    """Of its DRM clients' buffers, those that belong into VRAM and lie elsewhere (fdinfo)."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What one GPU is doing as a whole; None is not reported by this GPU."""

    bdf: str
    vram_used: int | None = None
    """Bytes, the kernel's own buffers and page tables included."""
    busy_percent: int | None = None
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """Whether one GPU is fit to be used. Times are Unix seconds."""

    bdf: str
    healthy: bool
    reason: str = ""
    """Why it is not."""
    since: float = 0.0
    """When it became as it is, or was first seen so."""
    last_reset: float | None = None
    """When the last reset ended; what was in VRAM before may be lost. None: none was heard of."""
    vm_faults: int = 0
    """Faults in address spaces of processes. They are the processes' own, and no ailment."""
    last_fault: str = ""
    """Whose was the last one, as ``name[pid]``."""


@dataclass(frozen=True, slots=True)
class DeviceTest:
    """What came of opening one device file as a container would."""

    path: str
    error: str = ""
    """Why it is of no use; "" if it can be used."""

    @property
    def usable(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class ImageLibc:
    """What the C library of a container's image means for the hook."""

    libc: str
    """``glibc``, ``musl`` or ``none``."""
    version: str
    """``2.36``; "" where it is not told."""
    tool_loads: bool
    """The hook's HSA tools library can be loaded, if the image has ROCr."""
    auditor_loads: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """One row of the per-container table."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    """The container's name; its id until the runtime's record names it; "" is the pod itself."""
    cgroup: str
    """Path relative to the cgroup2 root."""
    bdf: str
    limit: int | None
    """None: whole GPU."""
    usage: Usage
    layers: tuple[LayerState, ...]
    cus: str | None = None
    """CU id list of its slice, as ``Share.cus``; None is every CU, and so it is for a pod."""
    activity: Activity | None = None
    """None until its processes were first looked at."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Calls of one container on one GPU that the gate refused, or answered with a kill."""

    time: float
    """Unix seconds of the last one."""
    namespace: str
    pod: str
    pod_uid: str
    container: str
    """"" where the pod's own limit was in the way."""
    bdf: str
    """"" where the call named no GPU that is known."""
    reason: str
    """Name of the gate's counter: ``refused_limit`` ..."""
    count: int
    """Since this enforcer started."""
    asked: int
    """Bytes, as the next two, of the last one."""
    used: int
    limit: int | None
    text: str
    """The last one in a sentence."""


class Problem(str):
    """A line about something that did not go right, with a number or a tenant's word in it.

    The same problem can read otherwise in every pass; ``about`` tells it from others.
    """

    __slots__ = ("about",)
    about: str

    def __new__(cls, about: str, text: str) -> Self:
        one = super().__new__(cls, text)
        one.about = about
        return one


def about(problem: str) -> str:
    """What tells a problem from others: ``Problem.about``, or the line itself."""
    return problem.about if isinstance(problem, Problem) else problem


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node as the enforcer's last pass saw it; metrics and the local API read only this."""

    time: float
    """Unix seconds at the end of the pass."""
    support: HostSupport
    gpus: tuple[Gpu, ...]
    containers: tuple[ContainerUsage, ...]
    problems: tuple[str, ...] = ()
    """One line each: what could not be read or put in place, and why."""
    loads: tuple[GpuLoad, ...] = ()
    pass_seconds: float = 0.0
    """Wall time of the pass."""
    counters: tuple[tuple[str, int], ...] = ()
    """The gate's and the ledger's counters, by their names in the BPF maps."""
    map_fill: tuple[tuple[str, int, int], ...] = ()
    """(BPF map, entries used, entries it can hold)."""
    incidents: tuple[Incident, ...] = ()
    """What the gate did to the pods that are there, the newest first."""
    health: tuple[GpuHealth, ...] = ()
    """Every GPU that was seen since this enforcer started, by PCI address."""
    orphaned: tuple[tuple[str, int], ...] = ()
    """(BDF, bytes that the ledger charges to pods that are gone), of every GPU; empty: unknown."""
