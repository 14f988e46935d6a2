# SPDX-License-Identifier: Apache-2.0
"""What a node has besides Ringfence: network, container runtime, kubelet."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.vm.guest.kubelet import image
from tests.vm.guest.kubelet.program import GoProgram
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

KUBELET_DIR = Path("/var/lib/kubelet")
PLUGINS = KUBELET_DIR / "device-plugins"
POD_RESOURCES = KUBELET_DIR / "pod-resources/kubelet.sock"

_RUNTIME_SOCKET = Path("/run/containerd/containerd.sock")
_ADDRESS = "10.9.8.9"
_START_SECONDS = 400

_RUNTIME_CONFIG = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image.NAME}"
"""


def set_up_network() -> None:
    """An address and a default route, without which kubelet does not start. Nothing is behind."""
    for words in (
        "link add node0 type dummy",
        f"addr add {_ADDRESS}/24 dev node0",
        "link set node0 up",
        "route add default via 10.9.8.1",
    ):
        subprocess.run(["/bin/busybox", "ip", *words.split()], check=True)


class Runtime(GoProgram):
    """containerd, with the images of the tests."""

    def __init__(self, programs: Path, root: Path, logs: Path) -> None:
        self._programs = programs
        self._root = root
        config = root / "containerd.toml"
        config.write_text(_RUNTIME_CONFIG)
        super().__init__(programs, "containerd", [f"--config={config}"], logs)

    def wait_ready(self, contents: Iterable[Path]) -> None:
        """Return once it has the images with these programs."""
        archive = self._root / "image.tar"
        image.write_images(archive, contents)
        wait_for("containerd", self._serves, _START_SECONDS)
        self._ask("images", "import", str(archive))

    def snapshots(self) -> list[str]:
        """The names of all there are: of layers, containers and views."""
        lines = self._ask("snapshots", "list").splitlines()
        return [line.split()[0] for line in lines[1:]]

    def _ask(self, *words: str) -> str:
        return subprocess.run(
            [self._programs / "ctr", "--namespace=k8s.io", *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def _serves(self) -> bool:
        assert self.alive(), f"containerd ended:\n{self.log.read_text()[-4000:]}"
        return _RUNTIME_SOCKET.exists()


class Kubelet(GoProgram):
    """The real one."""

    def __init__(
        self, programs: Path, node: str, kubeconfig: Path, manifests: Path, logs: Path
    ) -> None:
        super().__init__(
            programs,
            "kubelet",
            [
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={node}",
                f"--node-ip={_ADDRESS}",
                f"--pod-manifest-path={manifests}",
                "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{_RUNTIME_SOCKET}",
                f"--pod-infra-container-image={image.NAME}",
                f"--tls-cert-file={programs / 'server.crt'}",
                f"--tls-private-key-file={programs / 'server.key'}",
                "--cgroup-driver=cgroupfs",
                # What a virtual node has not: swap turned off by somebody, iptables, spare disks.
                "--fail-swap-on=false",
                "--make-iptables-util-chains=false",
                "--eviction-hard=",
                "--v=2",
            ],
            logs,
        )

    def start(self) -> None:
        """Start, and wait until plugins can register."""
        before = _identity(PLUGINS / "kubelet.sock")
        self.spawn()

        def serves() -> bool:
            assert self.alive(), f"kubelet ended:\n{self.log.read_text()[-4000:]}"
            return _identity(PLUGINS / "kubelet.sock") not in (None, before)

        wait_for("kubelet's socket", serves, _START_SECONDS)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
