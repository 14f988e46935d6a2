# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet's pod on the guest: the built image, unpacked, started by runc as the rendered
chart says, and the peers where a pod's network and volumes find them."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import ssl
import stat
import subprocess
import tarfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyroute2 import IPRoute, NetNS, netns

from tests.contract.peers.apiserver import ApiServer
from tests.contract.peers.kubelet import AdmissionError, Kubelet
from tests.testbed import podspec
from tests.vm.guest.cluster import NODE, Cluster
from tests.vm.guest.runc import BUNDLES, RUNC_ROOT, Pod
from tests.vm.guest.services import Enforcer, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.testbed.podspec import Json
    from tests.vm.guest.cluster import Running

KUBELET = Path("/var/lib/kubelet")
STATE = Path("/var/lib/ringfence")
_IMAGES = Path("/var/lib/containerd/images")
_VOLUMES = Path("/var/lib/containerd/volumes")
_API = "10.88.0.1"
"""The API server's address, which every pod reaches through its node."""
_START_SECONDS = 600.0
_READY_SECONDS = 900.0
"""A virtual node that shares its processors may have a tenth of one."""
_SLOWER = 10
"""Than a node: the emulated one, at what the pod itself says it takes."""
_TRIES = 5
_TOO_LATE = "not written after"
_PROFILE = Path("/usr/share/containers/seccomp.json")
_HEADER = Path("/usr/include/linux/capability.h")


class Image:
    """An OCI archive; ``config`` is how to run it."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        with tarfile.open(archive) as tar:
            (self._named,) = json.load(_member(tar, "manifest.json"))
            self.config: Json = json.load(_member(tar, self._named["Config"]))["config"]

    @functools.cached_property
    def layers(self) -> list[Path]:
        """The layers, lowest first, each unpacked once per guest."""
        roots = [_IMAGES / Path(layer).name for layer in self._named["Layers"]]
        with tarfile.open(self.archive) as tar:
            for layer, root in zip(self._named["Layers"], roots, strict=True):
                if not root.is_dir():
                    root.mkdir(parents=True)
                    _unpack(_member(tar, layer), root)
        return roots


class Network:
    """A pod's network: a namespace of its own, joined to the node by a pair of interfaces."""

    def __init__(self, number: int) -> None:
        self.name = f"ringfence-{number}"
        self.address = f"10.88.{number}.2"
        node_end, pod_end = f"pod{number}", "eth0"
        with NetNS(self.name, flags=os.O_CREAT) as pod, IPRoute() as node:
            node.link(
                "add",
                ifname=node_end,
                kind="veth",
                peer={"ifname": pod_end, "net_ns_fd": self.name},
            )
            for end, name, address in (
                (node, node_end, f"10.88.{number}.1"),
                (pod, pod_end, self.address),
            ):
                (index,) = end.link_lookup(ifname=name)
                end.addr("add", index=index, address=address, prefixlen=24)
                end.link("set", index=index, state="up")
            (loopback,) = pod.link_lookup(ifname="lo")
            pod.link("set", index=loopback, state="up")
            pod.route("add", dst="0.0.0.0/0", gateway=f"10.88.{number}.1")

    @property
    def path(self) -> str:
        return f"/var/run/netns/{self.name}"

    def close(self) -> None:
        netns.remove(self.name)


