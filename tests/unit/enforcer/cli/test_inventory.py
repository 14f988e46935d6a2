# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from enforcer.cli import main
from tests.testbed.trees import GpuSpec, NodeSpec, write_sys

GPUS = (
    GpuSpec("0000:03:00.0", 5, 0, 128, vram=16 << 30, product_name="AMD Radeon Pro W7800"),
    GpuSpec(
        "0000:c1:00.0", 28851, 11, 138, vram=192 << 30, cus=304, numa=1, unique_id=1 << 56,
        product_name="AMD Instinct MI300X",
    ),
)  # fmt: skip


@pytest.fixture
def sys_dir(tmp_path: Path) -> Path:
    write_sys(tmp_path, NodeSpec(GPUS))
    return tmp_path


def test_the_table_is_aligned_and_fits_a_terminal(
    sys_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inventory", "--sys", str(sys_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "BDF          CARD   RENDER     KFD-ID MODEL                VRAM    CUS NUMA",
        "0000:03:00.0 card0  renderD128 5      AMD Radeon Pro W7800 16 GiB  104 0",
        "0000:c1:00.0 card11 renderD138 28851  AMD Instinct MI300X  192 GiB 304 1",
    ]


def test_json_has_what_is_known_and_nothing_else(
    sys_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inventory", "--json", "--sys", str(sys_dir)]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert "unique_id" not in first
    assert "uuid" not in first
    assert second["uuid"] == "01ff740f-0000-1000-8000-000000000000"
    assert second["vram_bytes"] == 192 << 30


def test_unknown_is_a_dash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sys(tmp_path, NodeSpec((GpuSpec("0000:03:00.0", 5, 0, 128, vram=None, numa=None),)))
    main(["inventory", "--sys", str(tmp_path)])
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[-3], row[-1]) == ("-", "-")


def test_a_broken_gpu_is_named_and_the_others_are_listed(
    sys_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sys_dir / "class/kfd/kfd/topology/nodes/1/properties").write_text("?\n")
    assert main(["inventory", "--sys", str(sys_dir)]) == 1
    out, err = capsys.readouterr()
    assert "0000:c1:00.0" in out
    assert "KFD node 1" in err


def test_a_node_without_gpus_says_what_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inventory", "--sys", str(tmp_path)]) == 0
    assert "is amdgpu loaded?" in capsys.readouterr().out
    assert main(["inventory", "--json", "--sys", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == []
