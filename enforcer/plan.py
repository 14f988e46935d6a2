# SPDX-License-Identifier: Apache-2.0
"""From what is wanted and what is there to what has to be done, and to what holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from enforcer.model import Layer, LayerState, Limit, Protection, Why, pci_bdf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEEPEST = 16
"""Levels below the root of the tree at which the gate finds a cgroup."""
_PAGE = 4096
_TABLE_SPAN = 2 << 20
_DIRECTORY_SPAN = 1 << 30
_SLICE_HEADROOM = 16 << 20


def headroom(vram_bytes: int, slices: int = 1) -> int:
    """Bytes of page tables for which ``dmem.max`` leaves room above a slice.

    The kernel charges a process's GPU page tables to its cgroup. A 4 KiB table maps 2 MiB and a
    4 KiB directory spans 1 GiB (amdgpu_vm.c, block size 9; the two levels above are a page or two).
    That is counted twice, as host memory a process maps to the GPU needs tables in VRAM as well;
    and every slice gets 16 MiB, for tables that small or scattered buffers fill only in part and
    for the directories of its processes:

    ``2 * 4 KiB * (ceil(bytes / 2 MiB) + ceil(bytes / 1 GiB)) + slices * 16 MiB``

    Where the gate is off this is the tolerance of the limit: dmem alone refuses between the slice
    and the slice plus this.
    """
    tables = -(-vram_bytes // _TABLE_SPAN) + -(-vram_bytes // _DIRECTORY_SPAN)
    return 2 * _PAGE * tables + slices * _SLICE_HEADROOM


def dmem_value(limit: Limit) -> int | None:
    """What ``dmem.max`` must read for a limit; None is ``max``."""
    if limit.vram_bytes is None:
        return None
    return limit.vram_bytes + headroom(limit.vram_bytes, limit.slices)


@dataclass(frozen=True, slots=True)
class SetGate:
    """Enter a limit into the gate's map."""

    limit: Limit

    def __str__(self) -> str:
        return f"the gate's limit of /{self.limit.path} on {self.limit.bdf}"


@dataclass(frozen=True, slots=True)
class DeleteGate:
    """Take a limit out of the gate's map."""

    cgroup_id: int
    gpu: int

    def __str__(self) -> str:
        return f"the gate's limit of dead cgroup {self.cgroup_id} on {pci_bdf(self.gpu)}"


@dataclass(frozen=True, slots=True)
class SetPending:
    """Enter what a container of the pod at ``limit`` may hold from the moment it is made."""

    limit: Limit

    def __str__(self) -> str:
        return f"the gate's limit for new containers of /{self.limit.path} on {self.limit.bdf}"


@dataclass(frozen=True, slots=True)
class DeletePending:
    """Take it out again."""

    cgroup_id: int
    gpu: int

    def __str__(self) -> str:
        gpu = pci_bdf(self.gpu)
        return f"the gate's limit for new containers of dead cgroup {self.cgroup_id} on {gpu}"


@dataclass(frozen=True, slots=True)
class DeleteUsage:
    """Forget the ledger's row of a cgroup that is gone and holds nothing any more."""

    cgroup_id: int
    gpu: int

    def __str__(self) -> str:
        return f"the ledger's row of dead cgroup {self.cgroup_id} on {pci_bdf(self.gpu)}"


@dataclass(frozen=True, slots=True)
class ForgetUsage:
    """Take off the ledger what it holds of a cgroup and the kernel does not."""

    cgroup_id: int
    gpu: int

    def __str__(self) -> str:
        return f"the ledger's row of cgroup {self.cgroup_id} on {pci_bdf(self.gpu)}"


@dataclass(frozen=True, slots=True)
class EnableDmem:
    """Hand dmem to the children of the cgroup at ``path`` ("" is the root)."""

    path: str

    def __str__(self) -> str:
        return f"+dmem in cgroup.subtree_control of /{self.path}"


