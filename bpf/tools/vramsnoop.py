# SPDX-License-Identifier: Apache-2.0
"""Print VRAM buffers as they are made and freed, with the container they are for.

A BCC program for people on a node: it compiles a small probe there and then, with no kernel
headers installed, and holds nothing. Costs some 2 us per buffer made or freed while it runs, and
about 130 MB for the compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from bpf.btf import KernelTypes
from bpf.libbpf import BpfError, Libbpf

if TYPE_CHECKING:
    from collections.abc import Sequence

_TREE: Final = Path(__file__).parent
"""Stands in for a kernel source tree: BCC looks for its ``include``."""

_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_CONTAINER_ID: Final = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?(?=/|$)")
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

_PROGRAM: Final = Path(__file__).with_suffix(".c")


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


class Cgroups:
    """Paths of cgroups by id, which is the inode number of the directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[int, str] = {}

    def path(self, cgroup: int) -> str:
        """Below the root, without a leading slash; ``id:<number>`` if there is none (any more)."""
        if cgroup not in self._paths:
            self._walk()
        return self._paths.setdefault(cgroup, f"id:{cgroup}")

    def _walk(self) -> None:
        for directory, _, _ in os.walk(self._root):
            try:
                number = Path(directory).stat().st_ino
            except OSError:  # removed under the walk
                continue
            self._paths[number] = str(Path(directory).relative_to(self._root))


def container_of(path: str) -> str:
    """What to call a cgroup in 14 columns: the container's short id, or the last of its path."""
    found = _CONTAINER_ID.findall(path)
    return found[-1][:12] if found else path.rsplit("/", 1)[-1][-14:]


def wanted(event: Event, options: argparse.Namespace) -> bool:
    """Whether the filters let it through."""
    if options.pid is not None and event.pid != options.pid:
        return False
    if options.gpu is not None and event.gpu != options.gpu:
        return False
    if options.container is None:
        return True
    path = options.container.strip("/")
    return (
        event.cgroup == path
        or event.cgroup.startswith(path + "/")
        or any(number.startswith(path) for number in _CONTAINER_ID.findall(event.cgroup))
    )


def size_text(size: int) -> str:
    """Signed, in the largest unit that loses nothing: ``+256M``, ``-4K``."""
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift:+d}{unit}"
    return f"{size:+d}"


def line(event: Event, clock: str) -> str:
    """One row, 76 columns."""
    return (
        f"{clock:8} {event.pid:>7} {event.comm:15} {container_of(event.cgroup):14} "
        f"{event.gpu:12} {size_text(event.size):>10} {event.via}"
    )


HEADER: Final = f"{'TIME':8} {'PID':>7} {'COMM':15} {'CONTAINER':14} {'GPU':12} {'SIZE':>10} VIA"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="vramsnoop",
        description="Print VRAM buffers as they are made (+) and freed (-). VIA is the driver's "
        "way in: kfd (HIP), gem (graphics), dumb, svm, drv (another), pt (--kernel: page tables).",
    )
    made.add_argument("--container", metavar="ID|PATH", help="container id, or cgroup path")
    made.add_argument("--pid", type=int)
    made.add_argument("--gpu", metavar="BDF", help="PCI address, as in 0000:c1:00.0")
    made.add_argument("--kernel", action="store_true", help="the driver's own buffers too")
    made.add_argument("--duration", type=float, metavar="S", help="stop after so many seconds")
    made.add_argument("--count", type=int, metavar="N", help="stop after so many lines")
    return made


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Run until told to stop; 0, or 1 with one line on standard error."""
    options = parser().parse_args(argv)
    try:
        _trace(options, out or sys.stdout)
    except BpfError as error:
        print(f"vramsnoop: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    return 0


def _trace(options: argparse.Namespace, out: TextIO) -> None:
    probe = _attach(_import_bcc())
    cgroups = Cgroups(_CGROUP_ROOT)
    printed = 0

    def take(_context: object, data: int, _size: int) -> None:
        nonlocal printed
        event = _event(_Buffer.from_address(data), cgroups)
        if event.via == "pt" and not options.kernel:
            return
        if wanted(event, options) and (options.count is None or printed < options.count):
            print(line(event, time.strftime("%H:%M:%S")), file=out, flush=True)
            printed += 1

    probe["events"].open_ring_buffer(take)
    print(HEADER, file=out, flush=True)
    end = None if options.duration is None else time.monotonic() + options.duration
    while (options.count is None or printed < options.count) and (
        end is None or time.monotonic() < end
    ):
        probe.ring_buffer_poll(100)
    lost = sum(value.value for value in probe["lost"].values())
    if lost:
        print(f"vramsnoop: {lost} events lost, more than could be printed", file=sys.stderr)


def _event(buffer: _Buffer, cgroups: Cgroups) -> Event:
    return Event(
        pid=buffer.pid,
        comm=buffer.comm.decode(errors="replace"),
        cgroup=cgroups.path(buffer.cgroup),
        gpu=f"{buffer.gpu >> 16:04x}:{buffer.gpu >> 8 & 0xFF:02x}"
        f":{buffer.gpu >> 3 & 0x1F:02x}.{buffer.gpu & 7}",
        size=-buffer.size if buffer.freed else buffer.size,
        via=_VIA[buffer.via],
    )


def _import_bcc() -> Any:
    try:
        import bcc  # noqa: PLC0415 74 MB that only this tool needs
    except ImportError as error:
        raise BpfError(
            f"BCC's Python module is missing ({error}): install the package python3-bpfcc "
            "(Debian, Ubuntu), python3-bcc (Fedora, RHEL) or python-bcc (Arch), in a Python that "
            "sees the system's packages"
        ) from None
    return bcc


def _attach(bcc: Any) -> Any:
    with KernelTypes(Libbpf()) as types:
        offsets = [
            f"-D{structure.upper()}_{member.upper()}={types.offset(structure, member)}"
            for structure, member in _OFFSETS
        ]
    os.environ["BCC_KERNEL_SOURCE"] = str(_TREE)
    try:
        probe = bcc.BPF(src_file=str(_PROGRAM), cflags=[f"-I{_TREE / 'include'}", *offsets])
        probe.attach_kprobe(event="amdgpu_bo_create", fn_name="create_enter")
        probe.attach_kretprobe(event="amdgpu_bo_create", fn_name="create_return")
        probe.attach_kprobe(event="amdgpu_bo_destroy", fn_name="destroy_enter")
        for function, via in _ENTRIES.items():
            if bcc.BPF.ksymname(function) != -1:
                probe.attach_kprobe(event=function, fn_name=f"enter_{via}")
                probe.attach_kretprobe(event=function, fn_name="leave")
    except Exception as error:  # BCC raises the bare class
        raise BpfError(f"cannot place the probes: {' '.join(str(error).split())}") from None
    return probe


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