class DaemonPod:
    """One pod of the DaemonSet, from its sandbox to its end."""

    def __init__(
        self,
        template: Json,
        image: Image,
        namespace: str,
        logs: Path,
        token: Path,
        network: Network,
    ) -> None:
        self.spec: Json = template["spec"]
        self.logs = logs
        self.image = image
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ids: dict[str, str] = {}
        self.stack = contextlib.ExitStack()
        name = f"ringfence-{uuid.uuid4().hex[:5]}"
        self.pod = Pod(name, namespace).create()
        self.stack.callback(self.pod.remove)
        self.network = network
        self.stack.callback(network.close)
        self.placed = podspec.Placed(
            metadata={"name": name, "namespace": namespace},
            spec=self.spec,
            uid=self.pod.uid,
            cgroup=self.pod.cgroup,
            volumes={volume["name"]: _volume(volume, token) for volume in self.spec["volumes"]},
            network=network.path,
        )

    def start(self, node: podspec.Node) -> None:
        """Init containers one after the other, each to its end; then the others."""
        for container in self.spec.get("initContainers", []):
            self._run(container, node)
            status = self._running.pop(container["name"]).wait(_START_SECONDS)
            assert status == 0, f"{container['name']}: {status}\n{self.log(container['name'])}"
        for container in self.spec["containers"]:
            self._run(container, node)
        for name in self._running:
            wait_for(f"{name} to run", partial(self._started, name), _START_SECONDS)

    @property
    def containers(self) -> list[str]:
        return [container["name"] for container in self.spec["containers"]]

    def cgroup(self, container: str) -> Path:
        return self.pod.path / f"cri-containerd-{self._ids[container]}.scope"

    def log(self, container: str) -> str:
        return self._log(container).read_text(errors="replace")

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._running.values())

    def probe(self, container: str, kind: str) -> tuple[bool, str]:
        """Whether the chart's own probe succeeds in the container, and what it says."""
        (spec,) = [one for one in self.spec["containers"] if one["name"] == container]
        done = subprocess.run(
            [
                *("runc", "--root", str(RUNC_ROOT), "exec", self._ids[container]),
                *podspec.probe_command(spec, kind),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        return done.returncode == 0, done.stdout + done.stderr

    def pid(self, container: str) -> int:
        """The container's first process, as the node sees it."""
        found = self._pid(container)
        assert found, f"{container} does not run:\n{self.log(container)}"
        return found

    def _started(self, container: str) -> bool:
        return bool(self._pid(container)) or not self.alive()

    def _pid(self, container: str) -> int:
        """The same; 0 while there is none."""
        command: list[str | Path] = ["runc", "--root", RUNC_ROOT, "state", self._ids[container]]
        answer = subprocess.run(command, check=False, capture_output=True)
        state = json.loads(answer.stdout) if answer.returncode == 0 else {}
        return int(state["pid"]) if state.get("status") == "running" else 0

    def terminate(self) -> dict[str, int]:
        """SIGTERM to each container and its exit status, as kubelet ends a pod.

        AssertionError if one outlives the grace period, as an emulated machine counts it.
        """
        grace = self.spec["terminationGracePeriodSeconds"] * _SLOWER
        for name in self._running:
            os.kill(self.pid(name), signal.SIGTERM)
        deadline = time.monotonic() + grace
        statuses = {}
        for name, process in self._running.items():
            try:
                statuses[name] = process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"{name} outlived {grace} s of grace:\n{self.log(name)}"
                ) from None
        self.close()
        return statuses

    def close(self) -> None:
        """End what still runs, and take everything away."""
        for name, process in self._running.items():
            if process.poll() is None:
                os.kill(self.pid(name), signal.SIGKILL)
                process.wait(timeout=60)
        for identifier in self._ids.values():
            self._delete(identifier)
        self._running.clear()
        self._ids.clear()
        self.stack.close()

    def _delete(self, identifier: str) -> None:
        """Away with what is left of a container that has ended."""
        command = ["runc", "--root", str(RUNC_ROOT), "delete", "--force", identifier]
        subprocess.run(command, check=False, capture_output=True)

    def _log(self, container: str) -> Path:
        return self.logs / f"{self.placed.metadata['name']}-{container}.log"

    def _run(self, container: Json, node: podspec.Node) -> None:
        name = container["name"]
        identifier = (uuid.uuid4().hex + uuid.uuid4().hex)[:64]
        self._ids[name] = identifier
        argv = self._command(container, identifier, node)
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _command(self, container: Json, identifier: str, node: podspec.Node) -> list[str | Path]:
        """What runs the container to its end, with all it needs made."""
        bundle = BUNDLES / identifier
        root = bundle / "rootfs"
        root.mkdir(parents=True)
        self.stack.callback(shutil.rmtree, bundle, ignore_errors=True)
        layer = _VOLUMES / identifier
        for folder in ("upper", "work"):
            (layer / folder).mkdir(parents=True)
        lower = ":".join(map(str, reversed(self.image.layers)))
        options = f"lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", root], check=True)
        self.stack.callback(lambda: subprocess.run(["umount", root], check=True))
        config = podspec.runtime_config(
            self.placed, container, identifier, self.image.config, node, root
        )
        (bundle / "config.json").write_text(json.dumps(config))
        return ["runc", "--root", RUNC_ROOT, "run", "--bundle", bundle, identifier]


