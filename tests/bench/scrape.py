# SPDX-License-Identifier: Apache-2.0
"""What a scrape costs: ``python -m tests.bench.scrape``. A real enforcer, 8 GPUs, no BPF.

Aims: 99 of 100 scrapes take less than 10 ms at 80 slices, and less than 50 ms at 640. Where it is
allowed in real time, so that what else the machine does is not in the figures.
"""

from __future__ import annotations

import argparse
import gzip
import os
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.metrics.serve import Site
from tests.testbed.crowd import Crowd
from tests.unit.enforcer.sample import GPUS, SNAPSHOT, row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from enforcer.model import Snapshot

_WRITTEN = 9
_PASS_SECONDS = 0.5
"""Four times as often as by default, so that as many more scrapes meet a pass."""


def main(argv: Sequence[str]) -> int:
    """Print time and size of a scrape at each number of slices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, nargs="+", default=[80, 640])
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--shared", action="store_true", help="beside what the machine does")
    options = parser.parse_args(argv)
    alone = not options.shared and _first_in_line()
    print(f"{'real-time' if alone else 'shared'}, load of the machine {os.getloadavg()[0]:.1f}")
    print(
        f"{'slices':>7}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}{'series':>8}{'KiB':>8}{'packed':>8}"
    )
    for slices in options.slices:
        with tempfile.TemporaryDirectory() as directory:
            measure(Path(directory), slices, options.scrapes)
    for slices in options.slices:
        write_whole(slices)
    return 0


def _first_in_line() -> bool:
    """Whether this process and those it starts now run before all that are not real-time."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return True
    return False


def measure(directory: Path, slices: int, scrapes: int) -> None:
    """A line for one number of slices.

    Each scrape is of another pass than the one before, and begins at any moment of the next.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Crowd(directory, port, _PASS_SECONDS) as crowd:
        crowd.add(slices)
        wanted = b'ringfence_vram_observed_bytes{container="main"'
        while text(crowd).count(wanted) < slices:
            time.sleep(0.2)
        times = []
        for number in range(scrapes):
            # Multiples of the golden ratio are spread evenly.
            time.sleep((1.5 + number * 0.618 % 1) * _PASS_SECONDS)
            begun = time.perf_counter()
            packed = crowd.metrics()
            times.append((time.perf_counter() - begun) * 1000)
        times.sort()
        body = text(crowd)
        series = sum(not line.startswith(b"#") for line in body.splitlines())
        p50, p99 = (times[int(len(times) * part)] for part in (0.5, 0.99))
        print(
            f"{slices:>7}{p50:>8.1f}{p99:>8.1f}{times[-1]:>8.1f}{series:>8}"
            f"{len(body) / 1024:>8.0f}{len(packed) / 1024:>8.0f}",
            flush=True,
        )


def write_whole(slices: int) -> None:
    """Lines for a made-up node with BPF, dmem and hook, which have series of their own.

    The first who asks for a snapshot has it written; what the next one costs is told beside it.
    """
    rows = [row(f"pod-{number}", GPUS[number % 2].bdf, 4096, 3072) for number in range(slices)]
    pods = [replace(one, container="") for one in rows]
    snapshot = replace(SNAPSHOT, containers=(*rows, *pods))
    site = Site(lambda: snapshot, "node", "0")
    body, page = site.metrics(), site.page()
    assert body.packed is not None
    assert page is not None
    first, next_ = zip(*(_asked_twice(snapshot) for _ in range(_WRITTEN)), strict=True)
    print(
        f"{slices} slices with every layer: {len(body.plain.splitlines())} lines, "
        f"{len(body.plain) / 1024:.0f} KiB, packed {len(body.packed) / 1024:.0f}; the page "
        f"{len(page.plain) / 1024:.0f} KiB"
    )
    for which, times in (("first", first), ("next", next_)):
        metrics, pages = (min(column) for column in zip(*times, strict=True))
        print(
            f"  {which} to ask: metrics {metrics:.2f} ms of the processor, the page {pages:.2f} ms"
        )


def _asked_twice(snapshot: Snapshot) -> tuple[list[float], list[float]]:
    """Milliseconds of the processor for metrics and page, of the first and of the next request."""
    site = Site(lambda: snapshot, "node", "0")

    def took(ask: Callable[[], object]) -> float:
        begun = time.process_time()
        ask()
        return (time.process_time() - begun) * 1000

    first, again = ([took(site.metrics), took(site.page)] for _ in range(2))
    return first, again


def text(crowd: Crowd) -> bytes:
    """The exposition text; empty while nobody serves it."""
    try:
        body = crowd.metrics()
    except OSError:
        return b""
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
