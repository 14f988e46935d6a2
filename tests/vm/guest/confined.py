# SPDX-License-Identifier: Apache-2.0
"""The enforcer in a container as Kubernetes makes one that is not privileged, by the real runc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.testbed.podspec import MASKED, READ_ONLY, default_profile
from tests.vm.guest.services import Enforcer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tests.testbed.podspec import Json

CAPABILITIES: Final = (
    *("CAP_DAC_OVERRIDE", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_SYS_PTRACE"),
)
"""What docs/security.md says stays, and the chart gives with ``enforcer.privileged: false``."""

_WRITABLE: Final = ("/sys/fs/cgroup", "/sys/fs/bpf", "/run/ringfence")
_PROFILE: Final = Path("/usr/share/containers/seccomp.json")
"""A runtime's default profile."""
_DRM_MAJOR: Final = 226


class Confined(Enforcer):
    """``ringfence enforcer`` with a read-only root and nothing it was not given."""

    def __init__(
        self,
        folder: Path,
        logs: Path,
        capabilities: Collection[str] = CAPABILITIES,
        more: Sequence[str] = (),
    ) -> None:
        """``folder`` is its state and its bundle."""
        super().__init__(folder, logs, more=more)
        self._bundle = folder / "bundle"
        self._capabilities = sorted(capabilities)

    def spawn(self) -> None:
        """Start it; what it prints goes to its log."""
        rootfs = self._bundle / "rootfs"
        rootfs.mkdir(parents=True, exist_ok=True)
        Path("/run/ringfence").mkdir(exist_ok=True)
        # The files of the node are those of the image here.
        subprocess.run(["mount", "--bind", "/", rootfs], check=True)
        (self._bundle / "config.json").write_text(json.dumps(self._spec(rootfs)))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["runc", "run", "--bundle", self._bundle, "enforcer"], stdout=log, stderr=log
            )

    def wait(self) -> int:
        status = super().wait()
        subprocess.run(["runc", "delete", "--force", "enforcer"], check=False, capture_output=True)
        subprocess.run(["umount", "-l", self._bundle / "rootfs"], check=False)
        return status

    def _spec(self, rootfs: Path) -> dict[str, object]:
        kfd = os.major(Path("/dev/kfd").stat().st_rdev)
        code = "import sys; from enforcer.cli import main; sys.exit(main())"
        node = {"allow": True, "type": "c", "access": "rw"}
        shown = ["/proc", "/sys", "/dev", "/tmp", "/run", str(Path.cwd())]
        if not self.log.is_relative_to("/tmp"):
            shown.append(str(self.log.parent))
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": [sys.executable, "-c", code, self.name, *self.options],
                "env": [f"{name}={value}" for name, value in os.environ.items()],
                "cwd": str(Path.cwd()),
                "capabilities": dict.fromkeys(
                    ("bounding", "effective", "permitted"), self._capabilities
                ),
            },
            "root": {"path": str(rootfs), "readonly": True},
            "mounts": [
                *(_bind(path, writable=False) for path in shown),
                *(_bind(path, writable=True) for path in _WRITABLE),
            ],
            "linux": {
                "cgroupsPath": "/enforcer",
                "namespaces": [{"type": kind} for kind in ("mount", "ipc", "uts", "cgroup")],
                "maskedPaths": [*MASKED],
                "readonlyPaths": [*READ_ONLY],
                "resources": {
                    "devices": [
                        {"allow": False, "access": "rwm"},
                        {**node, "major": 1},
                        {**node, "major": _DRM_MAJOR},
                        {**node, "major": kfd},
                    ]
                },
                "seccomp": seccomp(self._capabilities),
            },
        }


def seccomp(capabilities: Iterable[str]) -> Json:
    """What the runtime's default profile is for a container with these capabilities."""
    return default_profile(json.loads(_PROFILE.read_text()), "amd64", capabilities)


def _bind(path: str, *, writable: bool) -> dict[str, object]:
    options = ["rbind", "nosuid"] if writable else ["rbind", "nosuid", "ro"]
    return {"destination": path, "source": path, "type": "bind", "options": options}
