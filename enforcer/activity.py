# SPDX-License-Identifier: Apache-2.0
"""What containers do on their GPUs: momentary counts, and times that only grow.

KFD and DRM count the time of a process or a client, and forget it with that. A container's time has
to outlive its processes, or every exit would look like a counter that began anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from enforcer.host.kfd import KfdActivity
from enforcer.model import Activity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from enforcer.accounting import Processes
    from enforcer.host.drm import DrmClient
    from enforcer.model import Gpu, Limit

ALWAYS = ("gfx", "compute")
"""Engines that are told of also at 0; fdinfo leaves out what was never used."""

_REMEMBERED = 1024
"""Sources that are gone, or could not be read this time, of one container's one time."""

_EVICTED = "kfd evicted"
_SDMA = "kfd sdma"
_KFD = (_EVICTED, _SDMA)

_Key = tuple[int, int]


@dataclass
class Meter:
    """The sum of what sources count, which come and go; it never falls."""

    total: float = 0.0
    seen: dict[Hashable, float] = field(default_factory=dict)

    def advance(self, values: Mapping[Hashable, float]) -> float:
        """The sum after another reading. A source that counts less than before began anew."""
        for source, value in values.items():
            before = self.seen.pop(source, 0.0)
            self.total += value - before if value >= before else value
            self.seen[source] = value
        while len(self.seen) > _REMEMBERED + len(values):
            del self.seen[next(iter(self.seen))]
        return self.total

    def start_from(self, values: Mapping[Hashable, float]) -> None:
        """Count from these on: what was before belongs to an earlier reader."""
        self.seen.update(values)


class Activities:
    """The activity of every limited cgroup, kept from look to look."""

    def __init__(self) -> None:
        self._earlier: frozenset[_Key] | None = None
        self._meters: dict[_Key, dict[str, Meter]] = {}

    def keep(self, limits: Iterable[Limit]) -> None:
        """Forget the cgroups that are gone.

        Those of the first call may have run before this process did: what their processes have
        counted by the first look is not counted again, since a predecessor told of it.
        """
        keys = frozenset(limit.key for limit in limits)
        if self._earlier is None:
            self._earlier = keys
        self._meters = {key: meters for key, meters in self._meters.items() if key in keys}

    def look(self, limit: Limit, processes: Processes, gpu: Gpu | None) -> Activity:
        """The cgroup's activity on its GPU as of this reading."""
        doing = {
            pid: one
            for pid in processes.pids.get(limit.path, frozenset())
            if (one := processes.activity.get(pid, {}).get(limit.bdf)) is not None
        }
        clients = _clients(processes, limit).values()
        times = {**_kfd_times(doing), **_engine_times(clients)}
        meters = self._meters.get(limit.key)
        if meters is None:
            meters = self._meters[limit.key] = {}
            if limit.key in (self._earlier or ()):
                for name, values in times.items():
                    meters.setdefault(name, Meter()).start_from(values)
        for name, values in times.items():
            meters.setdefault(name, Meter()).advance(values)
        now = sum(doing.values(), KfdActivity())
        return Activity(
            cu_occupancy=now.cu_occupancy if doing else _idle_occupancy(gpu),
            queues=now.queues,
            evicted_seconds=meters[_EVICTED].total,
            sdma_seconds=meters[_SDMA].total,
            engines=tuple(
                sorted((name, one.total) for name, one in meters.items() if name not in _KFD)
            ),
            evicted_bytes=_evicted(clients),
        )


def _clients(processes: Processes, limit: Limit) -> dict[int, DrmClient]:
    """The DRM clients of the cgroup's processes on the GPU, each once."""
    return {
        client.client: client
        for pid in processes.pids.get(limit.path, frozenset())
        for client in processes.clients.get(pid, ())
        if client.bdf == limit.bdf
    }


def _kfd_times(doing: Mapping[int, KfdActivity]) -> dict[str, dict[Hashable, float]]:
    """Seconds by process."""
    times: dict[str, dict[Hashable, float]] = {name: {} for name in _KFD}
    for pid, one in doing.items():
        if one.evicted_ms is not None:
            times[_EVICTED][pid] = one.evicted_ms / 1e3
        if one.sdma_us is not None:
            times[_SDMA][pid] = one.sdma_us / 1e6
    return times


def _engine_times(clients: Iterable[DrmClient]) -> dict[str, dict[Hashable, float]]:
    """Seconds by DRM client."""
    times: dict[str, dict[Hashable, float]] = {name: {} for name in ALWAYS}
    for client in clients:
        for name, nanoseconds in client.engines:
            times.setdefault(name, {})[client.client] = nanoseconds / 1e9
    return times


def _evicted(clients: Iterable[DrmClient]) -> int | None:
    """0 without a client; None where the kernel does not say."""
    sizes = [client.evicted for client in clients]
    known = [size for size in sizes if size is not None]
    return sum(known) if known or not sizes else None


def _idle_occupancy(gpu: Gpu | None) -> int | None:
    """0 where the driver can count waves at all: gfx9 (kfd2kgd_calls.get_cu_occupancy)."""
    return 0 if gpu is not None and 90000 <= gpu.gfx_version < 100000 else None
