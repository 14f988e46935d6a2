# SPDX-License-Identifier: Apache-2.0
"""What is in the image: the one list, which the Dockerfile must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final

SUITE: Final = "trixie"
PYTHON: Final = "3.13"
"""That of the suite."""

SITE: Final = f"usr/local/lib/python{PYTHON}/dist-packages"
"""Where Debian's Python looks for what Debian did not install."""

PACKAGES: Final = ("base-files", "libbpf1", "libstdc++6", "python3")
"""Debian packages, with what they depend on. No shell, no package manager, no compiler."""

DEBUG_PACKAGES: Final = ("bpftool", "busybox-static", "python3-bpfcc")
"""More of them in the debug flavour: a shell, and the compiler of ``ringfence trace``."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One processor architecture under the names that each tool gives it."""

    debian: str
    """Also OCI's name."""
    machine: str
    bpf: str
    compiler: str


ARCHITECTURES: Final = {
    "amd64": Architecture("amd64", "x86_64", "x86", "x86_64-linux-gnu-gcc"),
    "arm64": Architecture("arm64", "aarch64", "arm64", "aarch64-linux-gnu-gcc"),
}

_PROGRAMS: Final = frozenset(("python3", f"python{PYTHON}", "bpftool", "busybox"))
"""Of the Debian packages. dpkg, tar, debconf and the like come along as dependencies."""

_LEFT_OUT: Final = (
    # Of Debian packages: what nobody reads in a container. Copyright files stay.
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/lintian/*",
    "usr/share/bug/*",
    "usr/share/bash-completion/*",
    "usr/share/doc-base/*",
    "usr/share/python3/*",
    "usr/share/pixmaps/*",
    "usr/share/applications/*",
    "usr/share/perl5/*",
    "usr/share/debconf/*",
    "usr/share/dpkg/*",
    "usr/share/polkit-1/*",
    "usr/share/zsh/*",
    "usr/share/base-files/*",
    "usr/lib/*/perl-base/*",
    "usr/lib/dpkg/*",
    "usr/lib/systemd/*",
    "usr/libexec/*",
    "var/lib/dpkg/*",
    "etc/dpkg/*",
    "etc/cron*",
    "etc/logrotate*",
    "etc/alternatives/*",
    "etc/update-motd.d/*",
    "usr/lib/valgrind/*",
    "usr/include/*",
    "usr/lib/python3*/test/*",
    "usr/lib/python3*/idlelib/*",
    "usr/lib/python3*/turtledemo/*",
    "usr/lib/python3*/pydoc_data/*",
    "usr/lib/python3*/ensurepip/*",
    # Of the Kubernetes client: its asynchronous twin, and a class for each kind there is. We speak
    # to the API server in plain JSON.
    f"{SITE}/kubernetes/aio/*",
    f"{SITE}/kubernetes/client/models/[!_]*",
    f"{SITE}/kubernetes/client/api/[!_]*",
    f"{SITE}/bin/*",
)

COPYRIGHT: Final = "usr/share/doc/"
"""Where each package's licence is; a package of which nothing else is left is left out whole."""

NOT_INSTALLED: Final = frozenset(
    (
        *("aiohttp", "aiohttp-retry", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist"),
        *("multidict", "propcache", "yarl"),
    )
)
"""What only the left-out twin of the Kubernetes client imports."""


def left_out(path: str) -> bool:
    """Whether a file (relative to the root) stays out of the image."""
    if path.startswith(COPYRIGHT):
        return not path.endswith("/copyright")
    folder, _, name = path.rpartition("/")
    if folder in ("usr/bin", "usr/sbin"):
        return name not in _PROGRAMS
    return any(fnmatch(path, pattern) for pattern in _LEFT_OUT)


def packages(flavour: str) -> tuple[str, ...]:
    """The Debian packages of a flavour: ``""`` or ``"debug"``."""
    return tuple(sorted(PACKAGES + (DEBUG_PACKAGES if flavour == "debug" else ())))
