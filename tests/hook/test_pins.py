# SPDX-License-Identifier: Apache-2.0
"""What ROCr reads of its variables while the auditor is loaded, whatever the process set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from audit_hook.slice import GpuShare

from .container import GPU, HOOK, MIB, PROGRAMS, SECOND_GPU, Container

TOOL = str(HOOK / "libringfence-hsa.so")
ROCR = "libhsa-runtime64.so.1"
SOURCE = Path(__file__).parent / "objects" / "asker.c"


@pytest.fixture(scope="module")
def asker(built: Path) -> str:
    """A library that says it is ROCr, under another file name."""
    out = built / "programs" / "copy-of-rocr.so"
    subprocess.run(["cc", "-fPIC", "-shared", f"-Wl,-soname,{ROCR}", SOURCE, "-o", out], check=True)
    return str(PROGRAMS / out.name)


def seen(
    container: Container, library: str, name: str, value: str | None, **more: str | None
) -> str:
    result = container.run(PROGRAMS / "ask", library, name, env={name: value, **more})
    assert result.code == 0
    assert result.err == ""
    return result.out.removesuffix("\n")


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("HSA_TOOLS_LIB", None, TOOL),
        ("HSA_TOOLS_LIB", "", TOOL),
        ("HSA_TOOLS_LIB", "/own.so", f"{TOOL} /own.so"),
        ("HSA_TOOLS_LIB", '"" "', f'{TOOL} "" "'),
        ("HSA_TOOLS_LIB", f"{TOOL}", TOOL),
        ("HSA_TOOLS_LIB", f"{TOOL} /own.so", f"{TOOL} /own.so"),
        ("HSA_TOOLS_LIB", f"{TOOL}.own", f"{TOOL} {TOOL}.own"),
        ("HSA_TOOLS_LIB", f"/own.so {TOOL}", f"{TOOL} /own.so {TOOL}"),
        ("HSA_TOOLS_ROCPROFILER_V1_TOOLS", None, "1"),
        ("HSA_TOOLS_ROCPROFILER_V1_TOOLS", "0", "1"),
        ("HSA_TOOLS_ROCPROFILER_V1_TOOLS", "x", "1"),
        ("HSA_CU_MASK", None, "0-63:0-15"),
        ("HSA_CU_MASK", "", "0-63:0-15"),
        ("HSA_CU_MASK", "0:0-103", "0-63:0-15"),
        ("HSA_CU_MASK", "0:zz", "0-63:0-15"),
        ("HSA_CU_MASK_SKIP_INIT", "1", "-"),
        ("HSA_ENABLE_DTIF", "1", "-"),
        ("ROCR_VISIBLE_DEVICES", "0", "0"),
        ("HSA_XNACK", "1", "1"),
        ("HSA_XNACK", None, "-"),
        ("HOME", "/root", "/root"),
    ],
)
def test_a_process_cannot_take_a_variable_back(
    container: Container, asker: str, name: str, value: str | None, read: str
) -> None:
    container.give_mib(1024, cus="0-15")
    assert seen(container, asker, name, value) == read


def test_every_copy_in_every_namespace_reads_the_same(container: Container, asker: str) -> None:
    container.give_mib(1024, cus="0-15")
    assert seen(container, f"dlmopen:{asker}", "HSA_CU_MASK", "0:0-103") == "0-63:0-15"


def test_what_is_not_rocr_reads_the_environment_as_it_is(container: Container, asker: str) -> None:
    container.give_mib(1024, cus="0-15")
    assert seen(container, "self", "HSA_CU_MASK", "0:0-103") == "0:0-103"


def test_masks_are_by_index_where_the_gpus_differ(container: Container, asker: str) -> None:
    container.give(
        GpuShare(GPU, 1024 * MIB, cus="0-15"), GpuShare(SECOND_GPU, 1024 * MIB, cus="16-31")
    )
    assert seen(container, asker, "HSA_CU_MASK", "0:0-103") == "0:0-15;1:16-31"


def test_a_slice_that_cannot_be_read_pins_what_the_pod_says(
    container: Container, asker: str
) -> None:
    container.slice_path.write_text("ringfence-slice 2\n")
    assert seen(container, asker, "HSA_CU_MASK_SKIP_INIT", "1") == "-"
    assert seen(container, asker, "HSA_TOOLS_LIB", "") == TOOL
