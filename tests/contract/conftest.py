# SPDX-License-Identifier: Apache-2.0
"""A node with the device plugin as a real process among its peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.slices import read_checkpoint
from tests.contract.peers import hami
from tests.contract.peers.apiserver import ApiServer
from tests.contract.peers.kubelet import AdmissionError, Kubelet
from tests.contract.peers.sysfs import Card, two_mi300x, write_sysfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enforcer.model import Slice
    from tests.contract.peers.kubelet import Admitted

NODE = "gpu-node"
RESOURCE = "amd.com/gpu"
REGISTER = "hami.io/node-amd-register"
LOCK = "hami.io/mutex.lock"
REPOSITORY = Path(__file__).parents[2]


def eventually(what: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true after {timeout} s: {what}")
        time.sleep(0.02)


@dataclass
class Bench:
    """Peers, the plugin's directories and its process."""

    root: Path
    api: ApiServer
    kubelet: Kubelet
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> str:
        return (self.root / "log").read_text()

    @property
    def slices(self) -> list[Slice]:
        return read_checkpoint(self.root / "state/slices.json")[0]

    def start(
        self, *options: str, wait: bool = True, dies: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the plugin; ``wait`` until kubelet has its devices.

        ``dies`` is the number of the side effect before which it will.
        """
        module = ["deviceplugin.main"]
        if dies is not None:
            module = ["tests.contract.peers.faulty", str(dies)]
        registered = len(self.kubelet.registrations)
        with (self.root / "log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    *module,
                    f"--node-name={NODE}",
                    f"--kubelet-dir={self.kubelet.directory}",
                    f"--device-plugins-dir={self.kubelet.plugins}",
                    f"--state-dir={self.root / 'state'}",
                    f"--socket={self.root / 'enforcer.sock'}",
                    f"--hook-dir={self.root / 'hook'}",
                    f"--sys={self.root / 'sys'}",
                    f"--kubeconfig={self.root / 'kubeconfig'}",
                    "--health-pulse=0.5",
                    *options,
                ],
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
            )
        self.processes.append(process)
        if wait:
            self.kubelet.wait_registrations(registered + 1, timeout=20)
            self.kubelet.wait_devices(RESOURCE, lambda ids: "Healthy" in ids.values())
        return process

    def standing(self, resource: str = RESOURCE) -> str:
        """How the plugin says it stands with kubelet; "" if it says nothing."""
        try:
            text = (self.root / "state/registration.json").read_text()
        except FileNotFoundError:
            return ""
        return str(json.loads(text).get(resource, {}).get("state", ""))

    def wait_told(self) -> None:
        """Wait until the plugin's watches were told of all that happened, and took it in."""
        version = self.api.store.version
        eventually(lambda: all(self.api.told.get(kind, 0) >= version for kind in ("pods", "nodes")))
        # From its socket into its cache.
        time.sleep(0.5)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def terminate(self, process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        return process.wait(timeout=20)

    def gpu_ids(self) -> list[str]:
        """The UUIDs of the node's GPUs, as it registered them."""
        eventually(lambda: REGISTER in self.api.node_annotations(NODE))
        return [gpu["id"] for gpu in json.loads(self.api.node_annotations(NODE)[REGISTER])]

    def end(self, pod: hami.Json, phase: str | None = None) -> None:
        """The pod is over for kubelet; its object is deleted, or left with ``phase``."""
        metadata = pod["metadata"]
        self.kubelet.remove(metadata["uid"])
        key = metadata["namespace"], metadata["name"]
        if phase is None:
            self.api.store.delete("pods", key)
        else:
            self.api.store.patch("pods", key, {"status": {"phase": phase}})

    def requests(self, method: str, part: str) -> list[str]:
        """The requests the API server got so far."""
        return [one for one in self.api.store.requests if one.startswith(method) and part in one]

    def bind(
        self,
        name: str,
        devices: str,
        *containers: hami.Json,
        init: tuple[hami.Json, ...] = (),
        lock: bool = True,
    ) -> hami.Json:
        """A pod that the scheduler bound to the node."""
        item = hami.pod(name, *(containers or (hami.container("app", 1),)), init=init)
        return hami.bind(self.api, item, NODE, devices, lock=lock)

    def admit(self, pod: hami.Json) -> dict[str, Admitted]:
        return self.kubelet.admit(pod)

    def admits(self, pod: hami.Json) -> bool:
        """Whether kubelet admits the pod; a real one asks only once."""
        try:
            return bool(self.admit(pod))
        except AdmissionError:
            return False

    def annotation(self, name: str, key: str) -> str | None:
        return self.api.annotations("default", name).get(f"hami.io/{key}")

    def wait_phase(self, name: str, phase: str) -> None:
        eventually(lambda: self.annotation(name, "bind-phase") == phase, timeout=30)

    def settled(self, name: str) -> bool:
        """True once nothing is owed to a pod and the node any more."""
        over = self.annotation(name, "bind-phase") in {"success", "failed"}
        return over and LOCK not in self.api.node_annotations(NODE)

    def wait_unlocked(self) -> None:
        eventually(lambda: LOCK not in self.api.node_annotations(NODE), timeout=30)


@contextmanager
def running_bench(root: Path, cards: tuple[Card, ...]) -> Iterator[Bench]:
    """A bench whose processes end with it."""
    write_sysfs(root / "sys", cards)
    # As with another --root-dir: nothing may be looked for in the wrong one of the two.
    kubelet = Kubelet(root / "kubelet", seed=1, plugins=root / "device-plugins")
    with ApiServer() as api, kubelet:
        api.put_node(NODE)
        api.kubeconfig(root / "kubeconfig")
        bench = Bench(root, api, kubelet)
        try:
            yield bench
        finally:
            for process in bench.processes:
                process.kill()
                process.wait()
            if bench.processes:
                # Shown by pytest with a failure.
                sys.stdout.write(bench.log)


@pytest.fixture
def bench(short_path: Path) -> Iterator[Bench]:
    """Peers around a node with two MI300X; the plugin is not started."""
    with running_bench(short_path, two_mi300x()) as one:
        yield one
