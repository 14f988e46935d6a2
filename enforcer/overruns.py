# SPDX-License-Identifier: Apache-2.0
"""Who got beyond its slice by switching arguments, and is still there when its process is gone.

The gate kills the process that had more made than it asked for. An accomplice in the container can
hold what was made; so the ledger is looked at a second later, and the container ended if it is
above its limit still. Nothing else ever makes Ringfence end a container.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.model import Container
from enforcer.plan import KillCgroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from enforcer.accounting import LedgerRow
    from enforcer.incidents import GateEvent
    from enforcer.model import PodCgroup

_SECONDS = 1.0
"""For the buffers of the killed process to be given back."""

_AGAIN = 0.2

_SWITCHED = frozenset({"SWITCHED_KILLED", "SWITCHED_SPARED"})


@dataclass(frozen=True, slots=True)
class Reason:
    """Stands beside the gate's own reasons."""

    name: str


@dataclass(frozen=True, slots=True)
class Overrun:
    """A container above its limit, as an event beside the gate's own."""

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
    def reason(self) -> Reason:
        return Reason("OVERRUN_KILLED" if self.killed else "OVERRUN_SPARED")

    def __str__(self) -> str:
        end = "killed" if self.killed else "reported only"
        return f"above its limit after switched arguments ({self.used} of {self.limit} used), {end}"


class Overruns:
    """The switches that were told, until it is time to look at what became of them."""

    def __init__(self, *, kill: bool) -> None:
        """``kill`` False: report only."""
        self._kill = kill
        self._due: dict[tuple[int, int], float] = {}

    def add(self, events: Iterable[GateEvent]) -> None:
        """Remember the switches among what the gate told."""
        for event in events:
            if event.reason.name in _SWITCHED:
                self._due[event.cgroup, event.gpu] = event.time + _SECONDS

    def wait(self, most: float) -> float:
        """Seconds until the next judgement is due, or ``most`` if that is sooner."""
        now = time.monotonic()
        # One that is due and was not made waits for a ledger, which is no reason to hurry.
        return min([most, *(max(_AGAIN, due - now) for due in self._due.values())])

    def judge(
        self,
        now: float,
        ledger: Mapping[tuple[int, int], LedgerRow] | None,
        limits: Mapping[tuple[int, int], int | None] | None,
        owners: Mapping[int, Container | PodCgroup],
    ) -> tuple[list[KillCgroup], list[Overrun]]:
        """What has to be ended at ``now`` (CLOCK_MONOTONIC), and what to tell of it.

        ``ledger`` and ``limits`` are what the maps read, None if they could not be: then the
        judgement waits.
        """
        if ledger is None or limits is None:
            return [], []
        kills: list[KillCgroup] = []
        overruns: list[Overrun] = []
        for key in [key for key, due in self._due.items() if now >= due]:
            del self._due[key]
            row, limit, owner = ledger.get(key), limits.get(key), owners.get(key[0])
            if row is None or limit is None or owner is None or row.requested <= limit:
                continue
            # A pod is more than the one who did it.
            kill = self._kill and isinstance(owner, Container)
            overruns.append(Overrun(now, *key, row.requested, limit, killed=kill))
            if kill:
                kills.append(KillCgroup(owner.path, owner.cgroup_id))
        return kills, overruns
