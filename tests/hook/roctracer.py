# SPDX-License-Identifier: Apache-2.0
"""AMD's roctracer and the tool by which rocprof traces, built from the source Debian carries.

Debian's own packages of it are the annotations alone. ROCr's and HIP's headers are sid's.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, Step, digest

from .debian import unpacked

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = "libroctracer64.so.4"
TOOL = "libroctracer_tool.so"
PLUGIN = "libfile_plugin.so"

_SOURCE = "roctracer"
_SUITE = "sid"
_HEADERS = ("libhsa-runtime-dev", "libamdhip64-dev", "libamd-comgr-dev")
_PARSER = ("python3-cppheaderparser", "python3-ply")
_FLAGS = (
    *("-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-DAMD_INTERNAL_BUILD", "-D__HIP_PLATFORM_AMD__", "-DHIP_PROF_HIP_API_STRING"),
)
# Of this machine's compiler, in the object itself: sid has its own.
_LIBRARIES = ("-lstdc++fs", "-l:libatomic.a")


def libraries() -> Path:
    """A directory with the library, the tool and its plugin that writes files.

    Raises StepError where the archive does not have the source, or it does not build.
    """
    cache = Cache.from_environment(os.environ)
    report = Report()
    step = Step("roctracer", report, cache.root / "logs" / "roctracer.log")
    step.log.parent.mkdir(parents=True, exist_ok=True)
    archive = apt.open_archive(
        cache, step, refresh=False, name="apt-hook-sources", suites=(_SUITE,), types="deb deb-src"
    )
    source = archive.show_source(_SOURCE)
    headers = unpacked(_SUITE, _HEADERS) / "usr" / "include"
    parser = unpacked(_SUITE, _PARSER) / "usr" / "lib" / "python3" / "dist-packages"

    def make(into: Path, step: Step) -> None:
        tree = into / "source"
        tree.mkdir()
        original = archive.download_original(source, into, step)
        step.run(["tar", "--extract", "--strip-components=1", "--file", original], cwd=tree)
        _generate(tree, headers, parser, step)
        _build(tree, into, headers, step)

    key = digest(source.version, *_FLAGS, *_LIBRARIES)
    return cache.ensure("hook-packages", _SOURCE, key, report, make)


def _generate(tree: Path, headers: Path, parser: Path, step: Step) -> None:
    """Headers that roctracer's scripts make of ROCr's and HIP's."""
    out = tree / "generated"
    out.mkdir()
    python = {"PYTHONPATH": str(parser)}
    step.run([sys.executable, tree / "script/hsaap.py", out, headers / "hsa"], env=python)
    defines = ["-D__HIP_PLATFORM_AMD__", "-D__HIP_ROCclr__", f"-I{headers}"]
    for name, of in {
        "hsa_ostream_ops.h": (headers / "hsa/hsa.h", headers / "hsa/hsa_ext_amd.h"),
        "hip_ostream_ops.h": (tree / "src/roctracer/hip_full_api.h",),
    }.items():
        expanded = [out / f"{header.name}.i" for header in of]
        for header, to in zip(of, expanded, strict=True):
            step.run(["cc", "-E", *defines, header, "-o", to])
        step.run(
            [sys.executable, tree / "script/gen_ostream_ops.py", "-in",
             ",".join(map(str, expanded)), "-out", out / name],
            env=python,
        )  # fmt: skip


def _build(tree: Path, out: Path, headers: Path, step: Step) -> None:
    source = tree / "src"
    folders = (headers, headers / "hsa", tree / "generated", tree / "inc", source,
               source / "util", source / "roctracer")  # fmt: skip
    command = ["c++", *_FLAGS, *(f"-I{folder}" for folder in folders)]
    util = sorted((source / "util").glob("*.cpp"))

    def build(name: str, exports: Path, folder: Path, *more: str | Path) -> None:
        files = sorted(folder.glob("*.cpp"))
        script = f"-Wl,--version-script={exports}"
        step.run([*command, *files, *more, *_LIBRARIES, script, "-o", out / name])

    own = ("-DPROF_API_IMPL", "-DROCTRACER_EXPORTS", f"-Wl,-soname,{LIBRARY}")
    build(LIBRARY, source / "roctracer/exportmap", source / "roctracer", *util, *own)
    build(TOOL, source / "tracer_tool/exportmap", source / "tracer_tool", *util, out / LIBRARY)
    build(PLUGIN, tree / "plugin/exportmap", tree / "plugin/file", *util, out / LIBRARY)
