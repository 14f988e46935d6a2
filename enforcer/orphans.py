# SPDX-License-Identifier: Apache-2.0
"""VRAM that is charged although the container that asked for it is gone: somebody else keeps it.

A buffer that was handed on outlives its container, and its charge stays with the pod. The ledger
has a row of the container's cgroup for that long, which no longer says whose it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from enforcer.model import pci_bdf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from enforcer.accounting import LedgerRow
    from enforcer.model import Gpu, Limit

_Key = tuple[int, int]


class Orphans:
    """Which cgroup is or was in which pod's, as long as the ledger has a row of it."""

    def __init__(self) -> None:
        self._pods: dict[int, int] = {}

    def find(
        self,
        ledger: Mapping[_Key, LedgerRow],
        live: Mapping[int, int],
        owners: Callable[[], Iterable[tuple[int, ...]]],
    ) -> dict[_Key, int]:
        """Bytes by (pod's cgroup id, GPU) that no live container has; also of pods that are gone.

        ``ledger`` was read before the walk that found ``live``: the pod's id by cgroup id.
        ``owners`` are the cgroups charged for each buffer, the pod's first. There can be many, and
        they are asked for only where a cgroup came and went unseen, or before this began.
        """
        self._pods.update(live)
        gone = {
            key: row.requested
            for key, row in ledger.items()
            if key[0] not in live and row.requested
        }
        unseen = {cgroup for cgroup, _ in gone} - self._pods.keys()
        for chain in owners() if unseen else ():
            self._pods.update(dict.fromkeys(unseen.intersection(chain), chain[0]))
        self._pods = {
            cgroup: self._pods.get(cgroup, cgroup)
            for cgroup in {*live, *(cgroup for cgroup, _ in ledger)}
        }
        found: dict[_Key, int] = {}
        for (cgroup, gpu), size in gone.items():
            pod = self._pods[cgroup]
            # The row of a pod that is gone has all that its containers' rows have.
            if cgroup == pod or pod in live:
                found[pod, gpu] = found.get((pod, gpu), 0) + size
        return found


def of_no_pod(
    orphans: Mapping[_Key, int] | None, wanted: Iterable[Limit], gpus: Iterable[Gpu]
) -> tuple[tuple[str, int], ...]:
    """(BDF, bytes) of every GPU: what ``find`` found and belongs to no pod with a limit there.

    Empty where ``orphans`` are None, unknown.
    """
    if orphans is None:
        return ()
    shown = {limit.key for limit in wanted}
    sizes = {gpu.bdf: 0 for gpu in gpus}
    for (pod, gpu), size in orphans.items():
        if (pod, gpu) not in shown:
            sizes[pci_bdf(gpu)] = sizes.get(pci_bdf(gpu), 0) + size
    return tuple(sorted(sizes.items()))
