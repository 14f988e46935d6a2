# SPDX-License-Identifier: Apache-2.0
"""What the device plugin costs on a node of 64 GPUs with 10 slots each: `make bench`.

The plugin is a real process; kubelet, API server and enforcer are the tests' peers, over their real
protocols, all on this machine. Times are kubelet's: from the request to the answer.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.api.errors import NotFoundError
from enforcer.api.server import Server
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from enforcer.model import (
    ContainerUsage,
    DeviceTest,
    GpuHealth,
    HostSupport,
    Layer,
    LayerState,
    Snapshot,
    Usage,
)
from tests.contract.conftest import RESOURCE, running_bench
from tests.contract.peers.sysfs import Card

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.model import ImageLibc, Protection
    from tests.contract.conftest import Bench

GPUS = 64
SLOTS = 10
MEMORY = "/dev/shm"
PEERS_TURN_SECONDS = 0.0002
OPTIONS = (f"--split-count={SLOTS}", "--health-pulse=10")
"""The pulse is a node's, not the tests'."""
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


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, ascending."""

    allocate: list[float]
    empty: list[float]
    """A call that asks the plugin for nothing: what the way there and back takes."""

    def rows(self, where: str) -> tuple[Row, ...]:
        """What of them is printed."""
        return (
            Row(f"Allocate, checkpoint {where}, median", _at(self.allocate, 50) * 1000, "ms"),
            Row(
                f"Allocate, checkpoint {where}, 99th percentile", _at(self.allocate) * 1000, "ms", 5
            ),
            Row("  an empty call beside it, 99th percentile", _at(self.empty) * 1000, "ms"),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, and how much it may be."""

    what: str
    figure: float
    unit: str
    most: float | None = None

    def __str__(self) -> str:
        limit = "" if self.most is None else f"   (at most {self.most:g})"
        return f"{self.what:56}{self.figure:8.2f} {self.unit}{limit}\n"


def _at(ascending: Sequence[float], percent: int = 99) -> float:
    return ascending[len(ascending) * percent // 100]


class Enforcer:
    """The node side of the local API: it has every GPU, and a row for each slice given."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._gpus = tuple(read_inventory(Roots(sys=bench.root / "sys"))[0])

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        raise NotFoundError(f"no container starts here: {pod_uid} {container}")

    def snapshot(self) -> Snapshot:
        gate, dmem = LayerState(Layer.GATE), LayerState(Layer.DMEM)
        size = 1 << 30
        usage = Usage(requested=size, resident=size, peak=size, dmem_current=size)
        rows = [
            ContainerUsage(
                *(one.namespace, one.pod, one.pod_uid, one.container),
                cgroup=f"kubepods/burstable/pod{one.pod_uid}/{one.container}",
                bdf=share.bdf,
                limit=share.vram_bytes,
                usage=usage,
                layers=(gate, dmem),
            )
            for one in self._bench.slices
            for share in one.shares
        ]
        health = tuple(GpuHealth(gpu.bdf, healthy=True) for gpu in self._gpus)
        support = HostSupport(gate, dmem, "bo")
        return Snapshot(time.time(), support, self._gpus, tuple(rows), health=health)

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        renders = (DeviceTest(f"/dev/dri/renderD{gpu.render}") for gpu in self._gpus)
        return [DeviceTest("/dev/kfd"), *renders]

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        raise NotFoundError(f"there is no image {image}")


def allocate(bench: Bench, pods: int) -> Times:
    """What each Allocate took, of pods that are bound one after the other and stay."""
    ids = bench.gpu_ids()
    seconds, empty = [], []
    for number in range(pods):
        pod = bench.bind(f"pod-{number}", f"{ids[number % GPUS]},AMD Instinct MI300X,4096,28:;")
        seconds.append(bench.admit(pod)["app"].allocate_seconds)
        empty.append(bench.kubelet.empty_call(RESOURCE))
        bench.wait_unlocked()
    return Times(sorted(seconds), sorted(empty))


def flush(directory: Path, size: int, times: int = 100) -> list[float]:
    """Seconds that a write of ``size`` bytes takes until the disk has it, ascending."""
    seconds = []
    for _ in range(times):
        started = time.monotonic()
        with (directory / "flushed").open("wb") as file:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())
        seconds.append(time.monotonic() - started)
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
    # The peers share this process: kubelet's answer must not wait for the API server's turn to end.
    sys.setswitchinterval(PEERS_TURN_SECONDS)
    rows: list[Row] = []
    with _bench(MEMORY) as bench:
        bench.start(*OPTIONS)
        rows += allocate(bench, options.pods).rows("in memory")
    with _bench(None) as bench:
        process = bench.start(*OPTIONS)
        bench.kubelet.wait_devices(RESOURCE, lambda ids: len(ids) == GPUS * SLOTS)
        rows += allocate(bench, options.pods).rows("on disk")
        written = flush(bench.root, (bench.root / "state/slices.json").stat().st_size)
        rows.append(
            Row("  a flushed write of its size, 99th percentile", _at(written) * 1000, "ms")
        )
        restarts = restart(bench, 10)
        rows += (
            Row("devices back after kubelet's restart, worst of 10", max(restarts), "s", 2),
            Row("resident memory", resident_mib(process.pid), "MiB", 80),
            Row("CPU while idle", idle_percent(process.pid, options.idle), "% of a core", 0.5),
        )
        bench.processes.remove(process)
        process.terminate()
        process.wait(timeout=20)
    load = os.getloadavg()[0]
    sys.stdout.write(
        f"{GPUS} GPUs, {SLOTS} slots each, {options.pods} pods; {os.cpu_count()} cores, "
        f"load {load:.1f}\n"
    )
    sys.stdout.writelines(map(str, rows))
    return 0


@contextmanager
def _bench(directory: str | None) -> Iterator[Bench]:
    # Short: the path of a unix socket has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=directory) as root,
        running_bench(Path(root), cards()) as bench,
    ):
        server = Server(Enforcer(bench), bench.root / "enforcer.sock")
        server.start()
        yield bench
        server.stop()
        for process in bench.processes:
            bench.kill(process)
        # Its log is of no interest.
        bench.processes.clear()


if __name__ == "__main__":
    sys.exit(main())
