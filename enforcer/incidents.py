# SPDX-License-Identifier: Apache-2.0
"""What the gate did to tenants, per container: refusals and kills, counted and not repeated."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from enforcer.model import Container, Incident, PodCgroup, pci_bdf
from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from enforcer.model import Slice

_QUIET_SECONDS = 60.0
"""Between two lines about the same."""

_Owner = Container | PodCgroup
_Key = tuple[str, str, str, str]


class GateEvent(Protocol):
    """What the gate tells of one call; ``str`` of it is a sentence for people."""

    @property
    def time(self) -> float: ...
    @property
    def cgroup(self) -> int: ...
    @property
    def gpu(self) -> int: ...
    @property
    def asked(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def refused(self) -> bool: ...
    @property
    def reason(self) -> Reason: ...


class Reason(Protocol):
    """A member of an enumeration."""

    @property
    def name(self) -> str: ...


class OwnReason(Enum):
    """What the enforcer tells of by itself, beside the gate's reasons."""

    OVERRUN_KILLED = auto()
    OVERRUN_SPARED = auto()
    LEDGER_CORRECTED = auto()


@dataclass
class _Row:
    """One kind of incident of one container on one GPU."""

    last: Incident
    told: int = 0
    """How many of ``last.count`` have been told."""
    quiet_until: float = field(default=float("-inf"))


class Incidents:
    """The incidents of the pods that are there, by container, GPU and reason."""

    def __init__(self) -> None:
        self._rows: dict[_Key, _Row] = {}
        self._owners: Mapping[int, _Owner] = {}
        self._early: list[GateEvent] = []
        """Of cgroups that the last call knew nothing of: they can be younger than its walk."""

    @property
    def rows(self) -> tuple[Incident, ...]:
        """The newest first."""
        rows = (row.last for row in self._rows.values())
        return tuple(sorted(rows, key=lambda one: one.time, reverse=True))

    def add(
        self,
        events: Iterable[GateEvent],
        owners: Mapping[int, _Owner],
        slices: Iterable[Slice],
        now: float,
        unix: float,
    ) -> list[str]:
        """Take in what was told since the last call, at ``now`` (CLOCK_MONOTONIC) = ``unix``.

        The lines to log: the first of a kind at once, then at most one a minute. What cannot be
        told by the next call either to belong to a pod with a slice is left out; the gate's
        counters have it.
        """
        pods = {one.pod_uid: one for one in slices}
        # The container may have gone between the call and this pass.
        known = {**self._owners, **owners}
        self._owners = owners
        events = list(events)
        late, self._early = self._early, [one for one in events if one.cgroup not in known]
        for event in [*late, *events]:
            owner = known.get(event.cgroup)
            one = None if owner is None else pods.get(_pod(owner))
            if owner is not None and one is not None:
                self._count(event, owner, one, unix - (now - event.time))
        self._rows = {key: row for key, row in self._rows.items() if key[0] in pods}
        return [line for row in self._rows.values() if (line := _line(row, now)) is not None]

    def _count(self, event: GateEvent, owner: _Owner, one: Slice, at: float) -> None:
        container = "" if isinstance(owner, PodCgroup) else owner.name or owner.id
        bdf = pci_bdf(event.gpu) if event.gpu else ""
        key = (one.pod_uid, container, bdf, event.reason.name)
        before = self._rows.get(key)
        last = Incident(
            time=at,
            namespace=one.namespace,
            pod=one.pod,
            pod_uid=one.pod_uid,
            container=container,
            bdf=bdf,
            reason=event.reason.name.lower(),
            count=1 if before is None else before.last.count + 1,
            asked=event.asked,
            used=event.used,
            limit=event.limit,
            text=printable(str(event)),
        )
        if before is None:
            self._rows[key] = _Row(last)
        else:
            before.last = last


def _pod(owner: _Owner) -> str:
    return owner.uid if isinstance(owner, PodCgroup) else owner.pod.uid


def _line(row: _Row, now: float) -> str | None:
    new = row.last.count - row.told
    if not new or now < row.quiet_until:
        return None
    since = " since it was last told" if row.told else ""
    row.told = row.last.count
    row.quiet_until = now + _QUIET_SECONDS
    last = row.last
    who = f"container {last.container} of" if last.container else "pod"
    where = f" on {last.bdf}" if last.bdf else ""
    times = f"; {new} times{since}" if new > 1 else ""
    return f"{who} {last.namespace}/{last.pod}{where}: {last.text}{times}"
