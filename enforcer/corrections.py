# SPDX-License-Identifier: Apache-2.0
"""Where the ledger counts more than lies in a GPU's VRAM, and whose row is wrong.

The end of a buffer can be missed: the driver's functions were not followed for a while. The row
then stays, and takes from the pod what nobody has. A row is given up only towards the kernel's own
truth: all that lies in the VRAM of the GPU, whoever has it, is less than the ledger's sum.

A call that nobody saw the end of stays charged as well, with nothing in VRAM to show for it. That
goes when its cgroup is empty and has no other charge, unless its buffer may live on with somebody
else: in VRAM there is room for it beside what the ledger knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from enforcer.accounting import DRIFT_BOUND
from enforcer.incidents import OwnReason
from enforcer.plan import ForgetUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from enforcer.accounting import LedgerRow

_SECONDS = 5.0
"""Between two looks."""
_LOOKS = 3
"""That have to agree: while buffers come and go, no two readings are of one moment."""

_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Correction:
    """A row that was given up, as an event beside the gate's own."""

    time: float
    """Seconds on CLOCK_MONOTONIC."""
    cgroup: int
    gpu: int
    used: int
    """What the row said, in bytes."""
    asked: int = 0
    limit: int | None = None
    refused: bool = False

    @property
    def reason(self) -> OwnReason:
        return OwnReason.LEDGER_CORRECTED

    def __str__(self) -> str:
        return f"the ledger held {self.used} bytes for no process: taken off"


@dataclass
class _Over:
    """One GPU of which the ledger says too much."""

    least: int
    """By how much at least, over all looks."""
    sizes: dict[_Key, int]
    looks: int = field(default=1)


class Corrections:
    """The looks so far."""

    def __init__(self) -> None:
        self._due = 0.0
        self._over: dict[int, _Over] = {}
        self._idle: dict[_Key, tuple[tuple[int, int], int]] = {}
        """What was found of rows that may be nothing but calls without an end, and looks."""
        self._others: dict[_Key, int] = {}
        """Those that are not, as long as they stay as they are: a million buffers are gone through
        for them once."""
        self._pods: set[int] = set()

    def judge(
        self,
        now: float,
        ledger: Mapping[_Key, LedgerRow] | None,
        live: Mapping[int, int] | None,
        used: Callable[[int], int | None],
        drained: Callable[[int], bool],
        unfollowed: Callable[[], Mapping[_Key, int]],
    ) -> list[tuple[ForgetUsage, Correction]]:
        """The rows to give up at ``now`` (CLOCK_MONOTONIC).

        ``ledger`` was read before; None if it could not be. ``live`` has the pod's id by cgroup id;
        None after an incomplete walk. ``used`` gives the VRAM in use on a GPU, None where it is not
        told; ``drained`` whether a live cgroup has no process and, as far as dmem tells, no VRAM;
        ``unfollowed`` the bytes charged for calls without an end, by the innermost cgroup.
        """
        if now < self._due or ledger is None or live is None:
            return []
        self._due = now + _SECONDS
        self._pods.update(live.values())

        def empty(cgroup: int) -> bool:
            return cgroup not in live or drained(cgroup)

        sizes: dict[int, dict[_Key, int]] = {}
        for key, row in ledger.items():
            if size := row.resident + row.page_tables:
                sizes.setdefault(key[1], {})[key] = size
        # A pod's row has all its containers', dead ones too; no buffer is in two pods'.
        known = {
            gpu: sum(size for (cgroup, _), size in held.items() if cgroup in self._pods)
            for gpu, held in sizes.items()
        }
        found = []
        over: dict[int, _Over] = {}
        for gpu, held in sizes.items():
            total = known[gpu]
            there = used(gpu) if total > DRIFT_BOUND else None
            if there is None or total - there <= DRIFT_BOUND:
                continue
            over[gpu] = _again(self._over.get(gpu), total - there, held)
            if over[gpu].looks < _LOOKS:
                continue
            wrong = self._wrong(over[gpu], empty)
            found += [
                (ForgetUsage(*key), Correction(now, *key, over[gpu].sizes[key])) for key in wrong
            ]
            if wrong:
                del over[gpu]
        self._over = over
        found += [
            (ForgetUsage(*key), Correction(now, *key, size))
            for key, size in self._without_end(ledger, known, used, empty, unfollowed)
        ]
        self._pods.intersection_update({*live.values(), *(cgroup for cgroup, _ in ledger)})
        return found

    def _without_end(
        self,
        ledger: Mapping[_Key, LedgerRow],
        known: Mapping[int, int],
        used: Callable[[int], int | None],
        empty: Callable[[int], bool],
        unfollowed: Callable[[], Mapping[_Key, int]],
    ) -> list[tuple[_Key, int]]:
        """Rows of empty cgroups, and their bytes, that were nothing else for all the looks."""
        rows = {
            key: row.requested
            for key, row in ledger.items()
            if row.requested and not row.resident and not row.page_tables and empty(key[0])
        }
        self._others = {key: size for key, size in self._others.items() if rows.get(key) == size}
        before, self._idle = self._idle, {}
        for key, size in rows.items():
            there = used(key[1]) if key not in self._others else None
            explained = known.get(key[1], 0)
            if there is None or there - explained >= size:
                continue
            # Two readings are of one moment only where nothing moved.
            last, looks = before.get(key, ((size, explained), 0))
            self._idle[key] = (size, explained), looks + 1 if last == (size, explained) else 1
        steady = [(key, size) for key, ((size, _), looks) in self._idle.items() if looks >= _LOOKS]
        lost = unfollowed() if steady else {}
        for key, size in steady:
            del self._idle[key]
            if lost.get(key) != size:
                self._others[key] = size
        return [(key, size) for key, size in steady if key not in self._others]

    def _wrong(self, over: _Over, empty: Callable[[int], bool]) -> list[_Key]:
        """The rows of nobody's, where they are together what is too much; containers' before pods'.

        One of them may be of a buffer that lives on elsewhere, and the end of another's been
        missed: then the sums differ, and none goes.
        """
        idle = [key for key in sorted(over.sizes) if empty(key[0])]
        wrong = [key for key in idle if key[0] not in self._pods] or idle
        total = sum(over.sizes[key] for key in wrong)
        return wrong if abs(total - over.least) <= DRIFT_BOUND else []


def _again(before: _Over | None, excess: int, held: Mapping[_Key, int]) -> _Over:
    """What is left of the looks before after another one: only rows that do not move."""
    if before is None:
        return _Over(excess, dict(held))
    still = {key: size for key, size in before.sizes.items() if held.get(key) == size}
    return _Over(min(before.least, excess), still, before.looks + 1)
