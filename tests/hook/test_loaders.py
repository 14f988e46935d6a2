# SPDX-License-Identifier: Apache-2.0
"""The auditor under the loaders of several glibc releases: programs start, and say nothing."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from tests.testbed.cache import StepError

from .debian import compiling_for, libraries_of

SUITES = ["bookworm", "trixie", "sid"]
"""glibc 2.36, 2.41, 2.43; 2.31 and the newest are in soak/, as their archives come and go."""
TUNABLE = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=4096"}
SOURCE = '#include <stdio.h>\nint main(void) { puts("started"); return 0; }\n'


@pytest.fixture(scope="module", params=SUITES)
def libraries(request: pytest.FixtureRequest) -> Path:
    try:
        return libraries_of(request.param)
    except StepError as error:
        pytest.skip(f"the archive has no {request.param}: {error}")


def compile_programs(directory: Path, *flags: str, dl: str = "-ldl") -> Path:
    """`x` says that it started, `plt` measures calls, `tables` loads the tools library."""
    (directory / "x.c").write_text(SOURCE)
    cc = ["cc", "-D_GNU_SOURCE", "-O2", *flags]
    subprocess.run([*cc, directory / "x.c", "-o", directory / "x"], check=True)
    plt = Path(__file__).parent / "programs" / "plt.c"
    lazy = ["-fno-builtin", "-Wl,-z,lazy"]
    subprocess.run([*cc, *lazy, plt, "-o", directory / "plt"], check=True)
    tables = Path(__file__).parent / "programs" / "tables.c"
    # An old loader has dlopen() in a library of its own.
    subprocess.run([*cc, tables, dl, "-o", directory / "tables"], check=True)
    return directory


def compile_for(suite: str, directory: Path) -> Path:
    """The same, for a suite's glibc: built on a newer one they would not start on an old one."""
    if suite not in {"bullseye", "bookworm"}:
        return compile_programs(directory)
    sysroot, *others = compiling_for(suite)
    if suite == "bookworm":
        return compile_programs(directory, sysroot, *others)
    # By its path: this machine's own would be found first, and has no functions any more.
    dl = f"{sysroot.partition('=')[2]}/lib/x86_64-linux-gnu/libdl.so.2"
    return compile_programs(directory, sysroot, *others, dl=dl)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_for(SUITES[0], tmp_path_factory.mktemp("programs"))


def start(
    libraries: Path, program: Path, env: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    loader = libraries / "ld-linux-x86-64.so.2"
    return subprocess.run(
        [loader, "--library-path", libraries, program, *arguments],
        env=env, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


def test_a_program_starts_beside_the_auditor(built: Path, libraries: Path, programs: Path) -> None:
    audit = str(built / "hook" / "libringfence-audit.so")
    result = start(libraries, programs / "x", {"LD_AUDIT": audit})
    assert (result.returncode, result.stdout, result.stderr) == (0, "started\n", "")


def test_the_tools_library_finds_all_it_needs(built: Path, libraries: Path, programs: Path) -> None:
    tool = str(built / "hook" / "libringfence-hsa.so")
    result = start(libraries, programs / "tables", {}, tool, "2", "1016", "2", "560")
    # This machine has no slice: it loads, and leaves the tables alone.
    assert (result.stdout.splitlines(), result.stderr) == (["loaded 1", "core", "amd"], "")


@pytest.mark.parametrize("library", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_other_allocators_start_beside_the_auditor_with_the_tunable(
    built: Path, libraries: Path, programs: Path, library: str
) -> None:
    env = {
        "LD_AUDIT": str(built / "hook" / "libringfence-audit.so"),
        "LD_PRELOAD": str(libraries / library),
    }
    result = start(libraries, programs / "x", {**env, **TUNABLE})
    assert (result.returncode, result.stdout) == (0, "started\n")


def test_no_call_of_a_program_gets_slower(built: Path, libraries: Path, programs: Path) -> None:
    audit = str(built / "hook" / "libringfence-audit.so")
    calls = programs / "plt"
    without = float(start(libraries, calls, {}).stdout)
    audited = float(start(libraries, calls, {"LD_AUDIT": audit}).stdout)
    # Bound lazily under a loader of the old kind, a call takes 300 times as long.
    assert audited < 10 * without


@pytest.mark.parametrize(("offered", "answer"), [(0, 0), (1, 0), (2, 2), (3, 2)])
def test_a_loader_that_would_make_every_call_slow_is_told_to_drop_us(
    built: Path, offered: int, answer: int
) -> None:
    auditor = ctypes.CDLL(str(built / "hook" / "libringfence-audit.so"))
    assert auditor.la_version(offered) == answer
