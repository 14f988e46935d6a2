# SPDX-License-Identifier: Apache-2.0
"""One row per container and GPU from every source of usage side by side, and where they differ.

The ledger is exact, and checked against what the kernel counts by itself. The kernel counting
more than the ledger is drift. It counting less is none: a shared buffer is in the books of its
creator although nobody there has a handle any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from bpf.decode import LedgerUsage
from enforcer.model import (
    Container,
    ContainerUsage,
    Layer,
    LayerState,
    PodCgroup,
    Usage,
    Why,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from enforcer.host.drm import DrmClient
    from enforcer.host.kfd import KfdActivity
    from enforcer.model import Activity, Limit, Protection, Slice

DRIFT_BOUND = 2 << 20
"""Bytes by which the sources may differ without a word: the span of one GPU page table."""

_HOOK_MARGIN = 64 << 20
"""Bytes beyond the slice and a sixteenth of it that are no sign of a hook that was got round: where
no auditor counts it, ROCr takes memory for itself past the hook's books."""

_LOOKS = 3
"""That have to find a difference before it is told: no two readings are of one moment."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What two of the sources said in one pass."""

    ledger: Mapping[tuple[int, int], LedgerRow] | None
    """By ``Limit.key``; None: there is no ledger. A cgroup without a row has used nothing."""
    charged: Mapping[tuple[str, str], int]
    """``dmem.current`` by (cgroup path, BDF)."""
    queues: bool = True
    """Whether the ledger follows compute queues."""
    faults: bool = True
    """Whether it knows whose the memory is that page faults of the GPU bring into VRAM."""
    orphans: Mapping[tuple[int, int], int] | None = None
    """Bytes of pods that no live container has, by ``Limit.key`` of the pod; None: unknown."""


@dataclass(frozen=True, slots=True)
class Processes:
    """What the kernel tells of the processes of one pod, at about one moment."""

    pids: Mapping[str, AbstractSet[int]]
    """The processes in and below each cgroup, by its path."""
    kfd: Mapping[int, Mapping[str, int]]
    """Bytes of VRAM asked of KFD, by process and BDF."""
    clients: Mapping[int, Sequence[DrmClient]]
    """The DRM clients that each process has a descriptor of."""
    activity: Mapping[int, Mapping[str, KfdActivity]] = field(default_factory=dict)
    """What they do by KFD's count, by process and BDF."""


