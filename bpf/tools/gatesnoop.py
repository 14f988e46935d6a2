# SPDX-License-Identifier: Apache-2.0
"""Print the GPU calls that are refused before the driver sees them, with the container they are of.

A BCC program for people on a node. While it runs every ioctl of the machine pays for one more pair
of probes, 1.3 times as long where it is of no GPU; about 130 MB for the compiler. It holds nothing.
"""

from __future__ import annotations

import ctypes
import errno
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from bpf.tools import gpus
from bpf.tools.manual import CGROUP, CLOCK, GPU, PID, manual
from bpf.tools.probes import compiled, follow, import_bcc, placed, run
from bpf.tools.scope import CGROUP_ROOT, Cgroups, container_of, size_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_SYS: Final = Path("/sys")
_HOOKS: Final = ("security_file_ioctl", "security_file_ioctl_compat")
_OFFSETS: Final = (("file", "f_inode"), ("inode", "i_rdev"))
_DRM_MAJOR: Final = 226
_NO_MAJOR: Final = 0xFFFFFFFF
_KFD_CALLS: Final = {0x16: "kfd-alloc", 0x1D: "kfd-import", 0x20: "kfd-svm"}
_DRM_CALLS: Final = {
    0x2E: "prime-import",
    0x40: "gem-create",
    0x50: "gem-op",
    0xB2: "dumb-create",
}


class _Refusal(ctypes.Structure):
    """``struct refusal`` of the program."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("cgroup", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("dev", ctypes.c_uint32),
        ("kfd_id", ctypes.c_uint32),
        ("cmd", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("pad", ctypes.c_uint32),
        ("comm", ctypes.c_char * 16),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """A call that was refused."""

    pid: int
    comm: str
    cgroup: str
    gpu: str
    """PCI address; ``-`` where the call names none that is known."""
    call: str
    size: int | None
    """Bytes asked for; None where the call does not say."""
    error: str
    """Name of the errno: ``ENOMEM`` is the gate's, another one is another security module's."""


def line(event: Event, clock: str) -> str:
    """One row, below 80 columns."""
    size = "-" if event.size is None else size_text(event.size).lstrip("+")
    return (
        f"{clock:8} {event.pid:>7} {event.comm:10.10} {container_of(event.cgroup):12.12} "
        f"{event.gpu:12} {event.call:12} {size:>5} {event.error:.6}"
    )


HEADER: Final = (
    f"{'TIME':8} {'PID':>7} {'COMM':10} {'CONTAINER':12} {'GPU':12} {'CALL':12} {'SIZE':>5} ERRNO"
)


_UNSEEN: Final = (
    "what dmem refuses (dmemsnoop does), what the driver itself refuses, processes killed for "
    "switched arguments, and the GPU of a `kfd-svm`."
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    example = Event(PID, "python3", CGROUP, GPU, "kfd-alloc", 4 << 30, "ENOMEM")
    return manual(
        "gatesnoop",
        "Print GPU calls that the gate (ENOMEM), or another security module, refuses. Why, "
        "`ringfence explain` tells.",
        "",
        [HEADER, line(example, CLOCK)],
        _UNSEEN,
    )


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Run until told to stop; 0, or 1 with one line on standard error."""
    options = parser().parse_args(argv)
    return run("gatesnoop", lambda: _trace(options, out or sys.stdout))


def call_name(dev: int, command: int) -> str:
    """The call, or its number where it is none that makes VRAM."""
    names = _DRM_CALLS if dev >> 20 == _DRM_MAJOR else _KFD_CALLS
    return names.get(command & 0xFF, f"nr {command & 0xFF:#x}")


def _trace(options: argparse.Namespace, out: TextIO) -> None:
    bcc = import_bcc()
    major = gpus.kfd_major(_SYS)
    flags = [f"-DKFD_MAJOR={_NO_MAJOR if major is None else major}U"]
    probe = compiled(bcc, "gatesnoop", _OFFSETS, flags)

    def place() -> None:
        for hook in _HOOKS:
            if bcc.BPF.ksymname(hook) != -1:
                probe.attach_kprobe(event=hook, fn_name="enter")
                probe.attach_kretprobe(event=hook, fn_name="leave")

    placed(place)
    cgroups = Cgroups(CGROUP_ROOT)
    minors, ids = gpus.by_minor(_SYS), gpus.by_kfd_id(_SYS)

    def read(data: int) -> Event:
        return _event(_Refusal.from_address(data), cgroups, minors, ids)

    follow(probe, options, read, line, HEADER, out)


def _event(
    refusal: _Refusal, cgroups: Cgroups, minors: Mapping[int, str], ids: Mapping[int, str]
) -> Event:
    if refusal.dev >> 20 == _DRM_MAJOR:
        gpu = minors.get(refusal.dev & 0xFFFFF, "-")
    else:
        gpu = ids.get(refusal.kfd_id, "-")
    return Event(
        pid=refusal.pid,
        comm=refusal.comm.decode(errors="replace"),
        cgroup=cgroups.path(refusal.cgroup),
        gpu=gpu,
        call=call_name(refusal.dev, refusal.cmd),
        size=refusal.size or None,
        error=errno.errorcode.get(-refusal.error, str(refusal.error)),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
