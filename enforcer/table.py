# SPDX-License-Identifier: Apache-2.0
"""The snapshot as people look at it: GPU by GPU, container by container. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from enforcer.model import Activity, LayerState, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from enforcer.model import ContainerUsage, Gpu, GpuHealth, GpuLoad, Snapshot

_Number = TypeVar("_Number", int, float)
_MOST_CUS = 4096
"""More than any GPU has: a longer list is no list of compute units."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, all its partitions together, and the containers that have a slice of it."""

    bdf: str
    name: str
    gpus: tuple[Gpu, ...]
    """The GPU, or its partitions in order; empty for slices of a GPU that is not there now."""
    load: GpuLoad | None
    rows: tuple[ContainerUsage, ...]
    """Containers only, by namespace, pod and name."""
    health: GpuHealth | None = None
    orphaned: int = 0
    """Bytes charged for containers and pods that are gone."""

    @property
    def vram(self) -> int | None:
        """Bytes of the whole device; None is unknown."""
        sizes = [gpu.vram_bytes for gpu in self.gpus]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    @property
    def cu_count(self) -> int:
        return sum(gpu.cu_count for gpu in self.gpus)

    @property
    def booked(self) -> int:
        """Bytes promised to containers; a whole GPU is booked whole."""
        return sum((self.vram or 0) if row.limit is None else row.limit for row in self.rows)

    @property
    def used(self) -> int:
        """Bytes its containers hold, as far as that is known."""
        return sum(used(row) or 0 for row in self.rows)


def cards(snapshot: Snapshot) -> list[Card]:
    """Every GPU by PCI address, those included that only slices still name."""
    gpus: defaultdict[str, list[Gpu]] = defaultdict(list)
    for gpu in snapshot.gpus:
        gpus[gpu.bdf].append(gpu)
    rows: defaultdict[str, list[ContainerUsage]] = defaultdict(list)
    orphaned = Counter(dict(snapshot.orphaned))
    for row in merged(snapshot.containers):
        if row.container:
            rows[row.bdf].append(row)
        orphaned[row.bdf] += row.usage.orphaned or 0
    loads = {load.bdf: load for load in snapshot.loads}
    health = {one.bdf: one for one in snapshot.health}
    return [
        Card(
            bdf,
            gpus[bdf][0].name if bdf in gpus else "not there",
            tuple(sorted(gpus.get(bdf, ()), key=lambda gpu: gpu.partition or 0)),
            loads.get(bdf),
            tuple(
                sorted(rows.get(bdf, ()), key=lambda one: (one.namespace, one.pod, one.container))
            ),
            health.get(bdf),
            orphaned[bdf],
        )
        for bdf in sorted({*gpus, *rows})
    ]


def merged(rows: Sequence[ContainerUsage]) -> list[ContainerUsage]:
    """One row per namespace, pod, container and GPU, in the order they come.

    For a moment there can be two: a container that restarts has an old and a new cgroup, and a pod
    that was replaced under its name has two UIDs. What they hold is added up; a layer is on if it
    is on for both.
    """
    found: dict[tuple[str, str, str, str], ContainerUsage] = {}
    for row in rows:
        key = (row.namespace, row.pod, row.container, row.bdf)
        before = found.get(key)
        found[key] = row if before is None else _both(before, row)
    return list(found.values())


def used(row: ContainerUsage) -> int | None:
    """Bytes that count against the limit: the ledger's, else the best source there is."""
    usage = row.usage
    for value in (usage.requested, usage.dmem_current, usage.observed, usage.hook):
        if value is not None:
            return value
    return None


def spilled(row: ContainerUsage) -> int | None:
    """Bytes asked for in VRAM that lie in system memory: by the ledger, else by fdinfo."""
    usage = row.usage
    if usage.requested is not None and usage.resident is not None:
        return max(0, usage.requested - usage.resident)
    return None if row.activity is None else row.activity.evicted_bytes


def cu_ids(text: str) -> tuple[int, ...]:
    """The numbers of a CU id list (``0-3,8``), in order. ValueError for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f"CU list {text!r}: expected numbers and ranges, found {part!r}")
        low, high = int(first), int(last or first)
        if not low <= high < _MOST_CUS:
            raise ValueError(f"CU list {text!r}: expected a range below {_MOST_CUS}: {part!r}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def cu_count(row: ContainerUsage) -> int | None:
    """How many CUs the slice has; None is every CU of the GPU, or a list that is none."""
    if row.cus is None:
        return None
    try:
        return len(cu_ids(row.cus))
    except ValueError:
        return None


def _both(one: ContainerUsage, other: ContainerUsage) -> ContainerUsage:
    usage = Usage(
        *(_sum(getattr(one.usage, f.name), getattr(other.usage, f.name)) for f in fields(Usage))
    )
    limits = (one.limit, other.limit)
    return replace(
        other,
        limit=None if None in limits else max(limit for limit in limits if limit is not None),
        usage=usage,
        layers=tuple(_layers(one.layers, other.layers)),
        activity=_activity(one.activity, other.activity),
    )


def _layers(one: Iterable[LayerState], other: Iterable[LayerState]) -> Iterable[LayerState]:
    states = {state.layer: state for state in one}
    for state in other:
        if state.layer not in states or states[state.layer].on:
            states[state.layer] = state
    return states.values()


def _activity(one: Activity | None, other: Activity | None) -> Activity | None:
    if one is None or other is None:
        return other if one is None else one
    engines = dict(one.engines)
    for name, seconds in other.engines:
        engines[name] = engines.get(name, 0.0) + seconds
    return Activity(
        _sum(one.cu_occupancy, other.cu_occupancy),
        _sum(one.queues, other.queues),
        _sum(one.evicted_seconds, other.evicted_seconds),
        _sum(one.sdma_seconds, other.sdma_seconds),
        tuple(sorted(engines.items())),
        _sum(one.evicted_bytes, other.evicted_bytes),
    )


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    return other if one is None else one if other is None else one + other