@dataclass(frozen=True, slots=True)
class Observed:
    """VRAM of one cgroup on one GPU as KFD and fdinfo tell it. Bytes."""

    kfd: int = 0
    drm: int = 0
    total: int = 0
    """Each process's larger sum: ROCr joins KFD to a DRM client, which then shows KFD's too."""
    least: int = 0
    """The same without what could be in another's books: shared buffers, passed descriptors."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The sources compared for one cgroup on one GPU; None is unknown."""

    hook: int | None
    observed: Observed
    escaped: int | None
    drift: int | None
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What the last looks that could tell found of one cgroup on one GPU, latest last. Bytes."""

    escaped: tuple[int, ...] = ()
    drift: tuple[int, ...] = ()

    def then(self, escaped: int | None, drift: int | None) -> Found:
        """After one more look; None where it could not tell."""
        return Found(_append(self.escaped, escaped), _append(self.drift, drift))

    @property
    def agreed(self) -> tuple[int | None, int | None]:
        """(escaped, drift) as much as all looks found; None is still open."""
        return _agreed(self.escaped), _agreed(self.drift)


class LedgerRow(Protocol):
    """What the ledger holds for one cgroup on one GPU. Bytes, but for counts."""

    @property
    def requested(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def page_tables(self) -> int: ...
    @property
    def peak(self) -> int: ...
    @property
    def refusals(self) -> int: ...
    @property
    def svm(self) -> int: ...
    @property
    def svm_faulted(self) -> int: ...
    @property
    def queues(self) -> int: ...
    @property
    def queues_masked(self) -> int: ...
    @property
    def masks_wider(self) -> int: ...
    @property
    def empty(self) -> bool: ...


def observe(
    processes: Processes,
    path: str,
    bdf: str,
    elsewhere: AbstractSet[tuple[str, int]] = frozenset(),
) -> Observed:
    """What the processes of one cgroup hold of one GPU.

    ``elsewhere`` are the clients, (BDF, id), that processes of other pods have a descriptor of.
    """
    inside = processes.pids.get(path, frozenset())
    foreign = {
        client.client
        for pid, clients in processes.clients.items()
        if pid not in inside
        for client in clients
        if client.bdf == bdf
    }
    foreign.update(client for where, client in elsewhere if where == bdf)
    seen: set[int] = set()
    kfd = drm = total = least = 0
    for pid in sorted(inside):
        asked = processes.kfd.get(pid, {}).get(bdf, 0)
        shown = own = 0
        for client in processes.clients.get(pid, ()):
            if client.bdf != bdf or client.client in seen:
                continue
            seen.add(client.client)
            size = _client_bytes(client)
            shown += size
            if client.client not in foreign:
                own += max(0, size - (client.shared or 0))
        kfd += asked
        drm += shown
        total += max(asked, shown)
        least += max(asked, own)
    return Observed(kfd, drm, total, least)


def compare(
    before: LedgerRow, after: LedgerRow, observed: Observed, charged: int | None
) -> tuple[int | None, int | None]:
    """(escaped, drift) of one cgroup on one GPU; None where this reading cannot tell.

    ``before`` and ``after`` are the ledger around the reading of ``observed`` and of ``charged``
    (``dmem.current``, None without it). While the ledger moves, only what it never held is drift.
    """
    steady = _holdings(before) == _holdings(after)
    if steady:
        asked, resident = (size + after.page_tables for size in (after.requested, after.resident))
    else:
        asked = resident = after.peak + max(before.page_tables, after.page_tables)
    beyond = max(observed.least - asked, 0 if charged is None else charged - resident)
    drift = beyond if beyond > DRIFT_BOUND else 0
    escaped = max(0, resident - charged) if steady and charged is not None else None
    return escaped, drift if drift or steady else None


def _append(last: tuple[int, ...], found: int | None) -> tuple[int, ...]:
    return last if found is None else (*last[1 - _LOOKS :], found)


def _agreed(found: tuple[int, ...]) -> int | None:
    least = min(found, default=None)
    return None if least and len(found) < _LOOKS else least


def container_usage(
    limits: Iterable[Limit],
    owners: Mapping[int, Container | PodCgroup],
    slices: Iterable[Slice],
    readings: Readings,
    protections: Mapping[tuple[int, int], Protection],
    checked: Mapping[tuple[int, int], Checked],
    *,
    by_hook: bool = False,
) -> list[ContainerUsage]:
    """A row for every limit, in its order: the pods' own rows have an empty container name.

    ``owners`` are the cgroups by id, ``checked`` what was found when the sources were last
    compared. ``by_hook``: the kernel can hold nothing on this node.
    """
    named = {one.key: one for one in slices}
    pods = {one.pod_uid: one for one in named.values()}
    rows = []
    for limit in limits:
        owner = owners[limit.cgroup_id]
        uid, name = _identity(owner)
        one = pods[uid]
        usage = _usage(readings, limit.key, readings.charged.get((limit.path, limit.bdf)))
        if readings.orphans is not None and isinstance(owner, PodCgroup):
            usage = replace(usage, orphaned=readings.orphans.get(limit.key, 0))
        if (found := checked.get(limit.key)) is not None:
            usage = replace(
                usage,
                hook=found.hook,
                kfd=found.observed.kfd,
                drm=found.observed.drm,
                observed=found.observed.total,
                escaped=found.escaped,
                drift=found.drift,
            )
        protection = protections.get(limit.key)
        layers = () if protection is None else protection.layers
        own = named.get((uid, name))
        if own is not None and (by_hook or _no_vram(layers)):
            layers = (*layers, *_hook_state(own, limit, found))
        shares = () if own is None else own.shares
        rows.append(
            ContainerUsage(
                namespace=one.namespace,
                pod=one.pod,
                pod_uid=uid,
                container=name,
                cgroup=limit.path,
                bdf=limit.bdf,
                limit=limit.vram_bytes,
                usage=usage,
                layers=layers,
                cus=next((share.cus for share in shares if share.bdf == limit.bdf), None),
                activity=None if found is None else found.activity,
            )
        )
    return rows


def _no_vram(layers: tuple[LayerState, ...]) -> bool:
    """True for a GPU of which no layer of the kernel sees the memory."""
    return {state.reason for state in layers} == {Why.SYSTEM_MEMORY}


def _hook_state(own: Slice, limit: Limit, found: Checked | None) -> Iterable[LayerState]:
    """Whether the hook holds a container that nothing else can hold; nothing of a whole GPU.

    Its own books are the container's to write. What the kernel counts beyond them says that a
    process goes without it.
    """
    if limit.vram_bytes is None:
        return
    most = limit.vram_bytes + limit.vram_bytes // 16 + _HOOK_MARGIN
    why: Why | None = None
    if own.hook is None:
        why = Why.HOOK_UNKNOWN
    elif not own.hook:
        why = Why.NO_HOOK
    elif found is not None and found.observed.least > most:
        why = Why.HOOK_PASSED
    yield LayerState(Layer.HOOK, why)


def _identity(owner: Container | PodCgroup) -> tuple[str, str]:
    if isinstance(owner, Container):
        return owner.pod.uid, owner.name or owner.id
    return owner.uid, ""


def _usage(readings: Readings, key: tuple[int, int], charged: int | None) -> Usage:
    if readings.ledger is None:
        return Usage(dmem_current=charged)
    row = readings.ledger.get(key, LedgerUsage(0))
    return Usage(
        row.requested,
        row.resident,
        row.page_tables,
        row.peak,
        row.refusals,
        charged,
        queues=row.queues if readings.queues else None,
        queues_masked=row.queues_masked if readings.queues else None,
        masks_wider=row.masks_wider if readings.queues else None,
        svm=row.svm,
        svm_faulted=row.svm_faulted if readings.faults else None,
    )


def _holdings(row: LedgerRow) -> tuple[int, int, int]:
    return row.requested, row.resident, row.page_tables


def _client_bytes(client: DrmClient) -> int:
    """Evicted buffers included, where the kernel says so."""
    sizes = (client.requested, client.total, client.resident)
    return next((size for size in sizes if size is not None), 0)
