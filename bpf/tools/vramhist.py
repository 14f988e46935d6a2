# SPDX-License-Identifier: Apache-2.0
"""Count VRAM buffers by size and container, and draw a histogram of each at the end.

It counts in the kernel, so nothing is lost at any rate. While it runs making and freeing a buffer
takes 1.5 times as long; about 130 MB for the compiler.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TextIO

from bpf.tools.manual import CONTAINER, GPU, manual
from bpf.tools.probes import run
from bpf.tools.scope import CGROUP_ROOT, Cgroups, bdf, container_of, inside, printable
from bpf.tools.vramsnoop import attach

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

_STARS: Final = 40
_UNITS: Final = ("", "K", "M", "G", "T")

Counts = dict[tuple[int, int], dict[int, int]]
"""(cgroup, GPU) -> exponent of the size class -> buffers."""


class _Class(ctypes.Structure):
    """``struct size_class`` of the program."""

    _fields_ = (
        ("cgroup", ctypes.c_uint64),
        ("gpu", ctypes.c_uint32),
        ("log2", ctypes.c_uint32),
    )


_UNSEEN: Final = "what vramsnoop does not, and no page tables."


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return manual(
        "vramhist",
        "Count VRAM buffers made, by size and container, until Ctrl-C, --duration or --count; then "
        "draw a histogram for each container.",
        "--duration 10",
        drawn(CONTAINER, GPU, {12: 257, 13: 31}),
        _UNSEEN,
    )


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Run until told to stop; 0, or 1 with one line on standard error."""
    options = parser().parse_args(argv)
    return run("vramhist", lambda: _trace(options, out or sys.stdout))


def drawn(container: str, gpu: str, counts: Mapping[int, int]) -> Iterator[str]:
    """What is printed of one container on one GPU."""
    yield f"{container} on {gpu}: {sum(counts.values())} buffers"
    yield from histogram(counts)


def histogram(counts: Mapping[int, int]) -> Iterator[str]:
    """One row per size class from the smallest to the largest, those between without any too."""
    most = max(counts.values())
    for exponent in range(min(counts), max(counts) + 1):
        count = counts.get(exponent, 0)
        stars = "*" * -(-count * _STARS // most)
        span = f"{size(exponent)} - {size(exponent + 1)}"
        yield f"  {span:>15} {count:>9} |{stars:<{_STARS}}|"


def size(exponent: int) -> str:
    """A power of two in the largest unit."""
    return f"{1 << exponent % 10}{_UNITS[exponent // 10]}"


def _trace(options: argparse.Namespace, out: TextIO) -> None:
    flags = ["-DHISTOGRAM"] + ([f"-DONLY_PID={options.pid}"] if options.pid is not None else [])
    probe = attach(flags)
    cgroups = Cgroups(CGROUP_ROOT)
    print("counting VRAM buffers, Ctrl-C draws them", file=out, flush=True)
    end = None if options.duration is None else time.monotonic() + options.duration
    try:
        while end is None or time.monotonic() < end:
            if (
                options.count is not None
                and _total(_read(probe, cgroups, options)) >= options.count
            ):
                break
            time.sleep(0.1)
    except KeyboardInterrupt:
        pass
    counts = _read(probe, cgroups, options)
    for (cgroup, gpu), sizes in sorted(counts.items()):
        name = printable(container_of(cgroups.path(cgroup)))
        print("", *drawn(name, bdf(gpu), sizes), sep="\n", file=out, flush=True)
    lost = sum(value.value for value in probe["lost"].values())
    if lost:
        print(f"{lost} buffers not counted, too many containers", file=sys.stderr)


def _read(probe: Any, cgroups: Cgroups, options: argparse.Namespace) -> Counts:
    counts: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for key, count in probe["sizes"].items():
        one = _Class.from_buffer_copy(key)
        if options.gpu is not None and bdf(one.gpu) != options.gpu:
            continue
        path = cgroups.path(one.cgroup)
        if options.container is None or inside(path, options.container):
            counts[one.cgroup, one.gpu][one.log2] = count.value
    return counts


def _total(counts: Counts) -> int:
    return sum(sum(sizes.values()) for sizes in counts.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
