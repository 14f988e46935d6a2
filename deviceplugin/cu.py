# SPDX-License-Identifier: Apache-2.0
"""Which compute units a slice gets. Pure: sets of CUs are bitmaps, bit n is CU n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class CusExhaustedError(ValueError):
    """There are not enough free CUs for a slice."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"needs {wanted} CUs, but only {free} are free")
        self.wanted = wanted
        self.free = free


@dataclass(frozen=True, slots=True)
class CuLayout:
    """The CUs of one GPU, and which can only be masked together.

    From gfx10 on two CUs make a work-group processor and ROCm ignores a mask that splits one, so
    they are handed out in whole groups and an odd CU at the end never is.
    """

    count: int
    group: int = 1
    """CUs that go together."""

    @property
    def all(self) -> int:
        """Every CU."""
        return (1 << self.count) - 1

    def groups(self) -> Iterator[int]:
        """The groups in the order in which slices take them."""
        mask = (1 << self.group) - 1
        for first in range(0, self.count - self.group + 1, self.group):
            yield mask << first

    def allocate(self, wanted: int, busy: int, prefer: int = 0) -> int:
        """``wanted`` CUs outside ``busy``, in whole groups; from the GPU's count on every CU.

        Groups within ``prefer`` go first (what the pod holds already), then the first that are
        free. Raises CusExhaustedError, and ValueError for a count that is no count.
        """
        if wanted <= 0:
            raise ValueError(f"expected a positive count of CUs, found {wanted}")
        if wanted >= self.count:
            if busy & self.all:
                raise CusExhaustedError(self.count, (self.all & ~busy).bit_count())
            return self.all
        free = [group for group in self.groups() if not group & busy]
        free.sort(key=lambda group: group & prefer != group)
        needed = -(-wanted // self.group)
        if len(free) < needed:
            raise CusExhaustedError(needed * self.group, len(free) * self.group)
        return sum(free[:needed])


def to_bitmap(cus: Iterable[int]) -> int:
    """The bitmap of a set of CU ids."""
    bitmap = 0
    for cu in cus:
        bitmap |= 1 << cu
    return bitmap


def to_ids(bitmap: int) -> list[int]:
    """The CU ids of a bitmap, ascending."""
    return [cu for cu in range(bitmap.bit_length()) if bitmap >> cu & 1]
