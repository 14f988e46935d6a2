# SPDX-License-Identifier: Apache-2.0
"""Who got beyond its slice by switching arguments, and is still there when its process is gone.

The gate kills the process that had more made than it asked for. An accomplice in the container can
hold what was made; so the ledger is looked at a second later, and the container ended if it is
above its limit still. If its pod is above its own after that, another container of the pod may be
the accomplice, and the pod is ended. Nothing else ever makes Ringfence end a container.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.incidents import OwnReason
from enforcer.model import Container
from enforcer.plan import KillCgroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from enforcer.accounting import LedgerRow
    from enforcer.incidents import GateEvent
    from enforcer.model import PodCgroup

_SECONDS = 1.0
"""For the buffers of the killed process to be given back."""

_AGAIN = 0.2
_RETRY_SECONDS = 30.0
"""Between two tries to end a container."""

_SWITCHED = frozenset({"SWITCHED_KILLED", "SWITCHED_SPARED", "OVERRAN"})


@dataclass(frozen=True, slots=True)
class Overrun:
    """A container or pod above its limit, as an event beside the gate's own."""

    time: float
    """Seconds on CLOCK_MONOTONIC."""
    cgroup: int
    gpu: int
    used: int
    limit: int
    killed: bool
    asked: int = 0
    refused: bool = False

    @property
    def reason(self) -> OwnReason:
        return OwnReason.OVERRUN_KILLED if self.killed else OwnReason.OVERRUN_SPARED

    def __str__(self) -> str:
        end = "killed" if self.killed else "reported only"
        return f"above its limit after switched arguments ({self.used} of {self.limit} used), {end}"


class Overruns:
    """The switches that were told, until it is time to look at what became of them."""

    def __init__(self, *, kill: bool) -> None:
        """``kill`` False: report only."""
        self._kill = kill
        self._due: dict[tuple[int, int], float] = {}
        self._ended: dict[tuple[int, int], tuple[float, int | None]] = {}
        """Pods: when to look at the container of theirs that was ended, None once it was gone."""
        self._judged: set[tuple[int, int]] = set()
        """Who was told of, as long as it is above its limit."""

    def add(self, events: Iterable[GateEvent]) -> None:
        """Remember the switches among what the gate told."""
        for event in events:
            if event.reason.name in _SWITCHED:
                # Whoever goes on switching is not given more time.
                self._due.setdefault((event.cgroup, event.gpu), event.time + _SECONDS)

    def add_untold(
        self,
        now: float,
        cgroups: Collection[int],
        ledger: Mapping[tuple[int, int], LedgerRow],
        limits: Mapping[tuple[int, int], int | None],
        owners: Mapping[int, Container | PodCgroup],
    ) -> None:
        """Remember of those that have overrun, and may not have been told, who is above a limit.

        A pod is looked at when the container that takes it there has ended.
        """
        above = [key for key in ledger if key[0] in cgroups and _above(key, ledger, limits)]
        containers = {
            (owner.pod.cgroup_id, gpu)
            for cgroup, gpu in above
            if isinstance(owner := owners.get(cgroup), Container)
        }
        for key in above:
            if key not in containers and key not in self._ended and key not in self._judged:
                self._due.setdefault(key, now + _SECONDS)

    def wait(self, most: float) -> float:
        """Seconds until the next judgement is due, or ``most`` if that is sooner."""
        now = time.monotonic()
        due = [*self._due.values(), *(due for due, _ in self._ended.values())]
        # One that is due and was not made waits for a ledger, which is no reason to hurry.
        return min([most, *(max(_AGAIN, one - now) for one in due)])

    def judge(
        self,
        now: float,
        ledger: Mapping[tuple[int, int], LedgerRow] | None,
        limits: Mapping[tuple[int, int], int | None] | None,
        owners: Mapping[int, Container | PodCgroup],
        empty: Callable[[Container | PodCgroup], bool],
    ) -> tuple[list[KillCgroup], list[Overrun]]:
        """What has to be ended at ``now`` (CLOCK_MONOTONIC), and what to tell of it.

        ``ledger`` and ``limits`` are what the maps read since ``now``, None if they could not be:
        then the judgement waits. ``empty`` tells whether a cgroup that is there has no process.
        """
        if ledger is None or limits is None:
            return [], []
        self._judged = {key for key in self._judged if _above(key, ledger, limits)}
        self._await_ends(now, owners, empty)
        kills: list[KillCgroup] = []
        overruns: list[Overrun] = []
        for key in [key for key, due in self._due.items() if now >= due]:
            if (found := _above(key, ledger, limits)) is None:
                del self._due[key]
                continue
            owner = owners.get(key[0])
            if owner is None:
                # Its limit is there, so it is as well: the walk has not found it.
                self._due[key] = now + _SECONDS
                continue
            del self._due[key]
            if key not in self._judged:
                overruns.append(Overrun(now, *key, *found, killed=self._kill))
            self._judged.add(key)
            if self._kill:
                kills.append(KillCgroup(owner.path, owner.cgroup_id))
                if isinstance(owner, Container):
                    self._ended[owner.pod.cgroup_id, key[1]] = now + _SECONDS, owner.cgroup_id
        return kills, overruns

    def _await_ends(
        self,
        now: float,
        owners: Mapping[int, Container | PodCgroup],
        empty: Callable[[Container | PodCgroup], bool],
    ) -> None:
        for key, (due, container) in list(self._ended.items()):
            if now < due:
                continue
            if container is not None:
                dying = owners.get(container)
                gone = dying is None or empty(dying)
                # The maps were read before it was seen to be gone: its buffers are in them.
                self._ended[key] = (now, None) if gone else (now + _SECONDS, container)
                continue
            del self._ended[key]
            self._due.setdefault(key, now + _SECONDS)

    def lives_on(self, cgroup: int, now: float) -> None:
        """What was to be ended could not be: it is tried again, and not told again."""
        for key in self._judged:
            if key[0] == cgroup:
                self._due.setdefault(key, now + _RETRY_SECONDS)


def _above(
    key: tuple[int, int],
    ledger: Mapping[tuple[int, int], LedgerRow],
    limits: Mapping[tuple[int, int], int | None],
) -> tuple[int, int] | None:
    """(used, limit) of a cgroup that is above its limit."""
    row, limit = ledger.get(key), limits.get(key)
    if row is None or limit is None or row.requested <= limit:
        return None
    return row.requested, limit
