# SPDX-License-Identifier: Apache-2.0
"""Which compute units a slice gets. Pure: sets of CUs are bitmaps, bit n is CU n."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class CusExhaustedError(ValueError):
    """There are not enough free CUs for a slice."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"needs {wanted} CUs, but only {free} are free")
        self.wanted = wanted
        self.free = free


@dataclass(frozen=True, slots=True)
class CuLayout:
    """The CUs of one GPU: which can only be masked together, and on which die they are.

    From gfx10 on two CUs make a work-group processor and ROCm ignores a mask that splits one, so
    they are handed out in whole groups and an odd CU at the end never is. Where a GPU has several
    compute dies (XCCs), KFD deals the bits of a mask out to them in turn
    (``mqd_symmetrically_map_cu_mask`` in kfd_mqd_manager.c), and the work of every queue goes to
    all of them.
    """

    count: int
    group: int = 1
    """CUs that go together."""
    xccs: int = 1

    @property
    def all(self) -> int:
        """Every CU."""
        return (1 << self.count) - 1

    def groups(self) -> Iterator[int]:
        """The groups, ascending."""
        mask = (1 << self.group) - 1
        for first in range(0, self.count - self.group + 1, self.group):
            yield mask << first

    def xcc(self, cu: int) -> int:
        """The XCC that a CU is on."""
        return cu // self.group % self.xccs

    def allocate(self, wanted: int, busy: int, prefer: int = 0) -> int:
        """``wanted`` CUs outside ``busy``, in whole groups; from the GPU's count on every CU.

        Groups within ``prefer`` go first (what the pod holds already). Each next one is of the XCC
        that has the fewest so far, and of those the first that is free. Raises CusExhaustedError,
        and ValueError for a count that is no count.
        """
        if wanted <= 0:
            raise ValueError(f"expected a positive count of CUs, found {wanted}")
        if wanted >= self.count:
            if busy & self.all:
                raise CusExhaustedError(self.count, (self.all & ~busy).bit_count())
            return self.all
        free = [group for group in self.groups() if not group & busy]
        needed = -(-wanted // self.group)
        if len(free) < needed:
            raise CusExhaustedError(needed * self.group, len(free) * self.group)
        held = [group for group in free if group & prefer == group]
        taken = self._spread(held, needed, [0] * self.xccs)
        counts = [0] * self.xccs
        for group in taken:
            counts[self.xcc(_first(group))] += 1
        rest = [group for group in free if group & prefer != group]
        return sum(taken) + sum(self._spread(rest, needed - len(taken), counts))

    def _spread(self, groups: Sequence[int], needed: int, counts: Sequence[int]) -> list[int]:
        """Up to ``needed`` of the groups, evenly over the XCCs, which have ``counts`` before."""
        queues: list[list[int]] = [[] for _ in range(self.xccs)]
        for group in groups:
            queues[self.xcc(_first(group))].append(group)
        heap = [(counts[n], queue[0], n, 0) for n, queue in enumerate(queues) if queue]
        heapq.heapify(heap)
        taken: list[int] = []
        while heap and len(taken) < needed:
            count, group, n, at = heapq.heappop(heap)
            taken.append(group)
            if at + 1 < len(queues[n]):
                heapq.heappush(heap, (count + 1, queues[n][at + 1], n, at + 1))
        return taken


def _first(group: int) -> int:
    return (group & -group).bit_length() - 1


def to_bitmap(cus: Iterable[int]) -> int:
    """The bitmap of a set of CU ids."""
    bitmap = 0
    for cu in cus:
        bitmap |= 1 << cu
    return bitmap


def to_ids(bitmap: int) -> list[int]:
    """The CU ids of a bitmap, ascending."""
    return [cu for cu in range(bitmap.bit_length()) if bitmap >> cu & 1]
