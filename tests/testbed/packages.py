# SPDX-License-Identifier: Apache-2.0
"""The distribution packages the project's tests need: the one list, and how they get installed."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.testbed.cache import Cache, Report, StepError

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGES = {
    "building kernels and modules": (
        *("gcc", "libc6-dev", "make", "bc", "bison", "flex", "binutils", "dwarves", "kmod"),
        *("libelf-dev", "libssl-dev", "lz4", "xz-utils", "zstd", "bzip2", "rsync", "dpkg-dev"),
    ),
    "virtual machines": ("qemu-system-x86", "busybox-static", "erofs-utils", "util-linux"),
    "eBPF": ("clang", "llvm", "libbpf1", "libbpf-dev", "python3-bpfcc"),
    # The last but one has the default filter of system calls that container runtimes use, the last
    # makes image stores as CRI-O's.
    "containers": ("runc", "openssl", "golang-github-containers-common", "containers-storage"),
    "a kubelet and its API server": ("openssl",),
    "the hook, over ROCm without a GPU": (
        *("g++", "rustc", "libamdhip64-5", "libamdhip64-dev", "libhsa-runtime64-1"),
        *("libhsa-runtime-dev", "libamd-comgr2", "libhsakmt-dev", "libdrm-dev"),
        # The library itself has another name since Debian 13 and Ubuntu 24.04 (64-bit time).
        *("libjemalloc2", "libgoogle-perftools-dev"),
        *("libclang-rt-dev", "musl-tools", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
        "qemu-user",
    ),
    "Python": ("python3", "python3-venv", "python3-pip"),
    "checks": ("shellcheck", "git"),
    "a newcomer's machine": ("debootstrap",),
}
"""By purpose. The names are the same in Debian 12, Debian 13 and Ubuntu 24.04."""


def prepare(cache: Cache, report: Report) -> None:
    """Install what is missing. Raises StepError: not root, or the installation failed."""
    wanted = sorted({name for names in PACKAGES.values() for name in names})
    absent = missing(wanted, _status(wanted))
    if not absent:
        return
    if os.geteuid() != 0:
        raise StepError(
            "packages: some are not installed, and that needs root; run: sudo apt-get update && "
            f"sudo apt-get install --no-install-recommends {' '.join(absent)}"
        )
    with cache.lock("packages", cache.step("packages", report, "packages.log")) as step:
        step.say(f"installing {' '.join(absent)}")
        quiet = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        step.run(["apt-get", "update"], env=quiet)
        # Another run of the package manager may hold its lock: wait for it, but not for ever.
        install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "--yes"]
        step.run([*install, "--no-install-recommends", *absent], env=quiet)


def missing(wanted: Iterable[str], status: str) -> list[str]:
    """The packages that are not installed, by dpkg-query's lines "<package> <status>"."""
    installed = {
        words[0].partition(":")[0]
        for words in map(str.split, status.splitlines())
        if words[1:] == ["installed"]
    }
    return [name for name in wanted if name not in installed]


def _status(names: Iterable[str]) -> str:
    """Packages that dpkg has never heard of make it exit with status 1; the others are printed."""
    try:
        return subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        ).stdout
    except FileNotFoundError as error:
        raise StepError("packages: expected Debian or Ubuntu, found no dpkg-query") from error