class InstalledCluster(Cluster):
    """A cluster whose node runs the DaemonSet's pod instead of bare processes."""

    pod_type: type[DaemonPod] = DaemonPod

    def __init__(self, folder: Path, logs: Path, binary: Path) -> None:
        """``folder`` has the images, and the objects that the host rendered."""
        self._folder = folder
        self._logs = logs
        self._binary = binary
        self._open = contextlib.ExitStack()
        self.set_values("defaults")
        self.kubelet = Kubelet(KUBELET, seed=0)
        self.enforcer = _PodEnforcer()
        self.use("image.tar")

    def _start(self) -> None:
        with IPRoute() as node:
            (loopback,) = node.link_lookup(ifname="lo")
            node.addr("add", index=loopback, address=_API, prefixlen=32)
            self._open.callback(_forget_address, loopback)
        token = _VOLUMES / "token"
        token.mkdir(parents=True, exist_ok=True)
        self.api = ApiServer((_API, 0), tls=_certificate(token))
        self._open.callback(self.api.close)
        self._pods = itertools.count(1)
        self.api.faults.token = secrets.token_hex(16)
        (token / "token").write_text(self.api.faults.token)
        (token / "namespace").write_text(self.namespace)
        self.api.put_node(NODE)
        self.kubelet.start()
        self._open.callback(self.kubelet.stop)
        self.node = _this_node(self.api.port)
        self.install()

    @property
    def daemonset(self) -> Json:
        (found,) = [item for item in self.objects if item["kind"] == "DaemonSet"]
        return found

    @property
    def namespace(self) -> str:
        return str(self.daemonset["metadata"]["namespace"])

    def set_values(self, name: str) -> None:
        """The objects of pods started from now on, by the name of their set of values."""
        self.objects: list[Json] = json.loads((self._folder / f"{name}.json").read_text())

    def use(self, archive: str) -> None:
        """The image of pods started from now on, by the name of its file."""
        self.image = Image(self._folder / archive)

    def install(self) -> None:
        """Start a pod of the DaemonSet, and wait until it does its work."""
        pod = self.start_pod()
        self.at_first = pod.probe("enforcer", "readinessProbe")
        """What the enforcer's probe found before its programs can have been attached."""
        self.wait_ready(pod)

    def start_pod(self) -> DaemonPod:
        """Start a pod, and wait for nothing."""
        pod = self.pod_type(
            self.daemonset["spec"]["template"],
            self.image,
            self.namespace,
            self._logs,
            _VOLUMES / "token",
            Network(next(self._pods)),
        )
        self._open.callback(pod.close)
        pod.start(self.node)
        self.pod = pod
        return pod

    def begin(
        self, name: str, gpu: int, mib: int, cus: int, folders: Sequence[str] = ()
    ) -> Running:
        """A running pod with that share, and with those folders of the node.

        On a machine that gave the plugin no time for a second it answers that this is too long, and
        there is another pod of the name, as a ReplicaSet makes one.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self.run(self.bind(name, self.share(gpu, mib, cus)), folders)
            except AdmissionError as error:
                if not left or _TOO_LATE not in str(error):
                    raise
                self.api.store.delete("pods", ("default", name))
                wait_for("the node's lock", self._unlocked, _READY_SECONDS)
        raise AssertionError(name)

    def _unlocked(self) -> bool:
        return "hami.io/mutex.lock" not in self.api.node_annotations(NODE)

    def wait_ready(self, pod: DaemonPod) -> None:
        """Until the metrics answer, kubelet has healthy devices, and the probes say so, too."""

        def told() -> str:
            return "\n".join(f"{name}:\n{pod.log(name)}" for name in pod.containers)

        def ready() -> bool:
            # Asking all the time would take the time of those that are asked.
            time.sleep(0.5)
            assert pod.alive(), f"a container ended:\n{told()}"
            self.enforcer.metrics_url = f"http://{pod.network.address}:9394/metrics"
            if self.enforcer.metrics() is None or not self._healthy():
                return False
            return all(pod.probe(name, "readinessProbe")[0] for name in pod.containers)

        try:
            wait_for("the pod's readiness", ready, _READY_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{told()}") from None
        wait_for("the node annotation", lambda: self.registered() != [], _START_SECONDS)

    def _healthy(self) -> bool:
        try:
            self.kubelet.wait_devices("amd.com/gpu", lambda ids: "Healthy" in ids.values(), 1)
        except TimeoutError:
            return False
        return True


class _PodEnforcer(Enforcer):
    """What tests ask of an enforcer, answered by the one in the pod."""

    def __init__(self) -> None:
        self.state = STATE
        self.metrics_url = ""

    def metrics(self) -> str | None:
        try:
            return super().metrics()
        except (OSError, http.client.HTTPException):
            return None


def _volume(volume: Json, token: Path) -> Path:
    """The host's directory behind a volume, made where its type says so."""
    if "hostPath" in volume:
        path = Path(volume["hostPath"]["path"])
        match volume["hostPath"].get("type"):
            case "DirectoryOrCreate":
                path.mkdir(mode=0o755, parents=True, exist_ok=True)
            case "Directory":
                assert path.is_dir(), f"volume {volume['name']}: {path} is no directory"
            case other:
                raise podspec.PodSpecError(f"volume {volume['name']}: hostPath of type {other}")
        return path
    if "emptyDir" in volume:
        path = _VOLUMES / uuid.uuid4().hex
        path.mkdir(parents=True)
        return path
    if "projected" in volume:
        return token
    raise podspec.PodSpecError(f"volume {volume['name']}: cannot translate {sorted(volume)}")


