# SPDX-License-Identifier: Apache-2.0
"""Print the HIP calls of a container as it makes them: sizes, results, and how long each took.

A BCC program for people on a node: two probes on each call of the libamdhip64 of the container,
which cost a call 1.6 us, in every process that has the same file loaded; about 130 MB for the
compiler. It holds nothing.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from bpf.libbpf import BpfError
from bpf.tools.manual import CGROUP, CLOCK, CONTAINER, PID, manual
from bpf.tools.probes import compiled, follow, import_bcc, placed, run
from bpf.tools.scope import CGROUP_ROOT, Cgroups, container_of, inside

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_PROC: Final = Path("/proc")
_LIBRARY: Final = "libamdhip64.so"

CALLS: Final = (
    "hipMalloc",
    "hipMallocManaged",
    "hipHostMalloc",
    "hipExtMallocWithFlags",
    "hipMallocAsync",
    "hipFree",
    "hipFreeAsync",
    "hipHostFree",
    "hipMemcpy",
    "hipMemcpyAsync",
    "hipMemset",
    "hipMemGetInfo",
    "hipLaunchKernel",
    "hipModuleLaunchKernel",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
)
"""By number, as in the program; a library that lacks one is watched without it."""


class _Call(ctypes.Structure):
    """``struct call`` of the program."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("cgroup", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("number", ctypes.c_uint32),
        ("result", ctypes.c_int32),
        ("pad", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """A call that has returned."""

    pid: int
    cgroup: str
    call: str
    size: int
    """Bytes; 0 for a call that has no size."""
    microseconds: float
    result: int
    """``hipError_t``; 0 is success."""
    gpu: str = ""


def line(event: Event, clock: str) -> str:
    """One row, below 80 columns."""
    return (
        f"{clock:8} {event.pid:>7} {container_of(event.cgroup):12.12} {event.call:21} "
        f"{event.size or '-':>11} {event.microseconds:>9.0f} {event.result}"
    )


HEADER: Final = f"{'TIME':8} {'PID':>7} {'CONTAINER':12} {'CALL':21} {'BYTES':>11} {'US':>9} R"


_UNSEEN: Final = (
    "a program with HIP linked in, another copy of the library in the same container, what HIP "
    "calls inside itself by another name, and calls that began before it did."
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = manual(
        "hipsnoop",
        "Print HIP calls as they return, with their size in bytes, duration in microseconds (US) "
        "and result (R; 0 is success, 2 out of memory). Name a container or a process that has "
        "libamdhip64 loaded, or the library itself.",
        f"--container {CONTAINER}",
        [HEADER, line(Event(PID, CGROUP, "hipMalloc", 4 << 30, 214, 2), CLOCK)],
        _UNSEEN,
        gpu=False,
    )
    made.add_argument("--library", type=Path, metavar="PATH", help="watch this file instead")
    made.add_argument("--call", metavar="NAME", choices=CALLS, help="this call only")
    return made


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Run until told to stop; 0, or 1 with one line on standard error."""
    options = parser().parse_args(argv)
    return run("hipsnoop", lambda: _trace(options, out or sys.stdout))


def library_of(proc: Path, pid: int) -> Path | None:
    """The libamdhip64 a process has loaded, as a path that leads to it from here."""
    try:
        # Names of files may be no UTF-8.
        lines = (proc / str(pid) / "maps").read_text(errors="surrogateescape").split("\n")[:-1]
    except OSError:
        return None
    for text in lines:
        path = text.split(maxsplit=5)[-1]
        if path.startswith("/") and Path(path).name.startswith(_LIBRARY):
            return proc / str(pid) / "root" / path.removeprefix("/")
    return None


def find_library(options: argparse.Namespace, proc: Path, cgroups: Path) -> Path:
    """The library to watch. Raises BpfError that says what to do where there is none."""
    if options.library is not None:
        if not options.library.is_file():
            raise BpfError(f"{options.library}: no such file")
        return Path(options.library)
    if options.pid is None and options.container is None:
        raise BpfError("name a container (--container), a process (--pid) or a file (--library)")
    pids = [options.pid] if options.pid is not None else sorted(_pids(cgroups, options.container))
    for pid in pids:
        if (library := library_of(proc, pid)) is not None:
            return library
    raise BpfError(
        f"none of {len(pids)} processes has libamdhip64 loaded: start the program first, or name "
        "the file with --library /proc/PID/root/..."
    )


def _pids(root: Path, container: str) -> Iterator[int]:
    for procs in root.rglob("cgroup.procs"):
        if inside(str(procs.parent.relative_to(root)), container):
            try:
                yield from map(int, procs.read_text().split())
            except OSError:  # gone, or a threaded cgroup
                continue


def _trace(options: argparse.Namespace, out: TextIO) -> None:
    bcc = import_bcc()
    library = find_library(options, _PROC, CGROUP_ROOT)
    probe = compiled(bcc, "hipsnoop")
    placed(lambda: _place(bcc, probe, str(library), options.call))
    cgroups = Cgroups(CGROUP_ROOT)

    def read(data: int) -> Event:
        return _event(_Call.from_address(data), cgroups)

    follow(probe, options, read, line, HEADER, out)


def _place(bcc: Any, probe: Any, library: str, only: str | None) -> None:
    exported = {name.decode() for name, _ in bcc.BPF.get_user_functions_and_addresses(
        library, "^hip.*"
    )}  # fmt: skip
    found = [name for name in CALLS if name in exported and only in (None, name)]
    if not found:
        raise BpfError(f"{library} exports none of the calls")
    for name in found:
        number = CALLS.index(name)
        probe.attach_uprobe(name=library, sym=name, fn_name=f"enter_{number}")
        probe.attach_uretprobe(name=library, sym=name, fn_name=f"leave_{number}")


def _event(call: _Call, cgroups: Cgroups) -> Event:
    return Event(
        pid=call.pid,
        cgroup=cgroups.path(call.cgroup),
        call=CALLS[call.number],
        size=call.size,
        microseconds=call.nanoseconds / 1000,
        result=call.result,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
