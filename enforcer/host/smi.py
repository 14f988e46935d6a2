# SPDX-License-Identifier: Apache-2.0
"""KFD's SMI events: what the driver tells of a GPU's resets and of faults in its address spaces.

Format: include/uapi/linux/kfd_ioctl.h (AMDKFD_IOC_SMI_EVENTS) and
drivers/gpu/drm/amd/amdkfd/kfd_smi_events.c.

The driver writes a line for each event, and ends the one of a fault with the name that the task
gave itself, as it is: an end of line in it begins another line. So a GPU's resets have a descriptor
of their own, to which nobody's name comes, and on the one for faults nothing else is believed.

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
from typing import TYPE_CHECKING, Final, Self

from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SMI_EVENTS = 0xC0084B1F
_ARGUMENTS = struct.Struct("=II")
"""``gpuid``, ``anon_fd``."""
_MASK = struct.Struct("=Q")
_ALL_PROCESSES = 1 << 63
"""Needs CAP_SYS_ADMIN; without it faults of other processes are not told."""
_READ_BYTES = 8192
"""What the kernel keeps of a descriptor's lines at most; more are lost."""
_MOST_UNENDED = 4096
"""Bytes without an end of line after which they are no line."""


class SmiKind(IntEnum):
    """The events that are listened for, by their number in the kernel."""

    VM_FAULT = 1
    PRE_RESET = 3
    POST_RESET = 4


RESETS: Final = frozenset({SmiKind.PRE_RESET, SmiKind.POST_RESET})
FAULTS: Final = frozenset({SmiKind.VM_FAULT})


@dataclass(frozen=True, slots=True)
class SmiEvent:
    """One event of one KFD node."""

    kfd_id: int
    kind: SmiKind
    text: str
    """What the driver adds, printable: ``pid:task`` of a fault; number and cause of a reset."""


@dataclass
class _Stream:
    """One descriptor's lines."""

    kfd_id: int
    kinds: frozenset[SmiKind]
    unended: bytes = b""
    """The beginning of the line it is in the middle of."""


def parse(line: str, kfd_id: int) -> SmiEvent | None:
    """The event of one line ``<number in hexadecimal> <payload>``; None for any other."""
    number, _, text = line.partition(" ")
    try:
        kind = SmiKind(int(number, 16))
    except ValueError:
        return None
    return SmiEvent(kfd_id, kind, printable(text.strip()))


class SmiListener:
    """Two event descriptors of each of some KFD nodes: for its resets and for its faults."""

    def __init__(self, kfd: Path) -> None:
        """Opens ``/dev/kfd``. Raises OSError."""
        self._kfd = os.open(kfd, os.O_RDWR | os.O_CLOEXEC)
        self._streams: dict[int, _Stream] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def resets(self) -> tuple[int, ...]:
        """The descriptors that tell of resets, one for each node."""
        return self._of(RESETS)

    @property
    def faults(self) -> tuple[int, ...]:
        """The descriptors that tell of faults, one for each node."""
        return self._of(FAULTS)

    def listen(self, kfd_ids: Iterable[int]) -> dict[int, OSError]:
        """Listen to these nodes as well; by KFD id why not."""
        failed = {}
        for kfd_id in kfd_ids:
            opened: dict[int, _Stream] = {}
            try:
                for kinds in (RESETS, FAULTS):
                    opened[self._listen(kfd_id, kinds)] = _Stream(kfd_id, kinds)
            except OSError as error:
                _close(opened)
                failed[kfd_id] = error
            else:
                self._streams.update(opened)
        return failed

    def read(self, descriptor: int) -> list[SmiEvent]:
        """The events that came since the last call; empty if there is none. Raises OSError.

        No more at once than the kernel keeps: who makes them faster than that keeps nobody here.
        """
        stream = self._streams[descriptor]
        data = stream.unended + _drain(descriptor)
        *lines, rest = data.split(b"\n")
        stream.unended = rest if len(rest) <= _MOST_UNENDED else b""
        found = (parse(line.decode(errors="replace"), stream.kfd_id) for line in lines)
        return [event for event in found if event is not None and event.kind in stream.kinds]

    def close(self) -> None:
        """Stop listening."""
        _close((*self._streams, self._kfd))
        self._streams.clear()

    def _of(self, kinds: frozenset[SmiKind]) -> tuple[int, ...]:
        return tuple(one for one, stream in self._streams.items() if stream.kinds == kinds)

    def _listen(self, kfd_id: int, kinds: frozenset[SmiKind]) -> int:
        answer = fcntl.ioctl(self._kfd, _SMI_EVENTS, _ARGUMENTS.pack(kfd_id, 0))
        descriptor: int = _ARGUMENTS.unpack(answer)[1]
        try:
            # The kernel makes it without either.
            os.set_inheritable(descriptor, False)
            os.set_blocking(descriptor, False)
            mask = _ALL_PROCESSES | sum(1 << (kind - 1) for kind in kinds)
            os.write(descriptor, _MASK.pack(mask))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _drain(descriptor: int) -> bytes:
    data = b""
    while len(data) < _READ_BYTES:
        try:
            # Old kernels hand out eight bytes at a time.
            read = os.read(descriptor, _READ_BYTES - len(data))
        except BlockingIOError:
            break
        if not read:
            break
        data += read
    return data


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
