# SPDX-License-Identifier: Apache-2.0
"""AMD's own roctracer in one process with the hook, on HIP and ROCr 6.4."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.hook import roctracer
from tests.hook.build import build_driver
from tests.hook.container import HOOK, MIB, PROGRAMS, THUNK, Container
from tests.hook.debian import SID_HIP, unpacked
from tests.testbed.cache import StepError

if TYPE_CHECKING:
    from pathlib import Path

OURS = str(HOOK / "libringfence-hsa.so")
THEIRS = [str(PROGRAMS / "roctracer" / name) for name in (roctracer.LIBRARY, roctracer.TOOL)]
# How it gets into a process: rocprof names it (here instead of us, behind us, before us), and
# programs that are linked with it are found to have it.
WAYS: dict[str, dict[str, str | None]] = {
    "instead": {"HSA_TOOLS_LIB": " ".join(THEIRS)},
    "behind": {"HSA_TOOLS_LIB": " ".join([OURS, *THEIRS]), "LD_AUDIT": None},
    "before": {"HSA_TOOLS_LIB": " ".join([*THEIRS, OURS]), "LD_AUDIT": None},
    "linked": {"LD_PRELOAD": ":".join([str(THUNK / "libdriver.so"), *THEIRS])},
}
pytestmark = pytest.mark.timeout(900)
OUT_OF_RESOURCES = 0x1008
SECONDS = 240
"""Starting HIP and its compiler with every call traced takes ten of an idle machine's."""
UNLIMITED: dict[str, str | None] = {"LD_AUDIT": None, "HSA_TOOLS_LIB": " ".join(THEIRS)}


@pytest.fixture(scope="module")
def rootfs(built: Path) -> Path:
    try:
        rootfs = unpacked("sid", SID_HIP)
        libraries = roctracer.libraries()
    except StepError as error:
        pytest.skip(f"not to be had: {error}")
    build_driver(built / "traced", "libamdhip64.so.6")
    ours = built / "programs" / "roctracer"
    ours.mkdir()
    for name in (roctracer.LIBRARY, roctracer.TOOL, roctracer.PLUGIN):
        shutil.copy(libraries / name, ours)
    return rootfs


@pytest.fixture
def traced(container: Container, rootfs: Path) -> Container:
    """A container with a slice of 2 GiB and 16 CUs, whose processes write what they call."""
    container.rootfs, container.thunk = rootfs, "traced"
    container.add_machine()
    container.give_mib(2048, cus="0-15")
    container.env |= {"ROCTRACER_DOMAIN": "hsa,hip", "ROCP_OUTPUT_DIR": "/srv"}
    container.env["LD_LIBRARY_PATH"] += f":{PROGRAMS / 'roctracer'}"
    return container


def trace(container: Container, what: str, call: str) -> list[str]:
    """Arguments and answer of each such call of the one process that ran."""
    (path,) = (container.root / "out").glob(f"*_{what}_api_trace.txt")
    return re.findall(rf" {call}\((.*) :\d+$", path.read_text(), re.M)


def large(container: Container) -> list[int]:
    """ROCr's answers to the allocations the program itself asked for, as traced."""
    calls = trace(container, "hsa", "hsa_amd_memory_pool_allocate")
    found = (re.fullmatch(r".*?, (\d+), 0, \w+\) = (\d+)", call) for call in calls)
    return [int(one[2]) for one in found if one and int(one[1]) >= 1000 * MIB]


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_holds_and_calls_are_traced(traced: Container, way: str) -> None:
    orders = ["malloc=1500", "malloc=1000", "free", "malloc=1000"]
    result = traced.hip(*orders, env=WAYS[way], timeout=SECONDS)
    assert result.lines[-4:] == ["malloc 0", "malloc 2", "free 0", "malloc 0"]
    assert result.err.count("ringfence: GPU 0000:03:00.0: refused ") == 1
    sizes = re.findall(r"size=(\d+)", " ".join(trace(traced, "hip", "hipMalloc")))
    assert [int(size) // MIB for size in sizes] == [1500, 1000, 1000]
    # A tool that was named before us sees what we let through, any other what the program sees.
    assert large(traced) == ([0, 0] if way == "before" else [0, OUT_OF_RESOURCES, 0])


def test_without_the_hook_the_same_calls_are_traced(traced: Container) -> None:
    """What the test above is to be compared with."""
    result = traced.hip("malloc=1500", "malloc=1000", "free", env=UNLIMITED, timeout=SECONDS)
    assert result.lines[-3:] == ["malloc 0", "malloc 0", "free 0"]
    assert len(trace(traced, "hip", "hipMalloc")) == 2
    assert large(traced) == [0, 0]


@pytest.mark.parametrize("way", WAYS)
def test_queues_carry_the_mask_of_the_slice(traced: Container, way: str) -> None:
    result = traced.hip("default", program="streams", env=WAYS[way], timeout=SECONDS)
    assert result.lines[-2:] == ["stream 0", "sync 0"]
    # The first queue is ROCr's own.
    masks = re.findall(r"^cumask id=2 bits=\d+ mask=(\w+)", result.driver, re.M)
    assert set(masks) == {"0000ffff"}
