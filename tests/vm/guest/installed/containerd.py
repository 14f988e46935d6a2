# SPDX-License-Identifier: Apache-2.0
"""The same pod, its containers begun by containerd's own client from the imported image."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import podspec
from tests.vm.guest.installed.cluster import DaemonPod, InstalledCluster
from tests.vm.guest.kubelet.node import Runtime

if TYPE_CHECKING:
    from tests.testbed.podspec import Json

_FOLDER = Path("/run/ctr")


class ContainerdPod(DaemonPod):
    """containerd unpacks the image, and its shim has runc start it as the chart says."""

    def _command(self, container: Json, identifier: str, node: podspec.Node) -> list[str | Path]:
        folder = _FOLDER / identifier
        root = folder / "rootfs"
        root.mkdir(parents=True)
        _ctr("images", "mount", "--rw", container["image"], str(root))
        self.stack.callback(_ctr, "images", "unmount", "--rm", str(root))
        config = podspec.runtime_config(
            self.placed, container, identifier, self.image.config, node, root
        )
        (folder / "config.json").write_text(json.dumps(config))
        return [*_client(), "run", "--rm", "--config", folder / "config.json", identifier]

    def _delete(self, identifier: str) -> None:
        for words in (("tasks", "delete", "--force"), ("containers", "delete")):
            # The client that waited for its end has taken it away as a rule.
            subprocess.run([*_client(), *words, identifier], check=False, capture_output=True)


class ContainerdCluster(InstalledCluster):
    """A node with a containerd, whose client begins the pod's containers."""

    pod_type = ContainerdPod

    def __init__(self, folder: Path, logs: Path, binary: Path, root: Path) -> None:
        self._runtime = Runtime(_programs(), root, logs)
        super().__init__(folder, logs, binary)

    def _start(self) -> None:
        self._runtime.spawn()
        self._open.callback(self._runtime.stop)
        self._runtime.wait_ready([])
        _ctr("images", "import", str(self.image.archive))
        super()._start()


def _programs() -> Path:
    return Path(os.environ["RINGFENCE_KUBERNETES"])


def _client() -> list[str | Path]:
    return [_programs() / "ctr", "--namespace=k8s.io"]


def _ctr(*words: str) -> None:
    done = subprocess.run([*_client(), *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ctr {' '.join(words)}: {done.stderr}"
