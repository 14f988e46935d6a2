# SPDX-License-Identifier: Apache-2.0
"""Which of kubelet's device ids fit best: those of the GPUs the scheduler chose. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from deviceplugin.devices import bdf_of_slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def prefer(
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    chosen: Sequence[str] = (),
) -> list[str]:
    """``size`` ids out of ``available``, those of ``must_include`` first.

    ``chosen`` are the PCI addresses the scheduler booked, one for each id. What they leave open is
    spread over different GPUs, the one with the fewest free slots first (``binpack``). Fewer ids
    than ``size`` only where fewer are available.
    """
    picked = list(dict.fromkeys(must_include))[:size]
    free: dict[str, list[str]] = {}
    for device_id in sorted(set(available) - set(picked), key=_slot_order):
        free.setdefault(bdf_of_slot(device_id), []).append(device_id)
    open_gpus = Counter(chosen) - Counter(map(bdf_of_slot, picked))
    for bdf in open_gpus.elements():
        if len(picked) < size and free.get(bdf):
            picked.append(free[bdf].pop(0))
    taken = Counter(map(bdf_of_slot, picked))
    while len(picked) < size and any(free.values()):
        bdf = min(
            (bdf for bdf, ids in free.items() if ids),
            key=lambda bdf: (taken[bdf], len(free[bdf]), bdf),
        )
        picked.append(free[bdf].pop(0))
        taken[bdf] += 1
    return picked


def _slot_order(device_id: str) -> tuple[str, int, str]:
    bdf, _, slot = device_id.partition("#")
    return bdf, int(slot) if slot.isascii() and slot.isdigit() else -1, slot
