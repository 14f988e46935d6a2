# SPDX-License-Identifier: Apache-2.0
"""The guest's half of `ringfence demo`: one node, two pods on one GPU, every line checked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.api.client import Client as Api
from enforcer.host import drm
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from enforcer.model import MIB
from tests.vm.guest.cluster import Cluster
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from enforcer.model import ContainerUsage, Gpu
    from tests.vm.guest.cluster import Running

_SOCKET = Path("/run/ringfence/enforcer.sock")
_WIDTH = 80


@dataclass
class Script:
    """What is shown, and whether all of it was true."""

    failures: int = 0

    def say(self, text: str = "") -> None:
        """Lines as they are, cut to the terminal's width."""
        for line in text.splitlines() or [""]:
            print(line[:_WIDTH], flush=True)

    def chapter(self, text: str) -> None:
        self.say(f"\n== {text} ==")

    def check(self, true: bool, text: str) -> None:
        """A claim. The demo fails if one is false."""
        self.failures += not true
        self.say(f"  {'ok ' if true else 'NOT TRUE:'} {text}")


def main() -> int:
    """0 only if every line was true."""
    script = Script()
    gpus, _ = read_inventory(Roots())
    gpu = min(gpus, key=lambda one: one.bdf)
    script.chapter(f"kernel {os.uname().release}: the node and its GPUs")
    script.say(_ringfence("inventory"))
    logs = Path(os.environ.get("RINGFENCE_OUT") or tempfile.mkdtemp())
    binary = Path(os.environ["RINGFENCE_CLIENT"])
    with Cluster(Path(tempfile.mkdtemp()), logs, binary) as cluster:
        support = Api(_SOCKET).host_support(10)
        script.say(f"  gate: {support.gate}   dmem: {support.dmem}   ledger: {support.ledger}")
        _play(script, cluster, gpu)
    cluster.enforcer.unload()
    script.say()
    return int(script.failures > 0)


def _play(script: Script, cluster: Cluster, gpu: Gpu) -> None:
    script.chapter("two pods on one GPU: A gets 4096 MiB and 76 CUs, B 8192 MiB and 152")
    a = cluster.run(cluster.bind("pod-a", cluster.share(0, 4096, 76)))
    b = cluster.run(cluster.bind("pod-b", cluster.share(0, 8192, 152)))
    response = a.admitted.response
    script.say("  Allocate answered pod A with")
    for name, value in sorted(response.envs.items()):
        script.say(f"    {name}={value}")
    script.say(f"    devices {' '.join(device.host_path for device in response.devices)}")
    for one in (a, b):
        one.client.open(gpu)

    script.chapter("A allocates until it is refused")
    through_kfd = _fill(script, a, gpu, "KFD (HIP)", f"kfd-alloc {gpu.kfd_id}", 2048)
    through_gem = _fill(script, a, gpu, "GEM (Vulkan, OpenGL)", "gem-create", 4096)
    script.check(
        through_kfd + through_gem == 4096 * MIB,
        f"A had {through_kfd + through_gem} bytes: 4096 MiB, to the byte",
    )
    free = (gpu.vram_bytes or 0) - _card_used(gpu)
    script.check(free > 180 << 30, f"and the card still has {free / (1 << 30):.0f} GiB free")
    had = b.client.ask(f"fill kfd {gpu.kfd_id} {512 * MIB}")
    script.check(
        int(had["bytes"]) == 8192 * MIB, "B is not touched: it has its 8192 MiB, and no more"
    )

    script.chapter("the enforcer is killed with -9")
    cluster.enforcer.kill()
    script.check(not cluster.enforcer.alive(), "no enforcer runs")
    _still_refused(script, a, gpu)
    started = time.monotonic()
    cluster.enforcer.start()
    script.check(True, f"a new enforcer took over after {time.monotonic() - started:.1f} s")
    _still_refused(script, a, gpu)

    script.chapter("what the node says")
    rows = wait_for("both rows", lambda: _rows(2))
    script.say(_ringfence("top", "--once"))
    script.say()
    held = {row.pod: row.usage.requested for row in rows}
    script.check(
        held == {"pod-a": 4096 * MIB, "pod-b": 8192 * MIB},
        "the table shows what each pod was seen to get",
    )
    refused = {row.pod for row in rows if row.usage.refusals}
    script.check(refused == {"pod-a", "pod-b"}, "and that both were refused more")
    enforcer, plugin = (one.rss() // MIB for one in (cluster.enforcer, cluster.plugin))
    script.say(f"  resident memory: enforcer {enforcer} MiB, device plugin {plugin} MiB")
    script.check(enforcer <= 96 and plugin <= 80, "within 96 and 80 MiB")
    lines = _metric_lines(cluster)
    script.say()
    for line in lines:
        script.say(f"  {line}")
    script.check(len(lines) == 4, "used and limit of both are on :9394/metrics")

    script.chapter("both pods end")
    for one in (a, b):
        one.container.kill()
    wait_for("the card empty again", lambda: all(_requested(row) == 0 for row in _rows(0) or ()))
    script.check(True, "every byte came back")


def _ringfence(*argv: str) -> str:
    """What a command prints, whatever it makes of the node."""
    code = "import sys; from enforcer.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _fill(script: Script, one: Running, gpu: Gpu, name: str, command: str, most: int) -> int:
    """256 MiB at a time until refused or ``most`` MiB; the bytes."""
    got = 0
    suffix = " vram" if command.startswith("gem") else ""
    while got < most * MIB:
        errno = one.client.refused(f"{command} {256 * MIB}{suffix}")
        if errno:
            script.check(errno == "ENOMEM", f"{name}: the next 256 MiB are refused with {errno}")
            small = one.client.refused(f"{command} 1{suffix}")
            script.check(small == "ENOMEM", f"{name}: and so is a single byte")
            return got
        got += 256 * MIB
    script.say(f"      {name}: {got // MIB} MiB")
    return got


def _still_refused(script: Script, one: Running, gpu: Gpu) -> None:
    for name, command in (
        ("KFD", f"kfd-alloc {gpu.kfd_id} 1"),
        ("GEM", "gem-create 1 vram"),
    ):
        errno = one.client.refused(command)
        script.check(errno == "ENOMEM", f"A is refused through {name}: {errno or 'it succeeded'}")


def _card_used(gpu: Gpu) -> int:
    return drm.load(Path("/sys/bus/pci/devices") / gpu.bdf).vram_used or 0


def _rows(least: int) -> list[ContainerUsage] | None:
    """The containers' rows of the enforcer's snapshot; None while there are fewer."""
    rows = [row for row in Api(_SOCKET).snapshot(60).containers if row.container]
    return rows if len(rows) >= least else None


def _requested(row: ContainerUsage) -> int:
    return row.usage.requested or 0


def _metric_lines(cluster: Cluster) -> list[str]:
    """The used and limit series, without the labels that do not fit a terminal."""
    found = []
    for line in (cluster.enforcer.metrics() or "").splitlines():
        if line.startswith("hami_vgpu_memory_"):
            labels = dict(
                pair.split("=", 1) for pair in line.partition("{")[2].partition("}")[0].split(",")
            )
            value = float(line.split()[-1])
            found.append(f"{line.partition('{')[0]}{{pod={labels['pod']},...}} {value:.0f}")
    return found


if __name__ == "__main__":
    sys.exit(main())
