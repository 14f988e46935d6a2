# SPDX-License-Identifier: Apache-2.0
"""A whole node: both daemons, an API server and a kubelet that speak the real protocols, and real
containers. From a pod a HAMi scheduler annotated to a process that is held."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deviceplugin.allocate import Mount
from tests.contract.peers import hami
from tests.contract.peers.apiserver import ApiServer
from tests.contract.peers.kubelet import Kubelet
from tests.vm.guest.node import Client
from tests.vm.guest.runc import Pod, RuncContainer
from tests.vm.guest.services import Daemon, Enforcer, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

    from tests.contract.peers.kubelet import Admitted

NODE = "ringfence-node"
RESOURCE = "amd.com/gpu"
REGISTER = "hami.io/node-amd-register"


@dataclass(frozen=True, slots=True)
class Running:
    """A pod's one container, as it runs."""

    pod: Pod
    container: RuncContainer
    client: Client
    admitted: Admitted


class Cluster:
    """Use it in a ``with`` statement: at its end no process and no pod is left."""

    def __init__(self, root: Path, logs: Path, binary: Path, layers: str = "auto") -> None:
        self._binary = binary
        self._open = contextlib.ExitStack()
        state = root / "state"
        state.mkdir(parents=True)
        self.api = ApiServer()
        self.api.put_node(NODE)
        self.kubelet = Kubelet(root / "kubelet", seed=0)
        self.enforcer = Enforcer(state, logs, layers)
        self.plugin = Daemon(
            "device-plugin",
            [
                f"--node-name={NODE}",
                f"--kubelet-dir={self.kubelet.directory}",
                f"--device-plugins-dir={self.kubelet.plugins}",
                f"--state-dir={state}",
                f"--hook-dir={root / 'no-hook'}",
                f"--kubeconfig={self.api.kubeconfig(root / 'kubeconfig')}",
            ],
            logs,
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._open.close()
            raise
        return self

    def _start(self) -> None:
        self._open.callback(self.api.close)
        self.kubelet.start()
        self._open.callback(self.kubelet.stop)
        self._open.callback(_end, self.enforcer)
        self.enforcer.start()
        self._open.callback(_end, self.plugin)
        self.plugin.spawn()
        wait_for("healthy devices in kubelet's view", self._offered, 600)
        wait_for("the node annotation", lambda: self.registered() != [])

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _offered(self) -> bool:
        assert self.plugin.alive(), f"the device plugin ended:\n{self.plugin.log.read_text()}"
        try:
            self.kubelet.wait_devices(RESOURCE, lambda ids: "Healthy" in ids.values(), timeout=1)
        except TimeoutError:
            return False
        return True

    def registered(self) -> list[dict[str, object]]:
        """The GPUs in the node's register annotation, as a scheduler reads them."""
        found: list[dict[str, object]] = json.loads(
            self.api.node_annotations(NODE).get(REGISTER, "[]")
        )
        return found

    def share(self, gpu: int, mib: int, cus: int) -> str:
        """The scheduler's annotation for one container with a share of GPU number ``gpu``."""
        one = self.registered()[gpu]
        return f"{one['id']},{one['type']},{mib},{cus}:;"

    def bind(self, name: str, devices: str) -> hami.Json:
        """A pod of one container that the scheduler bound to this node with that annotation."""
        return hami.bind(self.api, hami.pod(name, hami.container("main", 1)), NODE, devices)

    def run(self, item: hami.Json, folders: Sequence[str] = ()) -> Running:
        """Everything kubelet and the runtime do for a bound pod, up to its running process.

        ``folders`` of the node are there in the container as well.
        """
        admitted = self.kubelet.admit(item)["main"]
        metadata = item["metadata"]
        pod = Pod(metadata["name"], metadata["namespace"], metadata["uid"]).create()
        self._open.callback(pod.remove)
        self.kubelet.start_container(pod.uid, "main")
        container = RuncContainer(
            pod,
            "main",
            ["/bin/gpuclient"],
            self._binary,
            env=dict(admitted.response.envs),
            devices=[device.host_path for device in admitted.response.devices],
            mounts=[
                *(Mount(folder, folder) for folder in folders),
                *(
                    Mount(one.host_path, one.container_path, one.read_only)
                    for one in admitted.response.mounts
                ),
            ],
        )
        self._open.callback(_kill, container)
        wait_for("the container's cgroup", container.path.exists)
        return Running(pod, container, Client(container), admitted)


def _end(daemon: Daemon) -> None:
    if daemon.alive():
        daemon.stop()


def _kill(container: RuncContainer) -> None:
    if container.process.poll() is None:
        container.kill()