def _this_node(port: int) -> podspec.Node:
    devices = []
    for folder, _, names in os.walk("/dev"):
        for name in names:
            state = os.lstat(f"{folder}/{name}")
            if stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode):
                kind = "c" if stat.S_ISCHR(state.st_mode) else "b"
                numbers = os.major(state.st_rdev), os.minor(state.st_rdev)
                if not folder.startswith(("/dev/pts", "/dev/shm")):
                    devices.append(podspec.Device(f"{folder}/{name}", kind, *numbers))
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    defined = re.findall(r"^#define (CAP_\w+)\s+(\d+)$", _HEADER.read_text(), re.MULTILINE)
    return podspec.Node(
        name=NODE,
        devices=devices,
        capabilities=frozenset(name for name, number in defined if int(number) <= last),
        seccomp=json.loads(_PROFILE.read_text()),
        services={"KUBERNETES_SERVICE_HOST": _API, "KUBERNETES_SERVICE_PORT": str(port)},
    )


def _forget_address(loopback: int) -> None:
    with IPRoute() as node:
        node.addr("del", index=loopback, address=_API, prefixlen=32)


def _certificate(folder: Path) -> ssl.SSLContext:
    """The API server's identity; ``ca.crt`` is what a pod trusts it by."""
    key = folder.with_name("apiserver.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=kube-apiserver", "-keyout", key),
            *("-addext", f"subjectAltName=IP:{_API}", "-out", folder / "ca.crt"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", key)
    return context


def _member(tar: tarfile.TarFile, name: str) -> Any:
    content = tar.extractfile(name)
    assert content is not None, name
    return content


def _unpack(layer: Any, root: Path) -> None:
    with subprocess.Popen(["tar", "-xz", "-C", root], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        shutil.copyfileobj(layer, process.stdin, 1 << 20)
        process.stdin.close()
        assert process.wait(timeout=300) == 0
