# SPDX-License-Identifier: Apache-2.0
"""The auditor under the loaders of several glibc releases: programs start, and say nothing."""

from __future__ import annotations

import ctypes
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.testbed.cache import StepError

from .debian import unpacked

if TYPE_CHECKING:
    from pathlib import Path

SUITES = ["bookworm", "trixie", "sid"]
TUNABLE = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=4096"}
SOURCE = '#include <stdio.h>\nint main(void) { puts("started"); return 0; }\n'


@pytest.fixture(scope="module", params=SUITES)
def libraries(request: pytest.FixtureRequest) -> Path:
    """The library directory of a suite's glibc, with jemalloc."""
    packages = ("libc6", "libjemalloc2", "libstdc++6", "libgcc-s1")
    try:
        root = unpacked(request.param, packages)
    except StepError as error:
        pytest.skip(f"the archive has no {request.param}: {error}")
    usr = root / "usr" / "lib" / "x86_64-linux-gnu"
    merged = root / "lib" / "x86_64-linux-gnu"
    # Before trixie glibc was below /lib, which an installed system links to /usr/lib.
    if merged.is_dir() and not merged.is_symlink():
        for path in merged.iterdir():
            if not (usr / path.name).exists():
                (usr / path.name).symlink_to(path)
    return usr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("program")
    (directory / "x.c").write_text(SOURCE)
    subprocess.run(["cc", directory / "x.c", "-o", directory / "x"], check=True)
    return directory / "x"


def start(libraries: Path, program: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    loader = libraries / "ld-linux-x86-64.so.2"
    return subprocess.run(
        [loader, "--library-path", libraries, program],
        env=env, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


def test_a_program_starts_beside_the_auditor(built: Path, libraries: Path, program: Path) -> None:
    audit = str(built / "hook" / "libringfence-audit.so")
    result = start(libraries, program, {"LD_AUDIT": audit})
    assert (result.returncode, result.stdout, result.stderr) == (0, "started\n", "")


def test_jemalloc_starts_beside_the_auditor_with_the_tunable(
    built: Path, libraries: Path, program: Path
) -> None:
    env = {
        "LD_AUDIT": str(built / "hook" / "libringfence-audit.so"),
        "LD_PRELOAD": str(libraries / "libjemalloc.so.2"),
    }
    result = start(libraries, program, {**env, **TUNABLE})
    assert (result.returncode, result.stdout) == (0, "started\n")


@pytest.mark.parametrize(("offered", "answer"), [(0, 0), (1, 0), (2, 2), (3, 2)])
def test_a_loader_that_would_make_every_call_slow_is_told_to_drop_us(
    built: Path, offered: int, answer: int
) -> None:
    auditor = ctypes.CDLL(str(built / "hook" / "libringfence-audit.so"))
    assert auditor.la_version(offered) == answer
