# SPDX-License-Identifier: Apache-2.0
"""A cluster of one node where all but the scheduler and the GPU's silicon is real."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, TypeVar

from deviceplugin.podresources import read_pod_resources
from enforcer.host import dmem
from enforcer.plan import headroom
from enforcer.slices import FILE, read_checkpoint
from tests.contract.peers import hami
from tests.vm.guest.kubelet import image
from tests.vm.guest.kubelet.apiserver import ApiError, ApiServer
from tests.vm.guest.kubelet.node import (
    POD_RESOURCES,
    Kubelet,
    Runtime,
    set_up_network,
)
from tests.vm.guest.node import Client
from tests.vm.guest.services import (
    CGROUP,
    Daemon,
    Enforcer,
    dmem_max,
    gate_limit,
    ledger,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from deviceplugin.podresources import PodDevices
    from enforcer.model import Gpu, Slice
    from tests.vm.guest.kubelet.apiserver import Json

NODE = "ringfence-node"
RESOURCE = "amd.com/gpu"
REGISTER = "hami.io/node-amd-register"

_SECONDS = 600
"""For what kubelet does in its own time, on an emulated and maybe busy machine."""
_PAUSE_SECONDS = 0.5
"""A question costs the API server more than the answer is worth to a test."""

_T = TypeVar("_T")
_TRIES = 3
_TOO_LATE = "slices.json: not written after"
_TALK = Path("/run/testbed-talk")


@dataclass(frozen=True, slots=True)
class Container:
    """A running container of a pod."""

    pod: Json
    name: str
    id: str
    path: Path
    """Its cgroup."""

    @property
    def pod_path(self) -> Path:
        return self.path.parent

    @property
    def cgroup_id(self) -> int:
        return self.path.stat().st_ino

    @property
    def pod_cgroup_id(self) -> int:
        return self.pod_path.stat().st_ino

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def kill(self) -> None:
        """SIGKILL to all of it, as an oom or a crash would."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        """What its first process was started with."""
        text = Path(f"/proc/{self.pids()[0]}/environ").read_bytes().decode()
        return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


class Talk:
    """The pipes between a test and the client in a container. Use in a ``with`` statement."""

    def __init__(self, pod: str, container: str) -> None:
        folder = _TALK / pod / container
        found: list[int] = []

        def opened() -> bool:
            # Without a reader on the other side this would wait, and for ever if it has ended.
            with contextlib.suppress(OSError):
                found.append(os.open(folder / "in", os.O_WRONLY | os.O_NONBLOCK))
            return bool(found)

        eventually(f"the client in {pod}/{container}", opened)
        flags = fcntl.fcntl(found[0], fcntl.F_GETFL)
        fcntl.fcntl(found[0], fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
        self.stdin: IO[str] = os.fdopen(found[0], "w")
        self.stdout: IO[str] = (folder / "out").open()
        self.client = Client(self)

    def __enter__(self) -> Client:
        return self.client

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()


def eventually(what: str, condition: Callable[[], _T | None]) -> _T:
    """What ``condition`` returns once it is neither None nor False; AssertionError if never."""
    return wait_for(what, condition, _SECONDS, _PAUSE_SECONDS)


def container(name: str, gpus: int, first: str = "") -> Json:
    """A container with the GPU client behind pipes; ``first`` is a shell command before it."""
    command = "exec gpuclient </talk/in >/talk/out"
    return hami.container(
        name,
        gpus,
        image=image.NAME,
        imagePullPolicy="Never",
        command=["/bin/sh", "-c", f"{first}\n{command}"],
        volumeMounts=[{"name": f"talk-{name}", "mountPath": "/talk"}],
    )


class Cluster:
    """Use it in a ``with`` statement: at its end no process and no pod is left."""

    def __init__(self, programs: Path, root: Path, logs: Path, client: Path) -> None:
        self._client = client
        self._open = contextlib.ExitStack()
        state = root / "state"
        self.manifests = root / "manifests"
        for folder in (state, self.manifests):
            folder.mkdir(parents=True)
        self.api = ApiServer(programs, root, logs)
        self.runtime = Runtime(programs, root, logs)
        self.kubelet = Kubelet(programs, NODE, self.api.kubeconfig, self.manifests, logs)
        self.enforcer = Enforcer(state, logs, interval=1.0)
        self.bare_enforcer = Enforcer(state, logs, layers="none", interval=1.0)
        """As on a kernel that can hold nothing."""
        self.hook = root / "hook"
        """Where the plugin looks for it; it is not installed."""
        self.plugin = Daemon(
            "device-plugin",
            [
                f"--node-name={NODE}",
                f"--state-dir={state}",
                f"--hook-dir={self.hook}",
                f"--kubeconfig={self.api.kubeconfig}",
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
        set_up_network()
        # kubelet and the runtime hand mounts on to containers.
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        self._open.callback(self.enforcer.unload)
        daemons = self.enforcer, self.bare_enforcer, self.plugin
        for one in (self.runtime, self.kubelet, *daemons):
            self._open.callback(_end, one)
        self._open.callback(self.api.close)
        # One after the other: all that starts at once takes longer than each is given.
        self.start_enforcer()
        self.api.start()
        self.runtime.spawn()
        self.runtime.wait_ready([self._client])
        self.api.wait_ready()
        self.kubelet.start()
        self.start_plugin()
        self._open.callback(self.remove_all)
        self.wait_offered()
        eventually("the node annotation", lambda: self.registered() != [])

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start_enforcer(self) -> None:
        """The first to be there."""
        self.enforcer.start()

    def start_plugin(self) -> None:
        """The last, once there is a kubelet."""
        self.plugin.spawn()

    def plugin_lives(self) -> None:
        """AssertionError, with what it said, if it has ended."""
        assert self.plugin.alive(), f"the device plugin ended:\n{self.plugin.log.read_text()}"

    def wait_offered(self) -> None:
        """Return once kubelet says that the node has GPUs to give."""

        def offered() -> bool:
            self.plugin_lives()
            return self.allocatable() > 0

        eventually("allocatable GPUs on the node", offered)

    def allocatable(self) -> int:
        """How many GPUs kubelet says can be given; 0 where it has not told yet."""
        try:
            status = self.api.node(NODE)["status"]
        except ApiError as error:
            if error.status != 404:
                raise
            return 0
        return int(status.get("allocatable", {}).get(RESOURCE, 0))

    def registered(self) -> list[dict[str, object]]:
        """The GPUs in the node's register annotation, as a scheduler reads them."""
        annotations = self.api.node(NODE)["metadata"].get("annotations", {})
        found: list[dict[str, object]] = json.loads(annotations.get(REGISTER, "[]"))
        return found

    def share(self, gpu: int, mib: int, cus: int) -> str:
        """The scheduler's entry for one container with a share of GPU number ``gpu``."""
        one = self.registered()[gpu]
        return f"{one['id']},{one['type']},{mib},{cus}:;"

    def bind(self, name: str, devices: str, *containers: Json, init: tuple[Json, ...] = ()) -> Json:
        """A pod as a scheduler leaves it: annotated with ``devices``, bound to this node."""
        containers = containers or (container("main", 1),)
        pod = hami.pod(name, *containers, init=init)
        pod["spec"] |= {
            # There is no network plugin.
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "volumes": [_pipes(name, one["name"]) for one in (*containers, *init)],
        }
        eventually("the node's lock for this pod", self.unlocked)
        created = self.api.create_pod(hami.filter_pod(pod, NODE, devices))
        hami.lock_and_mark(
            "default",
            name,
            lambda patch: self.api.patch_node(NODE, patch),
            lambda patch: self.api.patch_pod(name, patch),
        )
        self.api.bind_pod(name, NODE)
        return created

    def admitted(
        self, name: str, devices: str, *containers: Json, init: tuple[Json, ...] = ()
    ) -> Json:
        """A pod that kubelet has admitted.

        On a machine that gave the plugin no time for a second it answers that this is too long, and
        kubelet fails the pod. Then there is another of its name, as a ReplicaSet makes one.
        """
        for _ in range(_TRIES):
            pod = self.bind(name, devices, *containers, init=init)
            message = eventually(f"admission of pod {name}", partial(self._admission, name))
            if _TOO_LATE not in message:
                return pod
            self.end(name)
        raise AssertionError(f"pod {name}: {message}")

    def _admission(self, name: str) -> str | None:
        """What kubelet said of a pod, empty for most; None before it has said anything."""
        pod = self.api.pod(name)
        assert pod is not None, f"pod {name} is gone"
        status = pod["status"]
        return str(status.get("message", "")) if "startTime" in status else None

    def running(self, pod: Json, name: str = "main", other_than: str = "") -> Container:
        """That container once it runs, and under another id than ``other_than``."""
        title = pod["metadata"]["name"]

        def found() -> Container | None:
            now = self.api.pod(title)
            assert now is not None, f"pod {title} is gone"
            assert now["status"]["phase"] in {"Pending", "Running"}, now["status"]
            for status in now["status"].get("containerStatuses", []):
                identity = status.get("containerID", "").rpartition("/")[2]
                if (
                    status["name"] == name
                    and "running" in status["state"]
                    and identity != other_than
                ):
                    [path] = CGROUP.glob(f"kubepods/**/*{identity}*")
                    return Container(now, name, identity, path)
            return None

        return eventually(f"container {title}/{name}", found)

    def start_refused(self, name: str, why: str) -> None:
        """Return once kubelet was told so instead of starting a pod's only container."""

        def told() -> bool:
            now = self.api.pod(name)
            assert now is not None, f"pod {name} is gone"
            for status in now["status"].get("containerStatuses", []):
                assert "running" not in status["state"], status
                waiting = status["state"].get("waiting", {})
                if waiting.get("reason") == "CreateContainerConfigError":
                    return why in waiting["message"]
            return False

        eventually(f"the refusal of pod {name}: {why}", told)

    def annotations(self, name: str) -> dict[str, str]:
        """A pod's annotations."""
        pod = self.api.pod(name)
        assert pod is not None, f"pod {name} is gone"
        return dict(pod["metadata"].get("annotations", {}))

    def said(self, pod: str, container_name: str, file: str) -> list[str]:
        """The lines a container wrote to a file of its pipes' folder."""
        return (_TALK / pod / container_name / file).read_text().splitlines()

    def end(self, name: str) -> None:
        """Delete a pod, and wait until kubelet has taken it down."""
        self.api.delete_pod(name)
        eventually(f"the end of pod {name}", lambda: self.api.pod(name) is None)

    def remove_all(self) -> None:
        """End every pod that is left."""
        for name in self.api.pods():
            self.api.delete_pod(name)
        eventually("the end of all pods", lambda: self.api.pods() == [])

    def slices(self) -> list[Slice]:
        """The checkpoint."""
        slices, problems = read_checkpoint(self.enforcer.state / FILE)
        assert not problems
        return list(slices)

    def devices(self) -> PodDevices:
        """kubelet's own record of who has which devices (PodResources)."""
        return eventually("PodResources", lambda: read_pod_resources(POD_RESOURCES, 10.0))

    def unlocked(self) -> bool:
        """Whether the scheduler's lock on the node is gone."""
        return "hami.io/mutex.lock" not in self.api.node(NODE)["metadata"].get("annotations", {})


