# SPDX-License-Identifier: Apache-2.0
"""The hook's idea of ROCr's tables is that of ROCr's own headers, in every version at hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.testbed.cache import StepError

from .debian import HEADERS, unpacked

_HERE = Path(__file__).resolve().parent
_TOOL = _HERE.parents[1] / "audit_hook" / "tool"


def compiles(include: Path, *defines: str) -> str:
    """What the compiler says of the numbers against the headers in a directory; nothing: right."""
    result = subprocess.run(
        ["c++", "-std=c++17", "-fsyntax-only", "-w", "-DAMD_INTERNAL_BUILD", *defines,
         f"-I{include}", f"-I{include.parent}", f"-I{_TOOL}", _HERE / "abi.cc"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.stderr


def test_the_numbers_are_those_of_the_installed_headers() -> None:
    include = Path("/usr/include/hsa")
    if not (include / "hsa_api_trace.h").exists():
        pytest.skip("needs the package libhsa-runtime-dev")
    assert compiles(include) == ""


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_the_numbers_are_those_of_other_suites_headers(suite: str) -> None:
    try:
        root = unpacked(suite, HEADERS)
    except StepError as error:
        pytest.skip(f"the archive has no {suite}: {error}")
    assert compiles(root / "usr" / "include" / "hsa") == ""


def test_a_table_of_another_layout_does_not_compile() -> None:
    include = Path("/usr/include/hsa")
    if not (include / "hsa_api_trace.h").exists():
        pytest.skip("needs the package libhsa-runtime-dev")
    shifted = "-Dhsa_amd_memory_pool_allocate_fn=hsa_amd_memory_pool_free_fn"
    assert "hsa_amd_memory_pool_allocate" in compiles(include, shifted)
