# SPDX-License-Identifier: Apache-2.0
"""A fresh root of a Debian release: what debootstrap makes, what the README asks for, the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import apt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROJECT = Path(__file__).resolve().parents[2]
ASKED_FOR = ("make", "python3")
"""By the README, of the one who follows it."""

_TREE = Path("root/ringfence")
_CACHE = Path("root/.cache/ringfence")
_TRUSTED = Path("root/trusted.crt")
_STALE = "Acquire::Check-Valid-Until"
"""Set where the machine's mirror stands still."""
_WAY_OUT = re.compile("(https?|no|ftp)_proxy|PIP_INDEX_URL", re.IGNORECASE)
# The root of a machine is a mount: `unshare --mount` counts on it.
_ENTER = """\
mount --bind "$0" "$0" && mount -t proc proc "$0/proc" &&
mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" &&
cd / && exec chroot "$0" "$@"
"""


@dataclass(frozen=True, slots=True)
class Root:
    """The directory, and the network's settings that its programs are given."""

    path: Path
    environment: Mapping[str, str]

    def run(self, command: list[str], log: Path) -> int:
        """The exit status of a command in the tree, with processes and mounts of its own."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        with log.open("wb") as output:
            return subprocess.run(
                [
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                    *("sh", "-c", _ENTER, str(self.path)),
                    *("env", "--ignore-environment", f"--chdir=/{_TREE}", *variables, *command),
                ],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode


def make(suite: str, path: Path, log: Path) -> Root:
    """Fetch the release from the machine's own mirror, and clone the tree into it."""
    machine = apt.parse_os_release(Path("/etc/os-release").read_text())
    source = apt.distribution_source(apt.machine_sources(Path("/etc/apt")), machine)
    keyring = [f"--keyring={source.signed_by}"] if source.signed_by.startswith("/") else []
    with log.open("wb") as output:
        for command in (
            (
                # Its mounts go with the namespace.
                *("unshare", "--mount", "debootstrap", "--variant=minbase", *keyring),
                *(f"--include={','.join(ASKED_FOR)}", suite, str(path), source.uris[0]),
            ),
            ("git", "clone", "--quiet", "--no-hardlinks", str(PROJECT), str(path / _TREE)),
        ):
            subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT)
    # Not to root alone, as the test's directory is.
    path.chmod(0o755)
    shutil.copy(Path("/etc/resolv.conf").resolve(), path / "etc/resolv.conf")
    dump = subprocess.run(["apt-config", "dump", _STALE], check=True, stdout=subprocess.PIPE).stdout
    (path / "etc/apt/apt.conf.d/90mirror").write_bytes(dump)
    return Root(path, _environment(path, os.environ))


def give(root: Root, cache: Path, kinds: Iterable[str]) -> None:
    """Have these folders of the machine's cache in the root's: copies, nothing is written back."""
    for kind in kinds:
        target = root.path / _CACHE / kind
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", "--reflink=auto", cache / kind, target], check=True)


def readme_commands(text: str) -> list[str]:
    """What the README tells to type to try it, without what it says behind it."""
    part = text.partition("\n## Try it")[2].partition("\n## ")[0]
    return [
        line.partition("#")[0].strip() for line in re.findall(r"^ {4}(.+)$", part, re.MULTILINE)
    ]


def _environment(path: Path, machine: Mapping[str, str]) -> dict[str, str]:
    """A login's, and how this machine reaches the network."""
    found = {name: value for name, value in machine.items() if _WAY_OUT.fullmatch(name)}
    if trusted := machine.get("PIP_CERT"):
        shutil.copy(trusted, path / _TRUSTED)
        found["PIP_CERT"] = f"/{_TRUSTED}"
    folders = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return {"PATH": ":".join(folders), "HOME": "/root", "LANG": "C.UTF-8", **found}
