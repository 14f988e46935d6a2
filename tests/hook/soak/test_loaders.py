# SPDX-License-Identifier: Apache-2.0
"""The oldest glibc to be had, whose loader would make every call slow, and the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hook.debian import libraries_of
from tests.hook.test_loaders import (
    TUNABLE,
    compile_for,
    start,
    test_a_program_starts_beside_the_auditor,
    test_no_call_of_a_program_gets_slower,
    test_the_tools_library_finds_all_it_needs,
)
from tests.testbed.cache import StepError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "test_a_program_starts_beside_the_auditor",
    "test_no_call_of_a_program_gets_slower",
    "test_the_tools_library_finds_all_it_needs",
]


@pytest.fixture(scope="module", params=["bullseye", "experimental"])
def suite(request: pytest.FixtureRequest) -> str:
    """glibc 2.31 and 2.44."""
    return str(request.param)


@pytest.fixture(scope="module")
def libraries(suite: str) -> Path:
    try:
        return libraries_of(suite)
    except StepError as error:
        pytest.skip(f"the archive has no {suite}: {error}")


@pytest.fixture(scope="module")
def programs(suite: str, libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_for(suite, tmp_path_factory.mktemp("programs"))


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
