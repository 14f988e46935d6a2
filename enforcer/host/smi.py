# SPDX-License-Identifier: Apache-2.0
"""KFD's SMI events: what the driver tells of a GPU's resets and of faults in its address spaces.

Format: include/uapi/linux/kfd_ioctl.h (AMDKFD_IOC_SMI_EVENTS) and
drivers/gpu/drm/amd/amdkfd/kfd_smi_events.c.

Listening has a price: opening ``/dev/kfd`` makes the listener a KFD process for as long as it
lives. While there is one, the driver refuses to change compute partitions (EBUSY).
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_SMI_EVENTS = 0xC0084B1F
_ARGUMENTS = struct.Struct("=II")
"""``gpuid``, ``anon_fd``."""
_MASK = struct.Struct("=Q")
_ALL_PROCESSES = 1 << 63
"""Needs CAP_SYS_ADMIN; without it faults of other processes are not told."""
_READ_BYTES = 8192
_MOST_UNENDED = 4096
"""Bytes without an end of line after which they are no line."""


class SmiKind(IntEnum):
    """The events that are listened for, by their number in the kernel."""

    VM_FAULT = 1
    PRE_RESET = 3
    POST_RESET = 4


@dataclass(frozen=True, slots=True)
class SmiEvent:
    """One event of one KFD node."""

    kfd_id: int
    kind: SmiKind
    text: str
    """What the driver adds: ``pid:task`` of a fault; number and cause of a reset."""


def parse(line: str, kfd_id: int) -> SmiEvent | None:
    """The event of one line ``<number in hexadecimal> <payload>``; None for any other."""
    number, _, text = line.partition(" ")
    try:
        kind = SmiKind(int(number, 16))
    except ValueError:
        return None
    return SmiEvent(kfd_id, kind, text.strip())


class SmiListener:
    """The event descriptors of some KFD nodes, each with the line it is in the middle of."""

    def __init__(self, kfd: Path) -> None:
        """Opens ``/dev/kfd``. Raises OSError."""
        self._kfd = os.open(kfd, os.O_RDWR | os.O_CLOEXEC)
        self._nodes: dict[int, int] = {}
        self._unended: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def descriptors(self) -> Mapping[int, int]:
        """Descriptor -> KFD id."""
        return self._nodes

    def listen(self, kfd_ids: Iterable[int]) -> dict[int, OSError]:
        """Listen to these nodes as well; by KFD id why not."""
        failed = {}
        for kfd_id in kfd_ids:
            try:
                self._listen(kfd_id)
            except OSError as error:
                failed[kfd_id] = error
        return failed

    def read(self, descriptor: int) -> list[SmiEvent]:
        """The events that came since the last call; empty if there is none. Raises OSError."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        # Old kernels hand out eight bytes at a time.
        *lines, rest = (self._unended[descriptor] + data).split(b"\n")
        self._unended[descriptor] = rest if len(rest) <= _MOST_UNENDED else b""
        found = (parse(line.decode(errors="replace"), self._nodes[descriptor]) for line in lines)
        return [event for event in found if event is not None]

    def close(self) -> None:
        """Stop listening."""
        for descriptor in (*self._nodes, self._kfd):
            with suppress(OSError):
                os.close(descriptor)
        self._nodes.clear()

    def _listen(self, kfd_id: int) -> None:
        answer = fcntl.ioctl(self._kfd, _SMI_EVENTS, _ARGUMENTS.pack(kfd_id, 0))
        descriptor = _ARGUMENTS.unpack(answer)[1]
        try:
            # The kernel makes it without either.
            os.set_inheritable(descriptor, False)
            os.set_blocking(descriptor, False)
            mask = _ALL_PROCESSES | sum(1 << (kind - 1) for kind in SmiKind)
            os.write(descriptor, _MASK.pack(mask))
        except OSError:
            os.close(descriptor)
            raise
        self._nodes[descriptor] = kfd_id
        self._unended[descriptor] = b""
