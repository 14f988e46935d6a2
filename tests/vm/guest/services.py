# SPDX-License-Identifier: Apache-2.0
"""The daemons as processes of the guest, and what the kernel itself says."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bpf import loader
from bpf.decode import LedgerUsage
from enforcer.host import dmem
from enforcer.host.files import FileError
from enforcer.model import pci_key
from enforcer.slices import FILE, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from enforcer.model import Slice

CGROUP = Path("/sys/fs/cgroup")
_RINGFENCE = [sys.executable, "-c", "import sys; from enforcer.cli import main; sys.exit(main())"]
START_SECONDS = 600
"""On an emulated machine, which may have a tenth of a processor."""
_EMPTY = LedgerUsage(0, 0, 0, 0, 0, 0, 0, 0)
_T = TypeVar("_T")


def wait_for(
    what: str, condition: Callable[[], _T | None], seconds: float = 120, pause: float = 0.05
) -> _T:
    """What ``condition`` returns once it is neither None nor False; AssertionError if never."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result is not None and result is not False:
            return result
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(pause)


class Program:
    """A process of the node; its log goes to a file of its name."""

    def __init__(
        self, name: str, argv: Sequence[str], logs: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """``env`` is added to this process's own."""
        self.name = name
        self._env = dict(env or {})
        self.log = logs / f"{name}.log"
        self._argv = list(argv)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def spawn(self) -> None:
        """Start the process, without waiting for anything."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdout=log,
                stderr=log,
                env=os.environ | self._env,
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: no handler of the daemon runs."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def rss(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def wait(self) -> int:
        """Its exit status, within five minutes."""
        assert self._process is not None
        status = self._process.wait(timeout=300)
        self._process = None
        return status


class Daemon(Program):
    """One ``ringfence`` subcommand."""

    def __init__(self, name: str, options: Sequence[str], logs: Path) -> None:
        super().__init__(name, [*_RINGFENCE, name, *options], logs)


class Enforcer(Daemon):
    """``ringfence enforcer`` with a checkpoint of its own."""

    def __init__(
        self,
        state: Path,
        logs: Path,
        layers: str = "auto",
        port: int = 9394,
        interval: float = 0.2,
        more: Sequence[str] = (),
    ) -> None:
        """``interval``: seconds between passes where nothing happens; ``more``: further options."""
        self.state = state
        self.layers = layers
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"
        options = [
            "--state-dir",
            str(state),
            "--metrics-address",
            f"127.0.0.1:{port}",
            "--interval",
            str(interval),
            "--layers",
            layers,
            "--node-name",
            "ringfence-node",
            *more,
        ]
        self.options = options
        super().__init__("enforcer", options, logs)

    def give(self, slices: Sequence[Slice]) -> None:
        """Write the checkpoint, as the device plugin does."""
        write_checkpoint(self.state / FILE, list(slices))

    def metrics(self) -> str | None:
        """The exposition text; None while nobody answers."""
        host, _, path = self.metrics_url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=60)
        try:
            connection.request("GET", f"/{path}")
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def start(self) -> None:
        """Start, and wait until it serves what it has seen."""
        self.spawn()

        def ready() -> bool:
            assert self.alive(), f"the enforcer ended:\n{self.log.read_text()}"
            return self.metrics() is not None

        wait_for("the enforcer's metrics", ready, START_SECONDS)

    def unload(self) -> None:
        """Leave nothing in the kernel."""
        subprocess.run(
            [*_RINGFENCE, "enforcer", "--unload"],
            check=True,
            capture_output=True,
        )


def is_module() -> bool:
    """Whether the gate is asked as a security module here, which can wait for arguments."""
    return "bpf" in Path("/sys/kernel/security/lsm").read_text().split(",")


def ledger(cgroup_id: int, bdf: str) -> LedgerUsage:
    """What the BPF ledger says of one cgroup on one GPU, read from the pinned map."""
    with loader.open_maps() as maps:
        return maps.usage().get((cgroup_id, pci_key(bdf)), _EMPTY)


def ledger_source() -> str:
    """What an enforcer has to call the ledger here, where the driver has BTF or has none."""
    return "bo" if Path("/sys/kernel/btf/amdgpu").exists() else "bo-probes"


def gate_limit(cgroup_id: int, bdf: str) -> int | str | None:
    """The gate's entry; "absent" where there is none."""
    with loader.open_maps() as maps:
        return maps.limits().get((cgroup_id, pci_key(bdf)), "absent")


def dmem_current(path: Path, bdf: str) -> int | None:
    """``dmem.current`` of one cgroup for one GPU; None without the controller."""
    try:
        return dmem.current(path).get(f"drm/{bdf}/vram")
    except FileError:
        return None


def dmem_max(path: Path, bdf: str) -> int | None:
    """``dmem.max`` of one cgroup for one GPU; None is no limit or no controller."""
    try:
        return dmem.maximum(path).get(f"drm/{bdf}/vram")
    except FileError:
        return None