def _pipes(pod: str, container_name: str) -> Json:
    """A volume with the pipes of a container, made anew."""
    folder = _TALK / pod / container_name
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("in", "out"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    return {"name": f"talk-{container_name}", "hostPath": {"path": str(folder)}}


def _end(program: Kubelet | Runtime | Daemon) -> None:
    if program.alive():
        program.kill()


def is_held(one: Container, gpu: Gpu, size: int) -> None:
    """The kernel's own values for a container and its pod, which has no other on this GPU."""
    counted = f"drm/{gpu.bdf}/vram" in dmem.capacity(CGROUP)
    for path in (one.pod_path, one.path):
        eventually("the gate's limit", partial(_gated, path, gpu, size))
        if counted:
            # The pod's is there before its container is; the container's follows its start.
            eventually("dmem.max", partial(_counted, path, gpu, size))


def leaves_nothing(cluster: Cluster, one: Container, gpu: Gpu) -> None:
    """Take a pod down: afterwards nothing of it is in kernel, checkpoint and kubelet's record."""
    name = one.pod["metadata"]["name"]
    ids = one.cgroup_id, one.pod_cgroup_id
    cluster.end(name)
    eventually("the slice released", lambda: name not in {s.pod for s in cluster.slices()})
    assert ("default", name) not in cluster.devices()
    for cgroup_id in ids:
        wait_for("its VRAM given back and its limit gone", partial(_forgotten, cgroup_id, gpu))


def _gated(path: Path, gpu: Gpu, size: int) -> bool:
    return gate_limit(path.stat().st_ino, gpu.bdf) == size


def _counted(path: Path, gpu: Gpu, size: int) -> bool:
    return dmem_max(path, gpu.bdf) == size + headroom(size)


def _forgotten(cgroup_id: int, gpu: Gpu) -> bool:
    return ledger(cgroup_id, gpu.bdf).empty and gate_limit(cgroup_id, gpu.bdf) == "absent"
