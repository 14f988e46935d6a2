# SPDX-License-Identifier: Apache-2.0
"""AMD's own build of HIP and ROCr 5.4, as a wheel on PyPI carries it."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from typing import TYPE_CHECKING

from tests.testbed.cache import Cache, Report, Step

from .debian import BOOKWORM_BASE, unpacked

if TYPE_CHECKING:
    from pathlib import Path

_WHEEL = "pytorch-triton-rocm==2.1.0"
_INSIDE = "triton/third_party/rocm/lib/"
# What a program was linked with, for what the wheel calls by its name in the linker's eyes.
_NAMES = {
    "libamdhip64.so.5": "libamdhip64.so",
    "libhsa-runtime64.so.1": "libhsa-runtime64.so",
}


def rootfs() -> Path:
    """A root of Debian 12 with the wheel's libraries among the system's.

    Raises StepError where the package index does not have it; 169 MB are fetched once.
    """
    cache = Cache.from_environment(os.environ)
    report = Report()

    def make(into: Path, step: Step) -> None:
        fetched = into / "wheel"
        # Nothing of it is imported, so this Python need not be the one it was built for.
        step.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                  "--python-version", "3.11", "--only-binary", ":all:",
                  "--dest", fetched, _WHEEL])  # fmt: skip
        base = unpacked("bookworm", BOOKWORM_BASE)
        shutil.copytree(base, into / "root", symlinks=True)
        libraries = into / "root" / "usr" / "lib" / "x86_64-linux-gnu"
        libraries.mkdir(parents=True, exist_ok=True)
        (wheel,) = fetched.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                library = name.removeprefix(_INSIDE)
                # Without code objects; and the stand-in has a libdrm_amdgpu of its own.
                if "/" not in library and library not in {"", "libdrm_amdgpu.so"}:
                    (libraries / library).write_bytes(archive.read(name))
        for name, target in _NAMES.items():
            (libraries / name).symlink_to(target)
        shutil.rmtree(fetched)

    return cache.ensure("hook-packages", "amd", "5.4", report, make) / "root"
