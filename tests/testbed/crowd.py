# SPDX-License-Identifier: Apache-2.0
"""A made-up node with many pods that come and go, and a real enforcer on it that loads no BPF."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
import uuid
from typing import TYPE_CHECKING

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
    from pathlib import Path
    from typing import Self

GPUS = tuple(
    GpuSpec(f"0000:{0x10 + n:02x}:00.0", 5000 + n, n, 128 + n, vram=192 << 30, cus=304)
    for n in range(8)
)
_RUN = "import sys; from enforcer.cli import main; sys.exit(main(sys.argv[1:]))"


class Crowd:
    """The node's trees below ``root``, and the enforcer inside a ``with`` statement."""

    def __init__(self, root: Path, port: int, interval: float = 2.0) -> None:
        """``interval``: seconds between the enforcer's passes."""
        self.root = root
        self._interval = interval
        self.address = f"127.0.0.1:{port}"
        self._made = 0
        self._slices: dict[str, Slice] = {}
        write_sys(root / "sys", NodeSpec(GPUS))
        write_cgroup(root / "cgroup", controllers="cpu")
        write_cgroup(root / "cgroup", "kubepods.slice")
        (root / "state").mkdir(parents=True)
        write_checkpoint(root / "state" / FILE, [])

    def __enter__(self) -> Self:
        folders = {
            "--state-dir": "state",
            "--sys": "sys",
            "--proc": "proc",
            "--run": "run",
            "--share": "share",
            "--cgroup-root": "cgroup",
            "--bpffs": "bpf",
            "--bpf-objects": "no-objects",
            "--socket": "run/ringfence/enforcer.sock",
        }
        options = [part for flag, name in folders.items() for part in (flag, f"{self.root / name}")]
        with (self.root / "enforcer.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN, "enforcer", *options, "--metrics-address",
                 self.address, "--interval", f"{self._interval}", "--node-name", "crowd"],
                stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    @property
    def pods(self) -> list[str]:
        """The names of the pods that are there, the oldest first."""
        return list(self._slices)

    def add(self, count: int = 1) -> None:
        """So many pods of one container each, with a process that holds 3 MiB."""
        for _ in range(count):
            number, uid = self._made, str(uuid.uuid4())
            self._made += 1
            gpu = GPUS[number % len(GPUS)]
            container = ContainerSpec(f"{number:064x}", "main")
            write_bundle(self.root / "run", container)
            path = f"kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
            write_pod(self.root / "cgroup", path, [container])
            pid = 1_000_000 + number
            procs = (
                self.root / "cgroup" / path / f"cri-containerd-{container.id}.scope/cgroup.procs"
            )
            procs.write_text(f"{pid}\n")
            write_process(self.root / "sys", pid, {gpu.kfd_id: 3 * MIB})
            share = Share(gpu.bdf, 4096 * MIB, "0-37")
            self._slices[f"pod-{number}"] = Slice(
                uid, "crowd", f"pod-{number}", "main", ContainerKind.APP, (f"{number}",), (share,),
                "2026-01-01T00:00:00Z",
            )  # fmt: skip
        self._write()

    def remove(self) -> str:
        """Take the oldest pod away, as kubelet and the plugin do; its name."""
        name, one = next(iter(self._slices.items()))
        del self._slices[name]
        path = f"kubepods.slice/kubepods-pod{one.pod_uid.replace('-', '_')}.slice"
        shutil.rmtree(self.root / "cgroup" / path)
        self._write()
        return name

    def metrics(self) -> bytes:
        """The exposition text, as it goes over the wire. Raises OSError while nobody serves it."""
        request = urllib.request.Request(
            f"http://{self.address}/metrics", headers={"Accept-Encoding": "gzip"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            body: bytes = answer.read()
            return body

    def _write(self) -> None:
        write_checkpoint(self.root / "state" / FILE, self._slices.values())
