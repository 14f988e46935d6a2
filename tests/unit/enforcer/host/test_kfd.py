# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from enforcer.host import kfd
from enforcer.host.files import FileError
from tests.testbed.trees import GpuSpec, NodeSpec, PartitionSpec, write_process, write_sys

GPUS = tuple(
    GpuSpec(f"0000:{bus:02x}:00.0", kfd_id=bus, card=index + 1, render=128 + index)
    for index, bus in enumerate((3, 67, 99))
)


def test_without_the_driver_there_are_no_nodes(tmp_path: Path) -> None:
    assert kfd.topology(tmp_path) == ([], [])


def test_a_topology_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    nodes.parent.mkdir(parents=True)
    nodes.symlink_to(nodes)
    (problem,) = kfd.topology(tmp_path)[1]
    assert problem.startswith(f"no GPU of KFD's can be seen: {nodes}: cannot read: Too many")


def test_nodes_come_in_numeric_order(tmp_path: Path) -> None:
    gpus = tuple(
        GpuSpec(f"0000:{bus:02x}:00.0", kfd_id=bus, card=bus, render=128 + bus)
        for bus in range(1, 12)
    )
    write_sys(tmp_path, NodeSpec(gpus, cpus=1))
    nodes, problems = kfd.topology(tmp_path)
    assert [node.node for node in nodes] == list(range(12))
    assert problems == []


@pytest.mark.parametrize("broken", [1, 2, 3])
@pytest.mark.parametrize("how", ["no gpu_id", "malformed properties"])
def test_one_broken_node_costs_only_itself(tmp_path: Path, broken: int, how: str) -> None:
    write_sys(tmp_path, NodeSpec(GPUS))
    directory = tmp_path / f"class/kfd/kfd/topology/nodes/{broken}"
    if how == "no gpu_id":
        (directory / "gpu_id").unlink()
    else:
        (directory / "properties").write_text("simd_count many\n")
    nodes, problems = kfd.topology(tmp_path)
    assert [node.node for node in nodes] == [node for node in range(4) if node != broken]
    assert len(problems) == 1
    assert f"KFD node {broken}:" in problems[0]


def test_links_of_both_kinds_are_read(tmp_path: Path) -> None:
    write_sys(tmp_path, NodeSpec(GPUS))
    directory = tmp_path / "class/kfd/kfd/topology/nodes/1/p2p_links/0"
    directory.mkdir(parents=True)
    (directory / "properties").write_text("type 11\nnode_from 1\nnode_to 3\n")
    nodes, _ = kfd.topology(tmp_path)
    assert nodes[1].links == (kfd.KfdLink(0, 2), kfd.KfdLink(3, 11))


def test_memory_of_a_partition_is_that_of_its_banks(tmp_path: Path) -> None:
    parted = GpuSpec(
        "0000:05:00.0",
        kfd_id=1,
        card=1,
        render=128,
        partitions=(PartitionSpec(kfd_id=2, card=2, render=129, vram=24 << 30),),
    )
    write_sys(tmp_path, NodeSpec((parted,)))
    nodes, _ = kfd.topology(tmp_path)
    assert [node.local_memory for node in nodes] == [None, 24 << 30, 24 << 30]


def test_vram_of_a_process_is_read_by_gpu(tmp_path: Path) -> None:
    write_process(tmp_path, 812, {3: 4096, 67: 0})
    (tmp_path / "class/kfd/kfd/proc/812/vram_usage").write_text("x")
    (tmp_path / "class/kfd/kfd/proc/812/stats_3").mkdir()
    assert kfd.process_vram(tmp_path, 812) == {3: 4096, 67: 0}


def test_further_contexts_of_a_process_are_its_own(tmp_path: Path) -> None:
    write_process(tmp_path, 9, {3: 4096})
    for context in (1, 12):
        path = tmp_path / f"class/kfd/kfd/proc/9/context_{context}/vram_3"
        path.parent.mkdir()
        path.write_text("100\n")
    assert kfd.process_vram(tmp_path, 9) == {3: 4296}


def test_a_process_without_kfd_has_none(tmp_path: Path) -> None:
    write_process(tmp_path, 8, {3: 4096})
    assert kfd.process_vram(tmp_path, 9) == {}


def test_a_process_that_goes_while_being_read_has_none(tmp_path: Path) -> None:
    write_process(tmp_path, 2, {3: 1})
    gone = tmp_path / "class/kfd/kfd/proc/2/vram_4"
    gone.symlink_to(tmp_path / "nowhere")
    assert kfd.process_vram(tmp_path, 2) == {}


def test_a_count_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    write_process(tmp_path, 2, {3: 1})
    (tmp_path / "class/kfd/kfd/proc/2/vram_3").write_text("many\n")
    with pytest.raises(FileError, match="vram_3:1"):
        kfd.process_vram(tmp_path, 2)


def _activity_files(sys: Path, pid: int, **files: object) -> None:
    for name, value in files.items():
        path = sys / f"class/kfd/kfd/proc/{pid}" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def test_what_a_process_does_is_read_by_gpu(tmp_path: Path) -> None:
    _activity_files(
        tmp_path, 7, sdma_5=1500, stats_5__evicted_ms=20, stats_5__cu_occupancy=76, vram_5=0,
        queues__0__gpuid=5, queues__1__gpuid=5, queues__2__gpuid=6, stats_6__evicted_ms=0,
    )  # fmt: skip
    assert kfd.process_activity(tmp_path, 7) == {
        5: kfd.KfdActivity(76, 20, 1500, 2),
        6: kfd.KfdActivity(None, 0, None, 1),
    }


def test_further_contexts_of_a_process_are_added(tmp_path: Path) -> None:
    _activity_files(
        tmp_path, 7, sdma_5=1, context_1__sdma_5=2, context_1__queues__0__gpuid=5,
        context_1__stats_5__cu_occupancy=3,
    )  # fmt: skip
    assert kfd.process_activity(tmp_path, 7) == {5: kfd.KfdActivity(3, None, 3, 1)}


def test_a_process_without_kfd_does_nothing(tmp_path: Path) -> None:
    assert kfd.process_activity(tmp_path, 7) == {}


@pytest.mark.parametrize(
    "name", ["sdma_5", "stats_5__evicted_ms", "stats_5__cu_occupancy", "queues__0__gpuid"]
)
def test_an_activity_that_is_no_number_is_an_error(tmp_path: Path, name: str) -> None:
    _activity_files(tmp_path, 7, **{name: "many"})
    with pytest.raises(FileError, match="expected an integer"):
        kfd.process_activity(tmp_path, 7)
