# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup of its own choosing that makes the driver's calls word by word.

The static client makes well-formed calls; this one also makes those no library would.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import multiprocessing
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from bpf import call32

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path
    from typing import Self

KFD_ALLOC: Final = 0xC0284B16
KFD_FREE: Final = 0x40084B17
KFD_ACQUIRE_VM: Final = 0x40084B15
KFD_CREATE_QUEUE: Final = 0xC0604B02
KFD_DESTROY_QUEUE: Final = 0xC0084B03
KFD_SET_CU_MASK: Final = 0x40104B1A
QUEUE_AQL: Final = 2
KFD_SVM: Final = 0xC0004B20
"""Without its size, which is that of its attributes."""
SVM_PREFERRED: Final = 0
SVM_PREFETCH: Final = 1
SVM_ACCESS: Final = 2
GEM_CREATE: Final = 0xC0206440
GEM_CLOSE: Final = 0x40086409
GEM_OP: Final = 0xC0186450
PRIME_HANDLE_TO_FD: Final = 0xC00C642D
PRIME_FD_TO_HANDLE: Final = 0xC00C642E
DUMB_CREATE: Final = 0xC02064B2
ALLOC_VRAM: Final = 1 << 0
ALLOC_GTT: Final = 1 << 1
ALLOC_WRITABLE: Final = 1 << 31
ALLOC_AQL: Final = 1 << 27
DOMAIN_GTT: Final = 2
DOMAIN_VRAM: Final = 4
SET_PLACEMENT: Final = 1

_PAGE: Final = 4096
_MAP_LOW: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40  # MAP_32BIT


