# SPDX-License-Identifier: Apache-2.0
"""What a scrape costs: ``python -m tests.bench.scrape``. A real enforcer, 8 GPUs, no BPF."""

from __future__ import annotations

import argparse
import gzip
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Print time and size of a scrape at each number of slices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, nargs="+", default=[80, 640])
    parser.add_argument("--scrapes", type=int, default=200)
    options = parser.parse_args(argv)
    print(
        f"{'slices':>7}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}{'series':>8}{'KiB':>8}{'packed':>8}"
    )
    for slices in options.slices:
        with tempfile.TemporaryDirectory() as directory:
            measure(Path(directory), slices, options.scrapes)
    return 0


def measure(directory: Path, slices: int, scrapes: int) -> None:
    """A line for one number of slices: each scrape is of another pass than the one before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Crowd(directory, port) as crowd:
        crowd.add(slices)
        wanted = b'ringfence_cu_slice{container="main"'
        while text(crowd).count(wanted) < slices:
            time.sleep(0.2)
        times = []
        for _ in range(scrapes):
            time.sleep(0.53)
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


def text(crowd: Crowd) -> bytes:
    """The exposition text; empty while nobody serves it."""
    try:
        body = crowd.metrics()
    except OSError:
        return b""
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
