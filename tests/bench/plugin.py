# SPDX-License-Identifier: Apache-2.0
"""What the device plugin costs on a node of 64 GPUs with 10 slots each: `make bench`.

The plugin is a real process; kubelet and API server are the tests' peers, over their real
protocols, all on this machine. Times are kubelet's: from the request to the answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.contract.conftest import RESOURCE, running_bench
from tests.contract.peers.sysfs import Card

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.contract.conftest import Bench

GPUS = 64
SLOTS = 10
_TICKS = os.sysconf("SC_CLK_TCK")


def cards() -> tuple[Card, ...]:
    """64 linked GPUs, 8 to a hive."""
    return tuple(
        Card(
            f"{number // 32:04x}:{5 + number % 32:02x}:00.0",
            number,
            unique_id=0x8E00000000000000 + number,
            numa=number // 32,
            xgmi=tuple(
                peer for peer in range(number // 8 * 8, number // 8 * 8 + 8) if peer != number
            ),
        )
        for number in range(GPUS)
    )


def allocate(bench: Bench, pods: int) -> list[float]:
    """Seconds that each Allocate took, of pods that are bound one after the other and stay."""
    ids = bench.gpu_ids()
    seconds = []
    for number in range(pods):
        pod = bench.bind(f"pod-{number}", f"{ids[number % GPUS]},AMD Instinct MI300X,4096,28:;")
        seconds.append(bench.admit(pod)["app"].allocate_seconds)
        bench.wait_unlocked()
    return sorted(seconds)


def restart(bench: Bench, times: int) -> list[float]:
    """Seconds from each start of kubelet until it has every device again."""
    seconds = []
    for _ in range(times):
        bench.kubelet.restart()
        started = time.monotonic()
        bench.kubelet.wait_devices(
            RESOURCE,
            lambda ids: len(ids) == GPUS * SLOTS and set(ids.values()) == {"Healthy"},
        )
        seconds.append(time.monotonic() - started)
    return seconds


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def idle_percent(pid: int, seconds: float) -> float:
    """Percent of one core that a process uses while nothing is asked of it."""

    def ticks() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / _TICKS / seconds * 100


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one line for each figure, with what it should be."""
    parser = argparse.ArgumentParser(prog="plugin", description=__doc__)
    parser.add_argument("--pods", type=int, default=400, help="pods to serve (default: 400)")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to be idle")
    options = parser.parse_args(argv)
    # Short: the path of a unix socket has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as root,
        running_bench(Path(root), cards()) as bench,
    ):
        process = bench.start(f"--split-count={SLOTS}")
        bench.kubelet.wait_devices(RESOURCE, lambda ids: len(ids) == GPUS * SLOTS)
        taken = allocate(bench, options.pods)
        restarts = restart(bench, 10)
        idle = idle_percent(process.pid, options.idle)
        rows = (
            ("Allocate, median", statistics.median(taken) * 1000, "ms", ""),
            ("Allocate, 99th percentile", taken[len(taken) * 99 // 100] * 1000, "ms", "5"),
            ("devices back after kubelet's restart, worst of 10", max(restarts), "s", "2"),
            ("resident memory", resident_mib(process.pid), "MiB", "80"),
            ("CPU while idle", idle, "% of a core", "0.5"),
        )
        bench.processes.remove(process)
        process.terminate()
        process.wait(timeout=20)
    sys.stdout.write(f"{GPUS} GPUs, {SLOTS} slots each, {options.pods} pods\n")
    for what, figure, unit, most in rows:
        limit = f"   (at most {most})" if most else ""
        sys.stdout.write(f"{what:52}{figure:8.2f} {unit}{limit}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
