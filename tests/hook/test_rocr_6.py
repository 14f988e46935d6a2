# SPDX-License-Identifier: Apache-2.0
"""The same objects under Debian 13's HIP 5.7.1, ROCr 6.1.2 and glibc 2.41, in a root of its own."""

from __future__ import annotations

import pytest

from audit_hook.slice import GpuShare

from .container import GPU, MIB, PROGRAMS, Container


@pytest.mark.parametrize(
    "way", ["hip", "hip-noplt", "hip-address", "hip-dlsym", "hip-dlmopen", "hip-hsa"]
)
@pytest.mark.parametrize("dropped", ["LD_AUDIT", "HSA_TOOLS_LIB"])
def test_every_way_is_held(newer: Container, way: str, dropped: str) -> None:
    result = newer.hip("malloc=1500", "malloc=1000", program=way, env={dropped: None})
    assert result.lines == ["malloc 0", "malloc 2"]
    assert "ringfence: GPU 0000:03:00.0: refused " in result.err


def test_memory_info_counts_all_processes(newer: Container) -> None:
    first = newer.start(PROGRAMS / "hip", "malloc=500", "say=up", "wait", stdin=-1)
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    result = newer.hip("info", "total")
    first.communicate("\n", timeout=30)
    error, available, total = map(int, result.lines[0].split()[1:])
    assert (error, total) == (0, 2048)
    assert 1400 < available <= 1548
    assert result.lines[1] == "total 0 2048"


def test_memory_info_without_room_for_an_answer_answers_as_without_the_hook(
    newer: Container,
) -> None:
    env = {"LD_AUDIT": None, "HSA_TOOLS_LIB": None}
    assert newer.hip("info-null").lines == newer.hip("info-null", env=env).lines


def test_memory_info_is_never_below_zero(newer: Container) -> None:
    newer.give(GpuShare(GPU, 2048 * MIB), kernel_refuses=True)
    orders = ["malloc=1500", "malloc=1500", "info"]
    assert newer.hip(*orders).lines == ["malloc 0", "malloc 0", "info 0 0 2048"]


def test_masks_hold_against_a_hostile_environment(newer: Container) -> None:
    env = {"HSA_CU_MASK_SKIP_INIT": "1", "HSA_CU_MASK": "0:0-103", "HSA_TOOLS_LIB": ""}
    result = newer.hip("mask", "ffffffff,ffffffff", program="streams", env=env)
    assert result.lines[0] == "stream 0"
    masks = {line.split("mask=")[1] for line in result.driver.splitlines() if "cumask" in line}
    assert masks == {"0000ffff"}


def test_physical_memory_is_within_the_slice(newer: Container) -> None:
    result = newer.run(PROGRAMS / "kinds", *["create"] * 9)
    assert [line.split()[1] for line in result.lines] == ["0"] * 8 + ["2"]
    assert "ringfence: GPU 0000:03:00.0: refused " in result.err


def test_oversubscription_gives_out_managed_memory_within_the_slice(newer: Container) -> None:
    newer.give(GpuShare(GPU, 2048 * MIB), oversubscribe=True)
    orders = ["malloc=1500", "malloc=1000", "free", "malloc=1000", "info"]
    result = newer.hip(*orders, env={"HSA_XNACK": "1"})
    assert result.lines[:4] == ["malloc 0", "malloc 2", "free 0", "malloc 0"]
    assert result.lines[4].startswith("info 0 104")
    # The driver was asked for ranges it may move, and for no buffer of that size.
    assert f"svm size={1500 * MIB} " in result.driver
    assert f"size={1500 * MIB} status" not in result.driver


def test_oversubscription_without_page_faults_refuses_and_says_why(newer: Container) -> None:
    newer.give(GpuShare(GPU, 2048 * MIB), oversubscribe=True)
    result = newer.hip("malloc=100", "info", env={"HSA_XNACK": "0"})
    assert result.lines[0] == "malloc 2"
    assert "XNACK, which it needs, is not; set HSA_XNACK=1" in result.err