class Driver:
    """Raw calls. Each returns the arguments as the driver left them; OSError if refused."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        )
        self._files: dict[str, int] = {}
        self._next_va = 1 << 32

    def open(self, path: str) -> None:
        self._files[path] = os.open(path, os.O_RDWR)

    def descriptor(self, path: str) -> int:
        """That of an open file."""
        return self._files[path]

    def call(self, path: str, command: int, arguments: bytes) -> bytes:
        """The call with its arguments in memory that is resident."""
        buffer = ctypes.create_string_buffer(arguments, max(len(arguments), 256))
        return self._call(path, command, buffer)[: len(arguments)]

    def call_unread(self, path: str, command: int, arguments: bytes) -> None:
        """The call with its arguments in a file's page this process has never touched."""
        memory = os.memfd_create("arguments")
        os.write(memory, arguments.ljust(_PAGE, b"\0"))
        window = (ctypes.c_char * _PAGE).from_buffer(mmap.mmap(memory, _PAGE))
        os.close(memory)
        self._call(path, command, window)

    def prime_export(self, path: str, handle: int) -> int:
        """A buffer's dma-buf; its descriptor."""
        arguments = struct.pack("=IIi", handle, os.O_RDWR | os.O_CLOEXEC, -1)
        return int(struct.unpack("=IIi", self.call(path, PRIME_HANDLE_TO_FD, arguments))[2])

    def prime_import(self, path: str, descriptor: int) -> int:
        arguments = struct.pack("=IIi", 0, 0, descriptor)
        return int(struct.unpack("=IIi", self.call(path, PRIME_FD_TO_HANDLE, arguments))[0])

    def take(self, name: str) -> int:
        """A descriptor from whoever gives one at that abstract socket; EACCES if none arrives."""
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("\0" + name)
            listening.listen()
            peer, _ = listening.accept()
            with peer:
                descriptors = socket.recv_fds(peer, 1, 1)[1]
        if not descriptors:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return descriptors[0]

    def give(self, name: str, descriptor: int) -> None:
        """Waits for the taker."""
        with socket.socket(socket.AF_UNIX) as giving:
            while giving.connect_ex("\0" + name):
                time.sleep(0.01)
            socket.send_fds(giving, [b"0"], [descriptor])

    def swap(self, path: str, own: int, others: int, seconds: float) -> int:
        """Import by a descriptor that another thread turns from one file to the other and back.

        Until so many seconds are over; how many imports were refused.
        """
        number = os.dup(own)
        ended = threading.Event()
        refused = 0

        def to_and_fro() -> None:
            while not ended.is_set():
                os.dup2(others, number)
                os.dup2(own, number)

        turning = threading.Thread(target=to_and_fro)
        turning.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.gem_close(path, self.prime_import(path, number))
            except OSError:
                refused += 1
        ended.set()
        turning.join()
        return refused

    def call_nowhere(self, path: str, command: int) -> None:
        """The call with its arguments at an address where nothing is mapped."""
        result = self._libc.ioctl(
            self._files[path], ctypes.c_ulong(command), ctypes.c_void_p(_PAGE)
        )
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def call_read_only(self, path: str, arguments: bytes, command: int = KFD_ALLOC) -> None:
        """The call with its arguments where the driver can read and cannot answer."""
        memory = os.memfd_create("arguments")
        os.write(memory, arguments.ljust(_PAGE, b"\0"))
        address = self._libc.mmap(None, _PAGE, mmap.PROT_READ, mmap.MAP_SHARED, memory, 0)
        os.close(memory)
        ctypes.string_at(address, 1)
        result = self._libc.ioctl(
            self._files[path], ctypes.c_ulong(command), ctypes.c_void_p(address)
        )
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def call_cut_off(self, path: str, arguments: bytes, command: int = KFD_ALLOC) -> None:
        """The call with more arguments, by its word, than lie in the caller's memory."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._libc.mmap(None, 2 * _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if self._libc.mprotect(ctypes.c_void_p(address + _PAGE), ctypes.c_size_t(_PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        at = address + _PAGE - len(arguments)
        ctypes.memmove(at, arguments, len(arguments))
        longer = command & ~(0x3FFF << 16) | 2 * len(arguments) << 16
        result = self._libc.ioctl(self._files[path], ctypes.c_ulong(longer), ctypes.c_void_p(at))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def call32(self, path: str, command: int, arguments: bytes) -> None:
        """The call as a 32-bit process makes it: int $0x80, arguments below 4 GiB."""
        low = self._libc.mmap(
            None, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, _MAP_LOW, -1, 0
        )
        ctypes.memmove(low, call32.CODE, len(call32.CODE))
        ctypes.memmove(low + _PAGE // 2, arguments, len(arguments))
        function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 3)(low)
        result = function(self._files[path], command, low + _PAGE // 2)
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def switch(self, path: str, sizes: tuple[int, int], calls: int) -> int:
        """Create buffers while another thread switches the size to and fro; how many were made."""
        arguments = ctypes.create_string_buffer(struct.pack("=QQQQ", sizes[0], 0, DOMAIN_VRAM, 0))
        size = ctypes.c_uint64.from_buffer(arguments)
        domains = ctypes.c_uint64.from_buffer(arguments, 16)
        ended = threading.Event()

        def to_and_fro() -> None:
            while not ended.is_set():
                size.value, domains.value = sizes[0], DOMAIN_VRAM
                size.value = sizes[1]

        switching = threading.Thread(target=to_and_fro)
        switching.start()
        made = 0
        for _ in range(calls):
            domains.value = DOMAIN_VRAM
            with contextlib.suppress(OSError):
                self._call(path, GEM_CREATE, arguments)
                made += 1
        ended.set()
        switching.join()
        return made

    def _call(self, path: str, command: int, memory: ctypes.Array[ctypes.c_char]) -> bytes:
        result = self._libc.ioctl(
            self._files[path], ctypes.c_ulong(command), ctypes.c_void_p(ctypes.addressof(memory))
        )
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return memory.raw

    def acquire(self, render: str, kfd_id: int) -> None:
        self.call("/dev/kfd", KFD_ACQUIRE_VM, struct.pack("=II", self._files[render], kfd_id))

    def kfd_alloc(
        self, kfd_id: int, size: int, flags: int = ALLOC_VRAM, command: int = KFD_ALLOC
    ) -> int:
        arguments = self.kfd_arguments(kfd_id, size, flags)
        return int(struct.unpack_from("=Q", self.call("/dev/kfd", command, arguments), 16)[0])

    def kfd_arguments(self, kfd_id: int, size: int, flags: int = ALLOC_VRAM) -> bytes:
        self._next_va += 1 << 36
        return struct.pack("=QQQQII", self._next_va, size, 0, 0, kfd_id, flags | ALLOC_WRITABLE)

    def create_queue(self, kfd_id: int, kind: int = QUEUE_AQL) -> int:
        """Its number."""
        ring = self.memory(_PAGE)
        arguments = struct.pack("=QQQQ", ring, ring, ring + 8, 0)
        arguments += struct.pack("=IIIIII", _PAGE, kfd_id, kind, 100, 7, 0) + bytes(40)
        made = self.call("/dev/kfd", KFD_CREATE_QUEUE, arguments)
        return int(struct.unpack_from("=I", made, 52)[0])

    def destroy_queue(self, queue: int) -> None:
        self.call("/dev/kfd", KFD_DESTROY_QUEUE, struct.pack("=II", queue, 0))

    def set_cu_mask(self, queue: int, mask: int, bits: int = 64) -> None:
        words = ctypes.create_string_buffer(mask.to_bytes(bits // 8, "little"), bits // 8)
        arguments = struct.pack("=IIQ", queue, bits, ctypes.addressof(words))
        self.call("/dev/kfd", KFD_SET_CU_MASK, arguments)

    def memory(self, size: int) -> int:
        """Fresh memory of this process, aligned to 2 MiB; its address."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        room = size + (2 << 20)
        address = self._libc.mmap(None, room, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        return int(address + (-address % (2 << 20)))

    def svm(self, address: int, size: int, attributes: list[tuple[int, int]]) -> None:
        """Set (attribute, value) of a range of this process's memory."""
        arguments = struct.pack("=QQII", address, size, 0, len(attributes))
        arguments += b"".join(struct.pack("=II", *pair) for pair in attributes)
        self.call("/dev/kfd", KFD_SVM | len(arguments) << 16, arguments)

    def kfd_free(self, handle: int) -> None:
        self.call("/dev/kfd", KFD_FREE, struct.pack("=Q", handle))

    def gem_create(
        self, path: str, size: int, domains: int = DOMAIN_VRAM, command: int = GEM_CREATE
    ) -> int:
        arguments = struct.pack("=QQQQ", size, 0, domains, 0)
        return int(struct.unpack_from("=I", self.call(path, command, arguments))[0])

    def gem_close(self, path: str, handle: int) -> None:
        self.call(path, GEM_CLOSE, struct.pack("=II", handle, 0))

    def set_placement(self, path: str, handle: int, domains: int) -> None:
        self.call(path, GEM_OP, struct.pack("=IIQII", handle, SET_PLACEMENT, domains, 0, 0))

    def dumb_create(self, path: str, width: int, height: int, bpp: int) -> int:
        arguments = struct.pack("=IIIIIIQ", height, width, bpp, 0, 0, 0, 0)
        return int(struct.unpack_from("=I", self.call(path, DUMB_CREATE, arguments), 16)[0])

    def storm(self, path: str, calls: int) -> int:
        """So many creations of one page, as fast as they go; how many were refused."""
        refused = 0
        for _ in range(calls):
            try:
                self.gem_create(path, _PAGE)
            except OSError:
                refused += 1
        return refused

    def churn(self, path: str, kfd_id: int, size: int, rounds: int) -> None:
        """So many times a buffer of each driver, made and freed, as fast as it goes."""
        for _ in range(rounds):
            self.gem_close(path, self.gem_create(path, size))
            self.kfd_free(self.kfd_alloc(kfd_id, size))

    def race(self, path: str, size: int, threads: int) -> int:
        """So many threads ask for one buffer each at once; how many got one."""
        got: list[int] = []
        start = threading.Barrier(threads)

        def ask() -> None:
            start.wait()
            with contextlib.suppress(OSError):
                got.append(self.gem_create(path, size))

        asking = [threading.Thread(target=ask) for _ in range(threads)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        return len(got)


class Caller:
    """A process in ``cgroup`` with a Driver; ``caller.do("kfd_alloc", ...)``."""

    def __init__(self, cgroup: Path) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, cgroup))
        self._process.start()
        theirs.close()
        assert self._connection.recv() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def do(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What the Driver's method returns. Raises its OSError."""
        self._connection.send((method, arguments, named))
        outcome, value = self._connection.recv()
        if outcome == "error":
            raise OSError(value, os.strerror(value))
        return value

    def refused(self, method: str, *arguments: Any, **named: Any) -> str:
        """Name of the errno the method ends with, "" if it succeeds."""
        try:
            self.do(method, *arguments, **named)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return ""

    def kill(self) -> None:
        """SIGKILL, waited for."""
        self._process.kill()
        self._process.join()

    def end(self) -> None:
        """An orderly exit, waited for; harmless if it has ended."""
        if not self._connection.closed:
            with contextlib.suppress(BrokenPipeError):
                self._connection.send(None)
            self._process.join(60)
            self._connection.close()


def _serve(connection: Connection, cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    driver = Driver()
    connection.send("ready")
    while (request := connection.recv()) is not None:
        method, arguments, named = request
        try:
            connection.send(("ok", getattr(driver, method)(*arguments, **named)))
        except OSError as error:
            connection.send(("error", error.errno))