@dataclass(frozen=True, slots=True)
class SetDmem:
    """Write one region of one cgroup's ``dmem.max``; None is ``max``."""

    path: str
    bdf: str
    region: str
    size: int | None

    def __str__(self) -> str:
        return f"dmem.max of /{self.path} on {self.bdf}"


@dataclass(frozen=True, slots=True)
class KillCgroup:
    """End every process of a cgroup and of those below it."""

    path: str
    cgroup_id: int

    def __str__(self) -> str:
        return f"cgroup.kill of /{self.path}"


Action: TypeAlias = (
    SetGate
    | DeleteGate
    | SetPending
    | DeletePending
    | DeleteUsage
    | ForgetUsage
    | EnableDmem
    | SetDmem
    | KillCgroup
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action; ``why`` None is done and read back."""

    action: Action
    why: Why | None = None
    detail: str = ""
    """What the kernel said, for the log."""


@dataclass(frozen=True, slots=True)
class Actual:
    """The state of both kernel layers."""

    gate: Mapping[tuple[int, int], int | None] | None
    """The gate's limits by (cgroup id, GPU), read before the walk; None: no gate."""
    spent: frozenset[tuple[int, int]] = frozenset()
    """The ledger's rows that are all zero, read before the walk as well."""
    pending: Mapping[tuple[int, int], int | None] = field(default_factory=dict)
    """The gate's limits for new containers by (pod's cgroup id, GPU)."""
    gate_off: Why | None = None
    """Why the gate holds nothing although its map may be there."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """dmem region of each GPU that has one and was seen to take a limit."""
    dmem_off: Why | None = None
    system_memory: frozenset[str] = frozenset()
    """The GPUs of which neither layer sees what is asked of KFD, as that is no VRAM."""
    maximum: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    """``dmem.max`` by cgroup path, for the cgroups that have one."""
    dmem_parents: frozenset[str] = frozenset()
    """The cgroups that hand dmem to their children, of those above a cgroup without dmem.max."""
    live: Mapping[int, int] | None = None
    """Id of each pod and container cgroup and of its pod's; None: the walk was not complete."""


def plan(wanted: Sequence[Limit], actual: Actual, pending: Sequence[Limit] = ()) -> list[Action]:
    """What brings the kernel from ``actual`` to ``wanted``; empty when nothing is to be done.

    ``pending``: what is wanted for containers that do not exist yet, by pod.
    """
    return [
        *_plan_gate(wanted, actual),
        *_plan_pending(pending, actual),
        *_plan_dmem(wanted, actual),
    ]


def protections(
    wanted: Iterable[Limit], actual: Actual, outcomes: Iterable[Outcome] = ()
) -> dict[tuple[int, int], Protection]:
    """Which layers hold each limit, by ``Limit.key``, judged by what was read back alone.

    ``outcomes`` of the actions tried before ``actual`` was read only lend their reasons. A whole
    GPU's share is held when it is accounted: the gate's entry is there.
    """
    failed = _reasons(outcomes)
    return {
        limit.key: Protection(
            limit.path,
            limit.bdf,
            (
                LayerState(Layer.GATE, _gate_reason(limit, actual, failed)),
                LayerState(Layer.DMEM, _dmem_reason(limit, actual, failed)),
            ),
        )
        for limit in wanted
    }


def ancestors(path: str) -> list[str]:
    """The cgroups above ``path``, root ("") first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _plan_gate(wanted: Sequence[Limit], actual: Actual) -> list[Action]:
    if actual.gate is None:
        return []
    entries = {limit.key: limit for limit in wanted}
    actions: list[Action] = [
        SetGate(limit)
        for key, limit in entries.items()
        if key not in actual.gate or actual.gate[key] != limit.vram_bytes
    ]
    if actual.live is None:
        # Absence proves nothing after an incomplete walk.
        return actions
    for cgroup_id, gpu in actual.gate:
        if (cgroup_id, gpu) in entries:
            continue
        pod = actual.live.get(cgroup_id)
        # An entry of a live cgroup stays even when its slice has left the checkpoint: the limit
        # ends with the cgroup. Only a container whose record turned out to give it another share,
        # or none, loses an entry early, and only below a pod that is held.
        superseded = pod is not None and pod != cgroup_id and (pod, gpu) in entries
        if pod is None or superseded:
            actions.append(DeleteGate(cgroup_id, gpu))
    actions.extend(
        DeleteUsage(cgroup_id, gpu)
        for cgroup_id, gpu in sorted(actual.spent)
        if cgroup_id not in actual.live
    )
    return actions


def _plan_pending(pending: Sequence[Limit], actual: Actual) -> list[Action]:
    if actual.gate is None:
        return []
    wanted = {limit.key: limit for limit in pending}
    actions: list[Action] = [
        SetPending(limit)
        for key, limit in wanted.items()
        if key not in actual.pending or actual.pending[key] != limit.vram_bytes
    ]
    if actual.live is not None:
        # As a limit, it ends with the cgroup and not with the slice.
        actions.extend(
            DeletePending(cgroup_id, gpu)
            for cgroup_id, gpu in sorted(actual.pending)
            if cgroup_id not in actual.live
        )
    return actions


def _plan_dmem(wanted: Sequence[Limit], actual: Actual) -> list[Action]:
    enable: dict[str, Action] = {}
    sizes: list[Action] = []
    for limit in wanted:
        region = actual.regions.get(limit.bdf)
        if region is None:
            continue
        size = dmem_value(limit)
        if size is None and limit.path not in actual.maximum:
            continue
        now = actual.maximum.get(limit.path)
        if now is None:
            # With a dmem.max in the cgroup every one above it hands the controller down.
            for path in ancestors(limit.path):
                if path not in actual.dmem_parents:
                    enable.setdefault(path, EnableDmem(path))
            now = {}
        if region not in now or now[region] != size:
            sizes.append(SetDmem(limit.path, limit.bdf, region, size))
    return [*enable.values(), *sizes]


def _gate_reason(
    limit: Limit, actual: Actual, failed: Mapping[tuple[str, str, Layer], Why]
) -> Why | None:
    if actual.gate is None or actual.gate_off is not None:
        return actual.gate_off or Why.NOT_LOADED
    if limit.vram_bytes is not None and limit.bdf in actual.system_memory:
        return Why.SYSTEM_MEMORY
    if limit.path.count("/") >= DEEPEST:
        return Why.TOO_DEEP
    if limit.key in actual.gate and actual.gate[limit.key] == limit.vram_bytes:
        return None
    return failed.get((limit.path, limit.bdf, Layer.GATE), Why.NOT_IN_PLACE)


def _dmem_reason(
    limit: Limit, actual: Actual, failed: Mapping[tuple[str, str, Layer], Why]
) -> Why | None:
    if limit.vram_bytes is not None and limit.bdf in actual.system_memory:
        return Why.SYSTEM_MEMORY
    region = actual.regions.get(limit.bdf)
    if region is None:
        return actual.dmem_off or Why.NO_REGION
    now = actual.maximum.get(limit.path)
    if now is None:
        blocked = [
            why
            for path in ancestors(limit.path)
            if (why := failed.get((path, "", Layer.DMEM))) is not None
        ]
        return blocked[0] if blocked else Why.NO_CONTROLLER
    if region in now and now[region] == dmem_value(limit):
        return None
    return failed.get((limit.path, limit.bdf, Layer.DMEM), Why.NOT_IN_PLACE)


def _reasons(outcomes: Iterable[Outcome]) -> dict[tuple[str, str, Layer], Why]:
    reasons: dict[tuple[str, str, Layer], Why] = {}
    for outcome in outcomes:
        if outcome.why is None:
            continue
        match outcome.action:
            case SetGate(limit):
                reasons[limit.path, limit.bdf, Layer.GATE] = outcome.why
            case EnableDmem(path):
                reasons[path, "", Layer.DMEM] = outcome.why
            case SetDmem(path, bdf):
                reasons[path, bdf, Layer.DMEM] = outcome.why
            case DeleteGate() | SetPending() | DeletePending():
                pass
            case DeleteUsage() | ForgetUsage() | KillCgroup():
                pass
    return reasons
