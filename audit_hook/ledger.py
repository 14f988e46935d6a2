# SPDX-License-Identifier: Apache-2.0
"""Reading a container's usage ledger from the node, without trusting the container.

The file is the tenant's to write. What is read here is what the hook in the container says; it can
lie about that container only, and nothing in the file can make the reader fail in another way than
``LedgerError``, block, or take more than the file's fixed size. Layout: docs/hook-files.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LEDGER_NAME = "usage.v1"
MAGIC = 0x3152454744454C52
SLOTS = 1024
GPUS = 64

_HEADER = struct.Struct("<QIIIIQ32x64Q")
_HEADER_BYTES = 4096
_SLOT = struct.Struct("<QQQQ16s16x")
_COUNT = struct.Struct("<QQ")
_SLOTS_AT = _HEADER_BYTES
_COUNTS_AT = _SLOTS_AT + SLOTS * _SLOT.size
LEDGER_BYTES = _COUNTS_AT + GPUS * SLOTS * _COUNT.size

_KEY_USED = 1 << 63
_PCI_MAX = (1 << 48) - 1
_OFD_GETLK = 36
_FLOCK = struct.Struct("hhqqi4x")


class LedgerError(Exception):
    """A ledger that cannot be read; the message names the file and what to do."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process of the container says it holds."""

    slot: int
    pid: int
    """As the container numbers its processes."""
    command: str
    """Printable; what is not is replaced."""
    refusals: int
    alive: bool | None
    """None where nothing asked the kernel."""
    pool_bytes: dict[int, int]
    """By GPU (``pci_key``): bytes taken from ROCr's pools, in whole pages."""
    driver_bytes: dict[int, int]
    """By GPU: bytes of VRAM buffers asked of the driver; 0 where no auditor is loaded."""

    def held(self, gpu: int) -> int:
        """Bytes of one GPU: the larger of the two books, which overlap."""
        return max(self.pool_bytes.get(gpu, 0), self.driver_bytes.get(gpu, 0))


@dataclass(frozen=True, slots=True)
class Ledger:
    """A container's ledger at one moment; counts of several processes may be of slightly others."""

    processes: tuple[ProcessUse, ...]
    tampered: int
    """How often a process found its own entry changed by another."""

    def used(self, gpu: int) -> int:
        """Bytes of one GPU that processes hold which are not known to be dead."""
        return sum(process.held(gpu) for process in self.processes if process.alive is not False)


def _printable(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)


def _columns(keys: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    seen: set[int] = set()
    for column, key in enumerate(keys):
        gpu = key & ~_KEY_USED
        if key & _KEY_USED and gpu <= _PCI_MAX and gpu not in seen:
            seen.add(gpu)
            yield column, gpu


def parse_ledger(content: bytes, alive: Callable[[int], bool] | None = None) -> Ledger:
    """Decode a ledger file's bytes; ``alive`` tells for a slot whether its owner still runs.

    Raises LedgerError for another size, magic or shape. An all-zero file is an empty ledger: the
    node makes it so, and the first process fills it in.
    """
    if len(content) != LEDGER_BYTES:
        raise LedgerError(f"expected {LEDGER_BYTES} bytes, found {len(content)}")
    magic, slots, gpus, high_water, _, tampered, *keys = _HEADER.unpack_from(content)
    if magic == 0:
        return Ledger(processes=(), tampered=0)
    if magic != MAGIC:
        raise LedgerError(f"expected the magic {MAGIC:#x}, found {magic:#x}")
    if (slots, gpus) not in {(SLOTS, GPUS), (0, 0)}:
        raise LedgerError(f"expected {SLOTS} slots of {GPUS} GPUs, found {slots} of {gpus}")
    columns = list(_columns(tuple(keys)))
    processes = []
    for slot in range(min(high_water, SLOTS)):
        owner, _start, _namespace, refusals, command = _SLOT.unpack_from(
            content, _SLOTS_AT + slot * _SLOT.size
        )
        if owner == 0:
            continue
        pool, driver = {}, {}
        for column, gpu in columns:
            at = _COUNTS_AT + (column * SLOTS + slot) * _COUNT.size
            pool[gpu], driver[gpu] = _COUNT.unpack_from(content, at)
        processes.append(
            ProcessUse(
                slot=slot,
                pid=owner & 0xFFFFFFFF,
                command=_printable(command),
                refusals=refusals,
                alive=None if alive is None else alive(slot),
                pool_bytes=pool,
                driver_bytes=driver,
            )
        )
    return Ledger(processes=tuple(processes), tampered=tampered)


def _locked(descriptor: int, slot: int) -> bool:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _SLOTS_AT + slot * _SLOT.size, 1, 0)
    try:
        answer = fcntl.fcntl(descriptor, _OFD_GETLK, request)
    except OSError:
        # A file system without the lock cannot say that the owner is gone.
        return True
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _read_fixed(descriptor: int) -> bytes:
    content = b""
    while len(content) <= LEDGER_BYTES:
        piece = os.pread(descriptor, LEDGER_BYTES + 1 - len(content), len(content))
        if not piece:
            break
        content += piece
    return content


def read_ledger(directory: Path) -> Ledger | None:
    """Read the ledger in a container's directory on the host; None where no process made one.

    Raises LedgerError for anything that is not a ledger: a link, a pipe, another size.
    """
    path = directory / LEDGER_NAME
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "a link" if error.errno == errno.ELOOP else error.strerror
        raise LedgerError(f"{path}: expected a regular file, found {what}; delete it") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LedgerError(f"{path}: expected a regular file, found another kind; delete it")
        return parse_ledger(_read_fixed(descriptor), lambda slot: _locked(descriptor, slot))
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}; the container's processes make a new one") from error
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
