# SPDX-License-Identifier: Apache-2.0
"""Print VRAM buffers as they are made and freed, with the container they are for.

A BCC program for people on a node: it compiles a small probe there and then, with no kernel
headers installed, and holds nothing. While it runs making and freeing a buffer takes 1.4 times as
long; about 130 MB for the compiler.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from bpf.tools.manual import CGROUP, CLOCK, CONTAINER, GPU, PID, manual
from bpf.tools.probes import compiled, follow, import_bcc, placed, run
from bpf.tools.scope import CGROUP_ROOT, Cgroups, bdf, container_of, size_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_VIA: Final = ("drv", "kfd", "gem", "dumb", "svm", "pt")
_ENTRIES: Final = {
    "kfd_ioctl_alloc_memory_of_gpu": "kfd",
    "amdgpu_gem_create_ioctl": "gem",
    "amdgpu_mode_dumb_create": "dumb",
    "svm_range_vram_node_new": "svm",
}
"""Driver functions that say on whose behalf amdgpu_bo_create is called."""

_OFFSETS: Final = (
    ("amdgpu_device", "pdev"),
    ("amdgpu_bo", "tbo"),
    ("amdgpu_bo_param", "domain"),
    ("amdgpu_bo_param", "type"),
    ("ttm_buffer_object", "base"),
    ("drm_gem_object", "size"),
    ("pci_dev", "bus"),
    ("pci_dev", "devfn"),
    ("pci_bus", "number"),
    ("pci_bus", "sysdata"),
    ("pci_sysdata", "domain"),
)


class _Buffer(ctypes.Structure):
    """``struct buffer`` of the program."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("cgroup", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("gpu", ctypes.c_uint32),
        ("via", ctypes.c_uint32),
        ("freed", ctypes.c_uint32),
        ("comm", ctypes.c_char * 16),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """A buffer made or freed. Freed ones name who made them, whoever frees."""

    pid: int
    comm: str
    cgroup: str
    """Path below the cgroup2 mount, ``id:<number>`` once the cgroup is gone."""
    gpu: str
    """PCI address."""
    size: int
    """Bytes, negative for a free."""
    via: str


def line(event: Event, clock: str) -> str:
    """One row, 76 columns."""
    return (
        f"{clock:8} {event.pid:>7} {event.comm:15} {container_of(event.cgroup):14} "
        f"{event.gpu:12} {size_text(event.size):>10} {event.via}"
    )


HEADER: Final = f"{'TIME':8} {'PID':>7} {'COMM':15} {'CONTAINER':14} {'GPU':12} {'SIZE':>10} VIA"


_UNSEEN: Final = (
    "buffers that were there before it started, nor their ends; buffers asked for in system "
    "memory, also where the driver moves them into VRAM later; and where a buffer lies: one that "
    "was asked for in VRAM and put into system memory is shown as well."
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    example = Event(PID, "python3", CGROUP, GPU, 256 << 20, "kfd")
    made = manual(
        "vramsnoop",
        "Print VRAM buffers as they are made (+) and freed (-). VIA is the driver's way in: kfd "
        "(HIP), gem (graphics), dumb, svm, drv (another), pt (--kernel: page tables).",
        f"--container {CONTAINER}",
        [HEADER, line(example, CLOCK), line(replace(example, size=-example.size), "12:00:03")],
        _UNSEEN,
    )
    made.add_argument("--kernel", action="store_true", help="the driver's own buffers too")
    return made


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Run until told to stop; 0, or 1 with one line on standard error."""
    options = parser().parse_args(argv)
    return run("vramsnoop", lambda: _trace(options, out or sys.stdout))


def attach(flags: Sequence[str] = ()) -> Any:
    """The probe on the driver's functions; ``flags`` are the compiler's. Raises BpfError."""
    bcc = import_bcc()
    probe = compiled(bcc, "vramsnoop", _OFFSETS, flags)

    def place() -> None:
        probe.attach_kprobe(event="amdgpu_bo_create", fn_name="create_enter")
        probe.attach_kretprobe(event="amdgpu_bo_create", fn_name="create_return")
        probe.attach_kprobe(event="amdgpu_bo_destroy", fn_name="destroy_enter")
        for function, via in _ENTRIES.items():
            if bcc.BPF.ksymname(function) != -1:
                probe.attach_kprobe(event=function, fn_name=f"enter_{via}")
                probe.attach_kretprobe(event=function, fn_name="leave")

    placed(place)
    return probe


def _trace(options: argparse.Namespace, out: TextIO) -> None:
    probe = attach()
    cgroups = Cgroups(CGROUP_ROOT)

    def read(data: int) -> Event | None:
        event = _event(_Buffer.from_address(data), cgroups)
        return event if event.via != "pt" or options.kernel else None

    follow(probe, options, read, line, HEADER, out)


def _event(buffer: _Buffer, cgroups: Cgroups) -> Event:
    return Event(
        pid=buffer.pid,
        comm=buffer.comm.decode(errors="replace"),
        cgroup=cgroups.path(buffer.cgroup),
        gpu=bdf(buffer.gpu),
        size=-buffer.size if buffer.freed else buffer.size,
        via=_VIA[buffer.via],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
