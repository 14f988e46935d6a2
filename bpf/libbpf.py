# SPDX-License-Identifier: Apache-2.0
"""libbpf through ctypes: just the calls we make, typed, and its own words when one fails.

libbpf ships with every distribution and needs no compiler; its ABI is stable within ``.so.1``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import contextmanager, suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LIBRARY: Final = "libbpf.so.1"
_LEVEL_DEBUG: Final = 2
_ORDINARY: Final = frozenset({os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE})
_BURST: Final = 64
"""Entries read in one go before other tasks get the CPU."""
_LOG_LINES: Final = 40
"""Enough of libbpf's log to hold the verifier's last words."""


class BpfError(Exception):
    """A BPF operation failed; the message is one line with what libbpf or the kernel said."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number
        """The kernel's errno, where it gave one."""


@contextmanager
def unpreempted() -> Iterator[bool]:
    """Map system calls inside are not interrupted by ordinary tasks; whether that is so.

    The kernel runs no kprobe program on a CPU while a task there is inside such a call
    (``bpf_disable_instrumentation()``): one that is preempted in it would make the ledger of
    probes blind until it runs again. Without the right to real-time scheduling (CAP_SYS_NICE)
    nothing changes, and ``calls_missed`` tells of what went by.
    """
    before = os.sched_getscheduler(0)
    ours = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    raised = False
    ordinary = before in _ORDINARY
    if ordinary:
        with suppress(PermissionError):
            os.sched_setscheduler(0, ours, os.sched_param(1))
            raised = True
    try:
        yield raised or not ordinary
    finally:
        if raised:
            os.sched_setscheduler(0, before, os.sched_param(0))


class _OpenOpts(ctypes.Structure):
    """The first members of ``struct bpf_object_open_opts``; libbpf goes by ``sz``."""

    _fields_ = (
        ("sz", c_size_t),
        ("object_name", c_char_p),
        ("relaxed_maps", ctypes.c_bool),
        ("pin_root_path", c_char_p),
    )


class _MapInfo(ctypes.Structure):
    """The first members of ``struct bpf_map_info`` (include/uapi/linux/bpf.h)."""

    _fields_ = (
        ("type", c_uint32),
        ("id", c_uint32),
        ("key_size", c_uint32),
        ("value_size", c_uint32),
        ("max_entries", c_uint32),
        ("map_flags", c_uint32),
        ("name", ctypes.c_char * 16),
    )


class _LinkInfo(ctypes.Structure):
    """``struct bpf_link_info``, with what follows in the link of a kprobe."""

    _fields_ = (
        ("type", c_uint32),
        ("id", c_uint32),
        ("prog_id", c_uint32),
        ("pad", c_uint32),
        ("event", c_uint32),
        ("between", ctypes.c_char * 28),
        ("missed", c_uint64),
    )


_LINK_PERF_EVENT: Final = 7
_EVENT_KPROBE: Final = 3


class _RunOpts(ctypes.Structure):
    """``struct bpf_test_run_opts`` of libbpf 1.0."""

    _fields_ = (
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    )


class _ProgramInfo(ctypes.Structure):
    """``struct bpf_prog_info`` up to what we read, since Linux 5.12."""

    _fields_ = (
        ("type", c_uint32),
        ("id", c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("between", ctypes.c_char * 192),
        ("recursion_misses", c_uint64),
    )


_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
_SAMPLE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "bpf_obj_get": (c_int, (c_char_p,)),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_void_p, POINTER(c_uint32))),
    "bpf_prog_get_fd_by_id": (c_int, (c_uint32,)),
    "bpf_prog_test_run_opts": (c_int, (c_int, POINTER(_RunOpts))),
    "bpf_map_lookup_elem": (c_int, (c_int, c_char_p, c_char_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_char_p, c_char_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_char_p)),
    "bpf_map_get_next_key": (c_int, (c_int, c_char_p, c_char_p)),
    "bpf_object__open_file": (c_void_p, (c_char_p, POINTER(_OpenOpts))),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__find_map_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_map__set_initial_value": (c_int, (c_void_p, c_void_p, c_size_t)),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__section_name": (c_char_p, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, ctypes.c_bool)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_program__pin": (c_int, (c_void_p, c_char_p)),
    "bpf_link__pin": (c_int, (c_void_p, c_char_p)),
    "bpf_link__destroy": (c_int, (c_void_p,)),
    "btf__load_vmlinux_btf": (c_void_p, ()),
    "btf__load_module_btf": (c_void_p, (c_char_p, c_void_p)),
    "btf__find_by_name_kind": (c_int, (c_void_p, c_char_p, c_uint32)),
    "btf__type_by_id": (c_void_p, (c_void_p, c_uint32)),
    "btf__name_by_offset": (c_char_p, (c_void_p, c_uint32)),
    "btf__free": (None, (c_void_p,)),
    "libbpf_set_print": (c_void_p, (c_void_p,)),
    "libbpf_num_possible_cpus": (c_int, ()),
    "ring_buffer__new": (c_void_p, (c_int, _SAMPLE, c_void_p, c_void_p)),
    "ring_buffer__consume": (c_int, (c_void_p,)),
    "ring_buffer__epoll_fd": (c_int, (c_void_p,)),
    "ring_buffer__free": (None, (c_void_p,)),
}


