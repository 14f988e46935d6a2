# SPDX-License-Identifier: Apache-2.0
"""The hook as a node would have it, and what stands in for a GPU under unmodified HIP and ROCr."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
TREE = _HERE.parents[1]
_LIBS = Path("/usr/lib/x86_64-linux-gnu")
_NEEDED = {
    "libamdhip64-5": _LIBS / "libamdhip64.so.5",
    "libhsa-runtime64-1": _LIBS / "libhsa-runtime64.so.1",
    "libamdhip64-dev": Path("/usr/include/hip/hip_runtime_api.h"),
    "libhsa-runtime-dev": Path("/usr/include/hsa/hsa_api_trace.h"),
    "libdrm-dev": Path("/usr/include/libdrm/amdgpu_drm.h"),
}
_THUNK_5 = Path("/usr/include/hsakmt.h")
_THUNK_6 = Path("/usr/include/hsakmt")
_C = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
# The table header includes its siblings the way ROCr's own sources do.
_CXX = ["c++", "-std=c++17", "-O2", "-w", "-DAMD_INTERNAL_BUILD", "-I/usr/include/hsa"]
_HIP = ["-D__HIP_PLATFORM_AMD__", "-Wno-unused-result"]
_LIBRARIES = (
    *("-Wl,--as-needed", "-lamdhip64", "-lhsa-runtime64", "-ldrm", "-ldrm_amdgpu"),
    *("-ldl", "-lpthread"),
)
_WAYS = {
    "hip": ["-lamdhip64"],
    "hip-now": ["-Wl,-z,now", "-lamdhip64"],
    "hip-noplt": ["-fno-plt", "-lamdhip64"],
    "hip-address": ["-DBIND_ADDRESS", "-lamdhip64"],
    "hip-dlsym": ["-DBIND_DLSYM", "-ldl"],
    "hip-dlmopen": ["-DBIND_DLMOPEN", "-ldl"],
    "hip-hsa": ["-DBIND_HSA", "-lhsa-runtime64"],
}


def _cc(*arguments: str | Path) -> None:
    subprocess.run([*_C, *map(str, arguments)], check=True)


class NotHere(Exception):  # noqa: N818
    """What the tests of this folder need and this machine lacks."""


def rocr_is_5() -> bool:
    """Whether this machine's ROCr is 5, as Debian 12 has it; else it is 6, as in Debian 13."""
    return _THUNK_5.exists()


def build_thunk(out: Path, *, headers_of_6: Path | None = None) -> None:
    """Build the stand-in thunk for ROCr 5, or for ROCr 6 against the headers in a directory."""
    out.mkdir()
    thunk = _HERE / "thunk"
    sources = [thunk / name for name in ("topology.c", "memory.c", "queues.c")]
    flags = ["-fPIC", "-shared"]
    if headers_of_6 is not None:
        sources.append(thunk / "since_6.c")
        _build_drm(out)
        flags += ["-isystem", str(headers_of_6), "-DROCR_6"]
    sources.append(thunk / "consumer.c")
    script = f"-Wl,--version-script={thunk / 'exports.map'}"
    _cc(*flags, "-Wl,-soname,libhsakmt.so.1", script, *sources, "-lpthread", "-o",
        out / "libhsakmt.so.1")  # fmt: skip
    _cc("-fPIC", "-shared", thunk / "kernel.c", "-o", out / "libkernel.so")


def _build_drm(out: Path) -> None:
    _cc("-fPIC", "-shared", "-I/usr/include/libdrm", "-Wl,-soname,libdrm_amdgpu.so.1",
        _HERE / "thunk" / "drm.c", "-o", out / "libdrm_amdgpu.so.1")  # fmt: skip


def build_driver(out: Path, hip: str | None = None) -> None:
    """Build the stand-in driver, for ROCr that has its thunk inside.

    ``hip`` is the name of a later HIP's library, for programs that ask for 5.
    """
    out.mkdir()
    _build_drm(out)
    # AMD's own builds ask for it without a version.
    (out / "libdrm_amdgpu.so").symlink_to("libdrm_amdgpu.so.1")
    if hip is not None:
        # Programs ask for HIP 5 by name; its symbols are in the later ones too.
        # HIP itself looks for the name of a development package when it hands functions out.
        for link in ("libamdhip64.so.5", "libamdhip64.so"):
            (out / link).symlink_to(f"/usr/lib/x86_64-linux-gnu/{hip}")
    # KFD's uapi header includes drm/drm.h, which Debian has in another place.
    include = out / "include"
    include.mkdir()
    (include / "drm").symlink_to("/usr/include/libdrm")
    sources = [*sorted((_HERE / "driver").glob("*.c")), _HERE / "thunk" / "consumer.c"]
    _cc("-fPIC", "-shared", f"-I{include}", *sources, "-lpthread", "-o", out / "libdriver.so")


def build(root: Path) -> Path:
    """Build hook/, thunk/ and programs/ below root, and return it. Raises NotHere."""
    missing = [package for package, path in _NEEDED.items() if not path.exists()]
    if not (rocr_is_5() or _THUNK_6.is_dir()):
        missing.append("libhsakmt-dev")
    if missing:
        raise NotHere(f"needs the packages {' '.join(missing)}")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise NotHere("needs root and util-linux: containers are mount namespaces here")
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "make",
            "-s",
            "-C",
            str(TREE / "audit_hook"),
            f"OUT={root / 'hook'}",
            f"PYTHON={sys.executable}",
        ],
        check=True,
    )
    build_thunk(root / "thunk", headers_of_6=None if rocr_is_5() else _THUNK_6)
    (root / "programs").mkdir()
    for name, flags in _WAYS.items():
        _cc(
            *_HIP, _HERE / "programs" / "hip.c", *flags, "-lpthread", "-o", root / "programs" / name
        )
    for source in sorted((_HERE / "programs").glob("*.c")):
        if source.stem not in {"hip", "plt"}:
            _cc(*_HIP, "-I/usr/include/libdrm", source, *_LIBRARIES, "-o",
                root / "programs" / source.stem)  # fmt: skip
    subprocess.run(
        [*_CXX, "-fPIC", "-shared",
         _HERE / "programs" / "profiler.cc", "-o", root / "programs" / "libprofiler.so"],
        check=True,
    )  # fmt: skip
    return root
