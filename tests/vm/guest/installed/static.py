# SPDX-License-Identifier: Apache-2.0
"""A node of the real kubelet, on which the built image is a static pod."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.installed import NAMESPACE
from tests.vm.guest.installed.cluster import STATE
from tests.vm.guest.kubelet.apiserver import ApiError
from tests.vm.guest.kubelet.cluster import NODE, Cluster
from tests.vm.guest.services import CGROUP, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.vm.guest.kubelet.apiserver import Json

_NAME = "ringfence"
_DAEMONS = ("device-plugin", "enforcer")
_SLOWER = 10
"""Than a node: the emulated one."""
_START_SECONDS = 900
"""For each step of a start: an image of Python, on an emulated and maybe busy machine."""


class StaticCluster(Cluster):
    """Both daemons come out of the image, by kubelet and containerd."""

    def __init__(
        self, programs: Path, installed: Path, root: Path, logs: Path, client: Path
    ) -> None:
        super().__init__(programs, root, logs, client)
        self._ctr = [str(programs / "ctr"), "--namespace=k8s.io"]
        self._installed = installed
        self._account = root / "account"
        self._manifest = self.manifests / f"{_NAME}.json"
        self.enforcer.state = STATE

    def start_enforcer(self) -> None:
        """It is in the pod."""

    def start_plugin(self) -> None:
        """Import the image, and give kubelet the pod."""
        archive = self._installed / "image.tar"
        subprocess.run([*self._ctr, "images", "import", archive], check=True)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.api.call("POST", "/api/v1/namespaces", namespace)
        variables = self.api.write_account(self._account)
        objects = json.loads((self._installed / "defaults.json").read_text())
        (daemonset,) = (item for item in objects if item["kind"] == "DaemonSet")
        pod = static_pod(daemonset["spec"]["template"], self._account, variables)
        self._manifest.write_text(json.dumps(pod))
        self._open.callback(self.end_static)
        for what, there in (
            ("the pod of the image", lambda: len(self.cgroups()) == 2),
            ("the enforcer's metrics", lambda: self.enforcer.metrics() is not None),
            ("the plugin's GPUs", lambda: self.allocatable() > 0),
            ("kubelet to find both ready", lambda: self.ready() == dict.fromkeys(_DAEMONS, 0)),
        ):
            wait_for(what, there, _START_SECONDS, 2.0)

    def plugin_lives(self) -> None:
        """kubelet starts it anew."""

    def cgroups(self) -> list[Path]:
        """The cgroups of its containers, by the processes of the two daemons."""
        found = {}
        for procs in CGROUP.glob("kubepods/**/cgroup.procs"):
            for pid in procs.read_text().split():
                words = _command(pid)
                for name in _DAEMONS:
                    if name in words and any(word.endswith("/ringfence") for word in words):
                        found[name] = procs.parent
        return list(found.values())

    def ready(self) -> dict[str, int]:
        """How often each container that kubelet finds ready was started anew."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{_NAME}-{NODE}"
        try:
            status = self.api.call("GET", path)["status"]
        except ApiError as error:
            if error.status != 404:
                raise
            return {}
        return {
            one["name"]: one["restartCount"]
            for one in status.get("containerStatuses", [])
            if one["ready"]
        }

    def pids(self, daemon: str) -> list[int]:
        """The processes of the container of that name, but for its probes."""
        return [
            int(pid)
            for path in self.cgroups()
            if path.exists()
            for pid in (path / "cgroup.procs").read_text().split()
            if daemon in (words := _command(pid)) and "health" not in words
        ]

    def end_static(self) -> None:
        """Take the manifest away, and wait until kubelet has taken the pod down."""
        self._manifest.unlink(missing_ok=True)
        wait_for("the end of the static pod", lambda: self.cgroups() == [], _START_SECONDS, 2.0)


def static_pod(template: Json, account: Path, variables: Mapping[str, str]) -> Json:
    """The chart's pod, where the API server gives nothing: a static pod has no service account,
    and here there is neither a network of pods nor a service."""
    spec = copy.deepcopy(template["spec"])
    del spec["serviceAccountName"]
    spec["hostNetwork"] = True
    for volume in spec["volumes"]:
        if volume.pop("projected", None):
            volume["hostPath"] = {"path": str(account)}
    for container in spec["containers"]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            # kubelet's clock goes on where the emulated machine is given no time.
            container[probe]["timeoutSeconds"] *= _SLOWER
        container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _NAME, "namespace": NAMESPACE, **template["metadata"]},
        "spec": spec,
    }


def _command(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
