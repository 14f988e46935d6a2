# SPDX-License-Identifier: Apache-2.0
"""The oldest glibc to be had, whose loader would make every call slow, and the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hook.debian import unpacked
from tests.hook.test_loaders import (
    TUNABLE,
    compile_programs,
    libraries_of,
    start,
    test_a_program_starts_beside_the_auditor,
    test_no_call_of_a_program_gets_slower,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "test_a_program_starts_beside_the_auditor",
    "test_no_call_of_a_program_gets_slower",
]


@pytest.fixture(scope="module", params=["bullseye", "experimental"])
def suite(request: pytest.FixtureRequest) -> str:
    """glibc 2.31 and 2.44."""
    return str(request.param)


@pytest.fixture(scope="module")
def libraries(suite: str) -> Path:
    return libraries_of(suite)


@pytest.fixture(scope="module")
def programs(suite: str, libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program built on a newer glibc does not start on an old one."""
    directory = tmp_path_factory.mktemp("programs")
    if suite != "bullseye":
        return compile_programs(directory)
    packages = ("libc6", "libc6-dev", "linux-libc-dev", "libcrypt-dev")
    sysroot = unpacked(suite, packages)
    loader = sysroot / "lib64" / "ld-linux-x86-64.so.2"
    if (target := loader.readlink()).is_absolute():
        # The linker would leave the root by it.
        loader.unlink()
        loader.symlink_to(f"..{target}")
    # The start files are looked for beside the compiler's own first.
    own = sysroot / "usr" / "lib" / "x86_64-linux-gnu"
    return compile_programs(directory, f"--sysroot={sysroot}", f"-B{own}")


@pytest.mark.parametrize("library", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_other_allocators_start_where_the_loader_has_the_tunable(
    built: Path, suite: str, libraries: Path, programs: Path, library: str
) -> None:
    env = {"LD_PRELOAD": str(libraries / library), **TUNABLE}
    audit = str(built / "hook" / "libringfence-audit.so")
    result = start(libraries, programs / "x", {**env, "LD_AUDIT": audit})
    if (suite, library) == ("bullseye", "libjemalloc.so.2"):
        # glibc 2.31 has laid out its static TLS before any auditor can take itself out.
        assert result.returncode == 127
        assert "cannot allocate memory in static TLS block" in result.stderr
        result = start(libraries, programs / "x", {**env, "LD_AUDIT": ""})
    assert (result.returncode, result.stdout) == (0, "started\n")