class Libbpf:
    """The loaded library. Failing calls raise BpfError with ``what`` and libbpf's own words."""

    def __init__(self, name: str = _LIBRARY) -> None:
        try:
            self.lib = ctypes.CDLL(name, use_errno=True)
            self._libc = ctypes.CDLL(None)
            for symbol, (result, arguments) in _SIGNATURES.items():
                function = getattr(self.lib, symbol)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise BpfError(
                f"{name}: {error}; expected libbpf 1.0 or newer (package libbpf1, libbpf)"
            ) from None
        self._libc.vsnprintf.argtypes = (c_void_p, c_size_t, c_char_p, c_void_p)
        self._log: list[str] = []
        self._print = _PRINT(self._record)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take what libbpf prints meanwhile as the reason of a failure.

        Its printer is one per process, so it is ours only inside: it must not outlive us.
        """
        self._log = []
        before = self.lib.libbpf_set_print(ctypes.cast(self._print, c_void_p))
        try:
            yield
        finally:
            self.lib.libbpf_set_print(before)

    def _record(self, level: int, form: bytes, values: int) -> int:
        if level < _LEVEL_DEBUG:
            buffer = ctypes.create_string_buffer(8192)
            self._libc.vsnprintf(buffer, len(buffer), form, values)
            lines = buffer.value.decode(errors="replace").splitlines()
            self._log = [*self._log, *(line for line in lines if line.strip())][-_LOG_LINES:]
        return 0

    def failure(self, what: str, code: int) -> BpfError:
        """An error that carries what libbpf has logged since the last call began."""
        said = [line.removeprefix("libbpf: ").strip() for line in self._log]
        # The verifier's statistics and the lines around its log say nothing of the cause.
        said = [line for line in said if not line.startswith(("processed ", "-- ", "0:"))]
        reason = "; ".join(said[-3:])
        self._log = []
        said_why = f" ({reason})" if reason else ""
        return BpfError(f"{what}: {os.strerror(code)}{said_why}", code)

    def _pointer(self, what: str, pointer: int | None) -> int:
        if not pointer:
            raise self.failure(what, ctypes.get_errno())
        return pointer

    def _check(self, what: str, result: int) -> int:
        if result < 0:
            raise self.failure(what, -result)
        return result

    # Objects and programs

    def open_object(self, path: Path, pin_root: Path) -> int:
        """A BPF object whose maps are, or will be, pinned below ``pin_root``."""
        if not path.is_file():
            raise BpfError(f"{path}: no such BPF object; `make generate` builds it")
        options = _OpenOpts(ctypes.sizeof(_OpenOpts), None, False, os.fsencode(pin_root))
        with self.listening():
            return self._pointer(
                f"{path}: not a BPF object we can open",
                self.lib.bpf_object__open_file(os.fsencode(path), byref(options)),
            )

    def set_constant(self, opened: int, section: str, value: bytes) -> None:
        """The content of a constant section, before loading."""
        what = f"BPF object without a section {section}"
        with self.listening():
            found = self.lib.bpf_object__find_map_by_name(opened, section.encode())
            self._check(
                what,
                self.lib.bpf_map__set_initial_value(self._pointer(what, found), value, len(value)),
            )

    def load_object(self, opened: int, what: str) -> None:
        """Through the verifier, maps pinned."""
        with self.listening():
            self._check(f"{what}: not accepted by the kernel", self.lib.bpf_object__load(opened))

    def close_object(self, opened: int) -> None:
        """What is pinned stays."""
        self.lib.bpf_object__close(opened)

    def programs(self, opened: int) -> Iterator[tuple[int, str, str]]:
        """(handle, name, section) of every program."""
        program = self.lib.bpf_object__next_program(opened, None)
        while program:
            yield (
                program,
                self.lib.bpf_program__name(program).decode(),
                self.lib.bpf_program__section_name(program).decode(),
            )
            program = self.lib.bpf_object__next_program(opened, program)

    def skip_program(self, program: int) -> None:
        """Leave it out of loading."""
        self._check("bpf_program__set_autoload", self.lib.bpf_program__set_autoload(program, False))

    def attach_pinned(self, program: int, name: str, path: Path) -> None:
        """Attach, and pin the link so that it outlives us."""
        with self.listening():
            link = self._pointer(f"{name}: cannot attach", self.lib.bpf_program__attach(program))
            try:
                self._check(f"{path}: cannot pin", self.lib.bpf_link__pin(link, os.fsencode(path)))
            finally:
                self.lib.bpf_link__destroy(link)

    def pin_program(self, program: int, path: Path) -> None:
        """Keep it, attached to nothing, so that ``run`` can be asked of it."""
        with self.listening():
            self._check(
                f"{path}: cannot pin", self.lib.bpf_program__pin(program, os.fsencode(path))
            )

    def run(self, path: Path, *arguments: int) -> int:
        """What the pinned raw tracepoint program returns, run once now with these arguments."""
        fd = self._check(f"{path}: cannot open", self.lib.bpf_obj_get(os.fsencode(path)))
        try:
            given = (c_uint64 * len(arguments))(*arguments)
            options = _RunOpts(sz=ctypes.sizeof(_RunOpts))
            options.ctx_in = ctypes.cast(given, c_void_p)
            options.ctx_size_in = ctypes.sizeof(given)
            self._check(f"{path}: cannot run", self.lib.bpf_prog_test_run_opts(fd, byref(options)))
        finally:
            os.close(fd)
        return int(options.retval)

    def calls_missed(self, link: Path) -> int:
        """Calls the kernel made without running the program of this pinned link.

        It passes over a program that is already running on the same CPU, and over those of kprobes
        also while a task was preempted there that is inside a map. Kernels before 6.7 do not count
        what a kprobe misses.
        """
        linked, program = self._behind(link)
        probe = linked.type == _LINK_PERF_EVENT and linked.event == _EVENT_KPROBE
        return int(program.recursion_misses) + (int(linked.missed) if probe else 0)

    def program_tag(self, pin: Path, *, linked: bool = True) -> str:
        """The kernel's digest of the code of a pinned program, or of the one behind a link."""
        if linked:
            return bytes(self._behind(pin)[1].tag).hex()
        fd = self._check(f"{pin}: cannot open", self.lib.bpf_obj_get(os.fsencode(pin)))
        try:
            return bytes(self._program_info(fd).tag).hex()
        finally:
            os.close(fd)

    def program_id(self, link: Path) -> int:
        """The kernel's number of the program behind a pinned link."""
        return int(self._behind(link)[0].prog_id)

    def open_program(self, number: int) -> int:
        """File descriptor of a program by its number; the caller closes it."""
        return self._check(f"program {number}", self.lib.bpf_prog_get_fd_by_id(number))

    def _behind(self, link: Path) -> tuple[_LinkInfo, _ProgramInfo]:
        """What the kernel says of a pinned link, and of its program."""
        linked = _LinkInfo()
        fd = self._check(f"{link}: cannot open", self.lib.bpf_obj_get(os.fsencode(link)))
        try:
            self._info(fd, linked)
        finally:
            os.close(fd)
        fd = self.open_program(linked.prog_id)
        try:
            return linked, self._program_info(fd)
        finally:
            os.close(fd)

    def _program_info(self, fd: int) -> _ProgramInfo:
        program = _ProgramInfo()
        self._info(fd, program)
        return program

    def _info(self, fd: int, info: ctypes.Structure) -> None:
        size = c_uint32(ctypes.sizeof(info))
        self._check(
            "bpf_obj_get_info_by_fd", self.lib.bpf_obj_get_info_by_fd(fd, byref(info), byref(size))
        )

    # Maps

    def open_pinned(self, path: Path) -> int:
        """File descriptor of a pinned map; the caller closes it."""
        return self._check(
            f"{path}: cannot open the pinned map", self.lib.bpf_obj_get(os.fsencode(path))
        )

    def map_number(self, path: Path) -> int:
        """The kernel's number of a pinned map."""
        fd = self.open_pinned(path)
        try:
            info = _MapInfo()
            self._info(fd, info)
        finally:
            os.close(fd)
        return int(info.id)

    def map_sizes(self, fd: int) -> tuple[int, int, int]:
        """(key bytes, value bytes, entries)."""
        info = _MapInfo()
        self._info(fd, info)
        return info.key_size, info.value_size, info.max_entries

    def lookup(self, fd: int, key: bytes, size: int) -> bytes | None:
        """The value, or None if there is no such key."""
        with unpreempted():
            return self._lookup(fd, key, size)

    def _lookup(self, fd: int, key: bytes, size: int) -> bytes | None:
        value = ctypes.create_string_buffer(size)
        result = self.lib.bpf_map_lookup_elem(fd, key, value)
        if result == -errno.ENOENT:
            return None
        self._check("map lookup", result)
        return value.raw

    def update(self, fd: int, key: bytes, value: bytes, what: str) -> None:
        """Add or replace; a full map is an error that says so."""
        with unpreempted():
            result = self.lib.bpf_map_update_elem(fd, key, value, 0)
        if result == -errno.E2BIG:
            raise BpfError(f"{what}: the map is full", errno.E2BIG)
        self._check(what, result)

    def delete(self, fd: int, key: bytes) -> bool:
        """False if there was no such key."""
        with unpreempted():
            result = self.lib.bpf_map_delete_elem(fd, key)
        if result == -errno.ENOENT:
            return False
        self._check("map delete", result)
        return True

    def walk(
        self, fd: int, key_size: int, value_size: int, most: int
    ) -> Iterator[tuple[bytes, bytes]]:
        """Each key with its value, some perhaps again; others may come and go meanwhile.

        A key that is deleted under the walk sends the kernel back to the first one, so the walk is
        bounded. Nothing is kept of what was seen: a map can have a million entries.
        """
        following = ctypes.create_string_buffer(key_size)
        key: bytes | None = None
        for _ in range(0, 4 * most + 16, _BURST):
            found: list[tuple[bytes, bytes]] = []
            with unpreempted():
                for _ in range(_BURST):
                    result = self.lib.bpf_map_get_next_key(fd, key, following)
                    if result == -errno.ENOENT:
                        break
                    self._check("map walk", result)
                    key = following.raw
                    value = self._lookup(fd, key, value_size)
                    if value is not None:
                        found.append((key, value))
            yield from found
            if result == -errno.ENOENT:
                return

    def possible_cpus(self) -> int:
        """How many values a per-CPU map holds for each key."""
        return self._check("possible CPUs", self.lib.libbpf_num_possible_cpus())

    def ring_buffer(self, fd: int) -> RingBuffer:
        """A reader of a ring buffer map; there must be only one at a time."""
        with self.listening():
            return RingBuffer(self.lib, fd, self.failure)


class RingBuffer:
    """Records of a ring buffer, oldest first."""

    def __init__(self, lib: ctypes.CDLL, fd: int, fail: Callable[[str, int], BpfError]) -> None:
        self._lib = lib
        self._records: list[bytes] = []
        self._callback = _SAMPLE(self._take)
        self._ring = lib.ring_buffer__new(fd, self._callback, None, None)
        if not self._ring:
            raise fail("ring buffer", ctypes.get_errno())

    def _take(self, _context: int, data: int, size: int) -> int:
        self._records.append(ctypes.string_at(data, size))
        return 0

    def fileno(self) -> int:
        """Readable (select, epoll) when there is something to take."""
        return int(self._lib.ring_buffer__epoll_fd(self._ring))

    def take(self) -> list[bytes]:
        """All that is there now, without waiting."""
        self._lib.ring_buffer__consume(self._ring)
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        """The map stays."""
        if self._ring:
            self._lib.ring_buffer__free(self._ring)
            self._ring = None
