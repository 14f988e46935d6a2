# SPDX-License-Identifier: Apache-2.0
"""Containers in the guest as containerd would start them: the same bundle path, annotations and
cgroup path, by the real runc."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deviceplugin.allocate import Mount

CGROUP = Path("/sys/fs/cgroup")
BUNDLES = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
RUNC_ROOT = Path("/run/containerd/runc/k8s.io")


def device_nodes() -> list[Path]:
    """The device files of every GPU of this guest."""
    return [Path("/dev/kfd"), *sorted(Path("/dev/dri").glob("[cr]*[0-9]"))]


@dataclass
class Pod:
    """A pod's cgroup as a kubelet with the systemd driver names it (Burstable)."""

    name: str
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def cgroup(self) -> str:
        dashed = self.uid.replace("-", "_")
        return f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{dashed}.slice"

    @property
    def path(self) -> Path:
        return CGROUP / self.cgroup

    @property
    def cgroup_id(self) -> int:
        return self.path.stat().st_ino

    def create(self) -> Self:
        """What kubelet does before it asks for the sandbox."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def remove(self) -> None:
        """What kubelet does when the pod is gone. Waits for the last process to leave."""
        deadline = time.monotonic() + 10
        while self.path.exists():
            for child in sorted(self.path.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    child.rmdir()
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class RuncContainer:
    """One running container whose process talks to the test over its standard streams."""

    def __init__(
        self,
        pod: Pod,
        name: str,
        argv: list[str],
        binary: Path,
        env: Mapping[str, str] | None = None,
        devices: Sequence[str] | None = None,
        mounts: Sequence[Mount] = (),
    ) -> None:
        """Start ``argv`` with ``binary`` in /bin; ``devices`` None is every GPU's node."""
        self.pod = pod
        self.name = name
        self.id = (uuid.uuid4().hex + uuid.uuid4().hex)[:64]
        self.cgroup = f"{pod.cgroup}/cri-containerd-{self.id}.scope"
        self.path = CGROUP / self.cgroup
        self._bundle = BUNDLES / self.id
        rootfs = self._bundle / "rootfs"
        for folder in ("bin", "dev", "proc", "tmp", "sys"):
            (rootfs / folder).mkdir(parents=True)
        shutil.copy2(binary, rootfs / "bin" / binary.name)
        config = self._spec(argv, env or {}, devices, mounts)
        (self._bundle / "config.json").write_text(json.dumps(config))
        self.process: subprocess.Popen[str] = subprocess.Popen(
            ["runc", "--root", RUNC_ROOT, "run", "--bundle", self._bundle, self.id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def cgroup_id(self) -> int:
        return self.path.stat().st_ino

    def pids(self) -> list[int]:
        """Every process of the container, children's cgroups included."""
        return [
            int(pid)
            for procs in self.path.rglob("cgroup.procs")
            for pid in procs.read_text().split()
        ]

    def execute(self, *argv: str) -> str:
        """Standard output of a program begun in the running container, as ``kubectl exec`` does."""
        command = ["runc", "--root", str(RUNC_ROOT), "exec", self.id, *argv]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def kill(self) -> None:
        """SIGKILL to every process of the container, as ``kill -9`` on the node would."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait()

    def finish(self) -> int:
        """Close the client's input, wait for it to exit and return its status."""
        self.stdin.close()
        return self._wait()

    def _wait(self) -> int:
        status = self.process.wait(timeout=60)
        self.stdout.close()
        subprocess.run(
            ["runc", "--root", RUNC_ROOT, "delete", "--force", self.id],
            check=False,
            capture_output=True,
        )
        shutil.rmtree(self._bundle, ignore_errors=True)
        return status

    def _spec(
        self,
        argv: list[str],
        env: Mapping[str, str],
        devices: Sequence[str] | None,
        mounts: Sequence[Mount],
    ) -> dict[str, object]:
        paths = device_nodes() if devices is None else [Path(device) for device in devices]
        nodes = [(path, path.stat().st_rdev) for path in paths]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": argv,
                "env": ["PATH=/bin", *(f"{name}={value}" for name, value in env.items())],
                "cwd": "/",
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs"},
            "hostname": self.pod.name,
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                *(
                    {
                        "destination": one.inside,
                        "type": "bind",
                        "source": one.host,
                        "options": ["rbind", "ro" if one.read_only else "rw"],
                    }
                    for one in mounts
                ),
            ],
            "annotations": {
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.container-name": self.name,
                "io.kubernetes.cri.sandbox-name": self.pod.name,
                "io.kubernetes.cri.sandbox-namespace": self.pod.namespace,
                "io.kubernetes.cri.sandbox-uid": self.pod.uid,
            },
            "linux": {
                "cgroupsPath": f"/{self.cgroup}",
                "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "cgroup")],
                "devices": [
                    {
                        "path": str(path),
                        "type": "c",
                        "major": os.major(rdev),
                        "minor": os.minor(rdev),
                        "fileMode": 0o666,
                    }
                    for path, rdev in nodes
                ],
                "resources": {
                    "devices": [
                        {"allow": False, "access": "rwm"},
                        *(
                            {
                                "allow": True,
                                "type": "c",
                                "major": os.major(rdev),
                                "minor": os.minor(rdev),
                                "access": "rw",
                            }
                            for _, rdev in nodes
                        ),
                    ]
                },
            },
        }
