# SPDX-License-Identifier: Apache-2.0
"""What the enforcer costs with 8 GPUs, 10 slices on each, 4 processes in each: `make bench`.

The node is a tree of files on this machine, so that its processor is a real one; the kernel's
layers are not there and cost nothing. The enforcer is a real process. Aims: a pass in less than
20 ms, 96 MiB of resident memory, 0.5 % of a core while nothing happens.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from enforcer.api.client import Client, EnforcerError
from enforcer.host.roots import Roots
from enforcer.layers import KernelLayers
from enforcer.loop import Enforcer
from enforcer.model import MIB, ContainerKind, Share, Slice
from enforcer.slices import FILE, write_checkpoint
from tests.testbed.trees import (
    ContainerSpec,
    GpuSpec,
    NodeSpec,
    write_bundle,
    write_cgroup,
    write_pod,
    write_process,
    write_sys,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

GPUS: Final = 8
SLICES: Final = 10
PROCESSES: Final = 4
_PASSES: Final = 200
_ENFORCER: Final = "import sys; from enforcer.daemon import main; main(sys.argv[1:])"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IMPORTS: Final = (
    "argparse, json, logging",
    "cgroupspy.controllers",
    "bpf.loader",
    "enforcer.loop",
    "grpc",
    "enforcer.api.server",
    "prometheus_client",
    "enforcer.metrics.serve",
    "pyroute2",
)
"""In the order in which the daemon comes to them."""


def write_node(root: Path) -> Roots:
    """A node with everything it is measured with, below ``root``."""
    gpus = tuple(
        GpuSpec(f"0000:{bus:02x}:00.0", kfd_id=bus, card=bus, render=128 + bus)
        for bus in range(1, GPUS + 1)
    )
    write_sys(root / "sys", NodeSpec(gpus))
    write_cgroup(root / "cgroup", controllers="cpu")
    slices = []
    for number in range(GPUS * SLICES):
        gpu = gpus[number // SLICES]
        uid = f"{number:08x}-6a0b-4e5a-9d0e-2b1a4c7d8e9f"
        container = ContainerSpec(f"{number:064x}", "train")
        pod = f"kubepods/pod{uid}"
        write_pod(root / "cgroup", pod, (container,), "{}")
        write_bundle(root / "run", container)
        pids = range(1000 + number * PROCESSES, 1000 + (number + 1) * PROCESSES)
        procs = root / "cgroup" / pod / container.id / "cgroup.procs"
        procs.write_text("".join(f"{pid}\n" for pid in pids))
        for pid in pids:
            write_process(root / "sys", pid, {gpu.kfd_id: 512 * MIB})
            _write_descriptors(root / "proc" / str(pid), gpu)
        slices.append(_slice(uid, gpu.bdf))
    write_checkpoint(root / FILE, slices)
    return Roots(
        sys=root / "sys",
        proc=root / "proc",
        run=root / "run",
        cgroup=root / "cgroup",
        share=root,
        docker=root,
    )


def passes(roots: Roots, checkpoint: Path) -> list[float]:
    """Seconds of each pass, in order of length; the first, which reads everything, left out."""
    enforcer = Enforcer(roots, checkpoint, KernelLayers(roots.share, roots.share, roots.sys))
    enforcer.run_pass()
    return sorted(enforcer.run_pass().pass_seconds for _ in range(_PASSES))


def imports() -> list[tuple[str, float, float]]:
    """(module, MiB of resident memory after its import, MiB that it added), in one new process."""
    steps = "; ".join(
        f"import {one}; print(open('/proc/self/statm').read().split()[1])" for one in _IMPORTS
    )
    first = "print(open('/proc/self/statm').read().split()[1])"
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{first}; {steps}"],
        check=True,
        capture_output=True,
        text=True,
    )
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = [int(line) * page / MIB for line in answer.stdout.split()]
    table = [("python itself", sizes[0], sizes[0])]
    table.extend(
        (name, after, after - before)
        for name, before, after in zip(_IMPORTS, sizes, sizes[1:], strict=False)
    )
    return table


def idle(root: Path, roots: Roots, seconds: float) -> tuple[float, float, float]:
    """Of an enforcer that serves: MiB resident, of that private, and percent of a core."""
    options = {
        "--state-dir": root,
        "--socket": root / "e.sock",
        "--layers": "dmem",
        "--metrics-address": "127.0.0.1:0",
        "--sys": roots.sys,
        "--proc": roots.proc,
        "--run": roots.run,
        "--cgroup-root": roots.cgroup,
        "--share": root,
        "--bpffs": root,
    }
    argv = [f"{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [sys.executable, "-c", _ENFORCER, *argv],
        stderr=subprocess.PIPE,
    )
    try:
        _wait_until_serving(root / "e.sock", process)
        # Past its first look at everything.
        time.sleep(10)
        before = _ticks(process.pid)
        time.sleep(seconds)
        percent = (_ticks(process.pid) - before) / _TICKS / seconds * 100
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        return _kib(rollup, "Rss:") / 1024, _kib(rollup, "Pss:") / 1024, percent
    finally:
        process.terminate()
        process.communicate()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch it idle")
    seconds: float = parser.parse_args(argv).idle
    with tempfile.TemporaryDirectory(prefix="enforcer-") as name:
        root = Path(name)
        roots = write_node(root)
        print(f"{GPUS} GPUs, {SLICES} slices on each, {PROCESSES} processes in each")
        took = [one * 1000 for one in passes(roots, root / FILE)]
        high = took[len(took) * 99 // 100]
        print(f"pass: median {median(took):.1f} ms, p99 {high:.1f} ms")
        resident, shared, percent = idle(root, roots, seconds)
        print(f"serving: {resident:.0f} MiB resident ({shared:.0f} of its own), {percent:.2f} %")
    print("resident memory by import:")
    for module, size, added in imports():
        print(f"  {module:28}{size:6.1f} MiB  +{added:.1f}")
    return 0


def _slice(uid: str, bdf: str) -> Slice:
    share = Share(bdf, 4096 * MIB)
    created = "2026-01-01T00:00:00Z"
    return Slice(
        uid, "default", f"pod-{uid[:8]}", "train", ContainerKind.APP, (), (share,), created
    )


def _write_descriptors(process: Path, gpu: GpuSpec) -> None:
    """A DRM client as the kernel tells of it, among descriptors of other kinds."""
    (process / "fd").mkdir(parents=True)
    (process / "fdinfo").mkdir()
    for number in range(20):
        (process / "fd" / str(number)).symlink_to("/dev/null")
        (process / "fdinfo" / str(number)).write_text("pos:\t0\n")
    (process / "fd/20").symlink_to(f"/dev/dri/renderD{gpu.render}")
    (process / "fdinfo/20").write_text(
        f"drm-driver:\tamdgpu\ndrm-client-id:\t{process.name}\ndrm-pdev:\t{gpu.bdf}\n"
        "drm-total-vram:\t524288 KiB\ndrm-shared-vram:\t0\ndrm-resident-vram:\t524288 KiB\n"
    )


def _wait_until_serving(socket: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    with Client(socket) as client:
        while True:
            try:
                client.snapshot(1)
                return
            except EnforcerError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _kib(rollup: str, name: str) -> int:
    return int(next(line for line in rollup.splitlines() if line.startswith(name)).split()[1])


if __name__ == "__main__":
    sys.exit(main())
