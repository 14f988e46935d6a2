# SPDX-License-Identifier: Apache-2.0
"""ROCr 6.4, which has its thunk inside: below it a stand-in for the driver's system calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from audit_hook.ledger import read_ledger
from enforcer.model import pci_key
from tests.testbed.cache import StepError

from .build import build_driver
from .container import GPU, MIB, PROGRAMS, Container
from .debian import SID_ROCR, unpacked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def sid(built: Path) -> Path:
    try:
        rootfs = unpacked("sid", SID_ROCR)
    except StepError as error:
        pytest.skip(f"the archive has no sid: {error}")
    build_driver(built / "driver")
    return rootfs


@pytest.fixture
def inside(container: Container, sid: Path) -> Container:
    """A container with a slice of 2 GiB and 16 CUs, where ROCr speaks to the driver itself."""
    container.rootfs = sid
    container.thunk = "driver"
    container.add_machine()
    container.give_mib(2048, cus="0-15")
    return container


def test_without_a_slice_the_program_sees_the_whole_card(inside: Container) -> None:
    inside.slice_path.unlink()
    result = inside.hip("malloc=6000", "total", program="hip-hsa")
    assert (result.lines, result.err) == (["malloc 0", "total 0 8192"], "")


@pytest.mark.parametrize("dropped", ["LD_AUDIT", "HSA_TOOLS_LIB"])
def test_the_slice_holds_by_either_way_in(inside: Container, dropped: str) -> None:
    orders = ["malloc=1500", "malloc=1000", "free", "malloc=1000", "total"]
    result = inside.hip(*orders, program="hip-hsa", env={dropped: None})
    assert result.lines == ["malloc 0", "malloc 2", "free 0", "malloc 0", "total 0 2048"]
    assert "ringfence: GPU 0000:03:00.0: refused " in result.err


def test_the_auditor_counts_what_rocr_asks_of_the_driver(inside: Container) -> None:
    process = inside.start(PROGRAMS / "hip-hsa", "malloc=100", "say=up", "wait", stdin=-1)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    ledger = read_ledger(inside.ledger)
    process.communicate("\n", timeout=30)
    assert ledger is not None
    (entry,) = ledger.processes
    used = [int(line.rpartition("=")[2]) for line in inside.log.read_text().splitlines()
            if line.startswith("alloc node=1")]  # fmt: skip
    # To the byte, whatever ROCr took for itself.
    assert entry.driver_bytes[pci_key(GPU)] == used[-1] >= 100 * MIB


def test_queues_carry_the_slices_mask_against_a_hostile_environment(inside: Container) -> None:
    env = {"HSA_CU_MASK_SKIP_INIT": "1", "HSA_CU_MASK": "0:0-103", "HSA_TOOLS_LIB": ""}
    result = inside.hip(program="queue", env=env)
    assert result.lines == ["queue 0", "set 0", "mask 0 0000ffff,00000000,00000000,00000000"]
    masks = {line.split("mask=")[1] for line in result.driver.splitlines() if "cumask" in line}
    assert {mask.split(",")[0] for mask in masks} == {"0000ffff"}
