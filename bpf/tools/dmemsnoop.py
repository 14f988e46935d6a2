# SPDX-License-Identifier: Apache-2.0
"""Print what the dmem controller charges, gives back and refuses, by container.

A BCC program for people on a node. While it runs making and freeing a buffer takes 1.2 times as
long; about 130 MB for the compiler. It holds nothing.
"""

from __future__ import annotations

import ctypes
import errno
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from bpf.libbpf import BpfError
from bpf.tools.manual import CGROUP, CLOCK, GPU, PID, manual
from bpf.tools.probes import compiled, follow, import_bcc, placed, run
from bpf.tools.scope import CGROUP_ROOT, Cgroups, container_of, size_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_OFFSETS: Final = (
    ("dmem_cgroup_region", "name"),
    ("dmem_cgroup_pool_state", "region"),
    ("dmem_cgroup_pool_state", "cs"),
    ("dmemcg_state", "css"),
    ("cgroup_subsys_state", "cgroup"),
    ("cgroup", "kn"),
    ("kernfs_node", "id"),
)


class _Charge(ctypes.Structure):
    """``struct charge`` of the program."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("cgroup", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("region", ctypes.c_char * 40),
        ("comm", ctypes.c_char * 16),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """A charge, tried or given back. A process that gives back may be another than was charged."""

    pid: int
    comm: str
    cgroup: str
    """Whose charge it is."""
    gpu: str
    """PCI address, or the region's whole name where it is no GPU's."""
    size: int
    """Bytes, negative for what is given back."""
    result: str
    """``ok`` or the name of the errno."""


def line(event: Event, clock: str) -> str:
    """One row, 79 columns."""
    return (
        f"{clock:8} {event.pid:>7} {event.comm:15} {container_of(event.cgroup):14} "
        f"{event.gpu:12} {size_text(event.size):>9} {event.result}"
    )


HEADER: Final = f"{'TIME':8} {'PID':>7} {'COMM':15} {'CONTAINER':14} {'GPU':12} {'SIZE':>9} RESULT"


_UNSEEN: Final = (
    "charges that moved no counter: buffers older than the controller in their cgroup, and evicted "
    "HIP buffers brought back, which are charged to the root cgroup and shown there."
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = manual(
        "dmemsnoop",
        "Print each charge (+) of the dmem controller, what is given back (-), and what it "
        "refuses: EAGAIN, upon which the driver evicts, or fails.",
        "--failed",
        [HEADER, line(Event(PID, "vkcube", CGROUP, GPU, 64 << 20, "EAGAIN"), CLOCK)],
        _UNSEEN,
    )
    made.add_argument("--failed", action="store_true", help="refused charges only")
    return made


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Run until told to stop; 0, or 1 with one line on standard error."""
    options = parser().parse_args(argv)
    return run("dmemsnoop", lambda: _trace(options, out or sys.stdout))


def region_gpu(region: str) -> str:
    """The GPU of ``drm/<PCI address>/vram``; any other name as it is."""
    parts = region.split("/")
    return parts[1] if len(parts) == 3 and parts[0] == "drm" else region


def result(error: int) -> str:
    """The name of a kernel function's return value."""
    return errno.errorcode.get(-error, str(error)) if error < 0 else "ok"


def _trace(options: argparse.Namespace, out: TextIO) -> None:
    bcc = import_bcc()
    if bcc.BPF.ksymname("dmem_cgroup_try_charge") == -1:
        raise BpfError(
            "this kernel has no dmem controller: nothing to see (it needs CONFIG_CGROUP_DMEM)"
        )
    probe = compiled(bcc, "dmemsnoop", _OFFSETS)

    def place() -> None:
        probe.attach_kprobe(event="dmem_cgroup_try_charge", fn_name="charge_enter")
        probe.attach_kretprobe(event="dmem_cgroup_try_charge", fn_name="charge_return")
        probe.attach_kprobe(event="dmem_cgroup_uncharge", fn_name="uncharge_enter")

    placed(place)
    cgroups = Cgroups(CGROUP_ROOT)

    def read(data: int) -> Event | None:
        event = _event(_Charge.from_address(data), cgroups)
        return event if event.result != "ok" or not options.failed else None

    follow(probe, options, read, line, HEADER, out)


def _event(charge: _Charge, cgroups: Cgroups) -> Event:
    return Event(
        pid=charge.pid,
        comm=charge.comm.decode(errors="replace"),
        cgroup=cgroups.path(charge.cgroup),
        gpu=region_gpu(charge.region.decode(errors="replace")),
        size=charge.size,
        result=result(charge.error),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
