# SPDX-License-Identifier: Apache-2.0
"""Files of other Debian suites: their ROCm, and headers to hold our ABI numbers against."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, Step, digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADERS = ("libhsa-runtime-dev",)

_SUITES = ("bullseye", "bookworm", "trixie", "sid", "experimental")

_BASE = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g", "busybox-static")

TRIXIE_ROCM = (
    *("libamdhip64-5", "libhsa-runtime64-1", "libamd-comgr2", "libhsakmt-dev", "busybox-static"),
    *("libc6", "libstdc++6", "libgcc-s1", "libdrm2", "libllvm17t64", "libelf1t64", "zlib1g"),
    *("libzstd1", "libnuma1", "libedit2", "libxml2", "libtinfo6", "libffi8", "libz3-4", "libbsd0"),
    *("libmd0", "liblzma5"),
)
"""HIP 5.7.1 and ROCr 6.1.2 with what they load, and one static program to start others."""

_ROCR_INSIDE = (*_BASE, "libhsa-runtime64-1", "libdrm2", "libelf1t64", "libnuma1", "libzstd1")

SID_ROCR = _ROCR_INSIDE
"""ROCr 6.4, which has its thunk inside. Its libdrm-amdgpu1 is left out for the stand-in."""

_COMPILER = ("libamd-comgr3", "libxml2-16", "libedit2", "libtinfo6", "libffi8", "libbsd0", "libmd0")

SID_HIP = (*_ROCR_INSIDE, "libamdhip64-6", *_COMPILER, "liblzma5", "libz3-4", "libllvm21")
"""HIP 6.4 too, and the compiler it does not start without."""

EXPERIMENTAL_HIP = (
    *(f"{name}/sid" for name in (*_BASE, "libdrm2", "libelf1t64", "libnuma1", "libzstd1")),
    *(f"{name}/sid" for name in (*_COMPILER[1:], "liblzma5", "libz3-4", "libllvm22")),
    *("libhsa-runtime64-1", "libamdhip64-7", "libamd-comgr3", "librocprofiler-register-0"),
)
"""HIP 7.2 and ROCr 7.2, on sid's C library."""

BOOKWORM_BASE = _BASE
"""What AMD's own builds need of a distribution."""


def unpacked(suite: str, packages: Sequence[str]) -> Path:
    """A directory with the files of these packages of a suite, or of that behind a slash.

    Nothing is installed.

    Raises StepError where the archive does not have them.
    """
    cache = Cache.from_environment(os.environ)
    report = Report()
    step = Step("hook packages", report, cache.root / "logs" / "hook-packages.log")
    step.log.parent.mkdir(parents=True, exist_ok=True)
    archive = apt.open_archive(cache, step, refresh=False, name="apt-hook", suites=_SUITES)

    def make(into: Path, step: Step) -> None:
        fetched = into / "packages"
        fetched.mkdir()
        environment = {"APT_CONFIG": str(archive.root / "apt.conf"), "LC_ALL": "C"}
        names = [name if "/" in name else f"{name}/{suite}" for name in packages]
        step.run(["apt-get", "download", *names], cwd=fetched, env=environment)
        for package in sorted(fetched.glob("*.deb")):
            apt.unpack(package, into / "root", step)
            package.unlink()

    key = digest(*sorted(packages))[:16]
    return cache.ensure("hook-packages", suite, key, report, make) / "root"


def libraries_of(suite: str) -> Path:
    """The library directory of a suite's glibc, with jemalloc and tcmalloc; by its own loader.

    Raises StepError where the archive does not have it.
    """
    # experimental has but a C library; the others have a new name since 64-bit time came.
    base = "sid" if suite == "experimental" else suite
    tcmalloc = "libtcmalloc-minimal4" + ("" if base in {"bullseye", "bookworm"} else "t64")
    others = ("libjemalloc2", tcmalloc, "libstdc++6", "libgcc-s1")
    root = unpacked(suite, ("libc6", *(f"{name}/{base}" for name in others)))
    usr = root / "usr" / "lib" / "x86_64-linux-gnu"
    merged = root / "lib" / "x86_64-linux-gnu"
    # Before trixie glibc was below /lib, which an installed system links to /usr/lib.
    if merged.is_dir() and not merged.is_symlink():
        for path in merged.iterdir():
            if not (usr / path.name).exists():
                (usr / path.name).symlink_to(path)
    return usr


def compiling_for(suite: str) -> tuple[str, ...]:
    """Flags by which this machine's compiler builds for a suite's C library.

    Raises StepError where the archive does not have it.
    """
    packages = ("libc6", "libc6-dev", "linux-libc-dev", "libcrypt-dev", "libgcc-s1")
    root = unpacked(suite, packages)
    for name in ("lib", "lib64"):
        # base-files would have made these.
        if not (root / name).exists() and not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    loader = root / "lib64" / "ld-linux-x86-64.so.2"
    if loader.is_symlink() and (target := loader.readlink()).is_absolute():
        # The linker would leave the root by it.
        loader.unlink()
        loader.symlink_to(f"..{target}")
    # The start files are looked for beside the compiler's own first.
    return f"--sysroot={root}", f"-B{root / 'usr' / 'lib' / 'x86_64-linux-gnu'}"
