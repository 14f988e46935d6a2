# SPDX-License-Identifier: Apache-2.0
"""Which of kubelet's device ids fit best: those of the GPUs the scheduler chose. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from deviceplugin.devices import key_of_slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deviceplugin.devices import Device

BINPACK = "binpack"
SPREAD = "spread"

_SAME_GPU = 4
_LINKED = 2
_SAME_NUMA = 1


def prefer(
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    chosen: Sequence[str] = (),
    devices: Sequence[Device] = (),
    policy: str = BINPACK,
) -> list[str]:
    """``size`` ids out of ``available``, those of ``must_include`` first.

    ``chosen`` are the keys of the devices the scheduler booked, one for each id. What they leave
    open is spread over different devices: those that belong together, and among equals the one
    with the fewest free slots first (``binpack``) or the most (``spread``). Fewer ids than ``size``
    only where fewer are available.
    """
    picked = list(dict.fromkeys(must_include))[:size]
    free: dict[str, list[str]] = {}
    for device_id in sorted(set(available) - set(picked), key=_slot_order):
        free.setdefault(key_of_slot(device_id), []).append(device_id)
    booked = Counter(chosen) - Counter(map(key_of_slot, picked))
    for key in booked.elements():
        if len(picked) < size and free.get(key):
            picked.append(free[key].pop(0))
    by_key = {device.key: device for device in devices}
    taken = Counter(map(key_of_slot, picked))
    while len(picked) < size and any(free.values()):
        # A second slot of a device that the container has already gives it nothing.
        least = min(taken[key] for key, ids in free.items() if ids)
        order = sorted(
            (key for key, ids in free.items() if ids and taken[key] == least),
            key=lambda key: (len(free[key]) * (1 if policy == BINPACK else -1), key),
        )
        held = [key for key in taken if key not in order]
        for key in group(order, held, size - len(picked), by_key):
            picked.append(free[key].pop(0))
            taken[key] += 1
    return picked


def group(
    order: Sequence[str], held: Sequence[str], size: int, devices: Mapping[str, Device]
) -> list[str]:
    """``size`` of the keys in ``order``, those with the best ties to each other and to ``held``.

    Built up from every key in turn by the one with the most ties to those before it; the best of
    these groups, and of equal ones that whose keys come first in ``order``, which is found in the
    third power of their number. All of ``order`` where it is no longer than ``size``.
    """
    size = min(size, len(order))
    ties = [[_tie(devices.get(a), devices.get(b)) for b in order] for a in order]
    before = [sum(_tie(devices.get(key), devices.get(other)) for other in held) for key in order]
    if size == 1:
        return [order[max(range(len(order)), key=lambda one: (before[one], -one))]]
    best: tuple[int, list[int]] | None = None
    for seed in range(len(order)):
        found = _grow(seed, size, ties, before)
        # Equal scores keep the earlier seed, which comes first in the order.
        if best is None or found[0] > best[0]:
            best = found
    return [order[one] for one in sorted(best[1])] if best else []


def _grow(
    seed: int, size: int, ties: Sequence[Sequence[int]], before: Sequence[int]
) -> tuple[int, list[int]]:
    gains = list(before)
    left = set(range(len(ties)))
    members: list[int] = []
    score = 0
    one = seed
    while True:
        members.append(one)
        left.discard(one)
        score += gains[one]
        if len(members) == size:
            return score, members
        row = ties[one]
        for other in left:
            gains[other] += row[other]
        one = max(left, key=lambda other: (gains[other], -other))


def _tie(one: Device | None, other: Device | None) -> int:
    if one is None or other is None or one is other:
        return 0
    if one.gpu.bdf == other.gpu.bdf:
        return _SAME_GPU
    linked = other.gpu.bdf in one.gpu.xgmi_peers
    near = one.gpu.numa_node is not None and one.gpu.numa_node == other.gpu.numa_node
    return _LINKED * linked + _SAME_NUMA * near


def _slot_order(device_id: str) -> tuple[str, int, str]:
    key, _, slot = device_id.partition("#")
    return key, int(slot) if slot.isascii() and slot.isdigit() else -1, slot
