# SPDX-License-Identifier: Apache-2.0
"""The inventory of whole machines, and what the device plugin makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deviceplugin.devices import devices_of
from deviceplugin.terms import Terms
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from tests.testbed.machines import GIB, MACHINES, MI300A, MI300X, STRIX_HALO, TWO_HIVES, main
from tests.testbed.trees import GpuSpec, NodeSpec, from_json, to_json, write_sys

if TYPE_CHECKING:
    from pathlib import Path

    from deviceplugin.devices import Device
    from enforcer.model import Gpu


def gpus_of(directory: Path, machine: str) -> list[Gpu]:
    write_sys(directory / "sys", MACHINES[machine])
    gpus, problems = read_inventory(Roots(sys=directory / "sys", share=directory / "share"))
    assert problems == []
    return gpus


def offered(gpus: list[Gpu], terms: Terms | None = None) -> tuple[Device, ...]:
    devices, problems = devices_of(gpus, terms or Terms())
    assert problems == ()
    assert len({device.id for device in devices}) == len(devices)
    assert len({slot for device in devices for slot in device.slots}) == sum(
        len(device.slots) for device in devices
    )
    return devices


def test_mi210s_are_linked_within_their_hive(tmp_path: Path) -> None:
    gpus = gpus_of(tmp_path, "8 MI210 in two hives")
    assert len(gpus) == 8
    for hive in TWO_HIVES:
        bdfs = {gpus[index].bdf for index in hive}
        for index in hive:
            assert set(gpus[index].xgmi_peers) == bdfs - {gpus[index].bdf}
    assert [gpu.numa_node for gpu in gpus] == [0] * 4 + [1] * 4
    assert {(gpu.cu_count, gpu.xcc_count, gpu.cu_per_wgp) for gpu in gpus} == {(104, 1, 1)}
    assert {len(device.slots) for device in offered(gpus)} == {10}


def test_mi300x_are_all_linked_and_shared_by_cus(tmp_path: Path) -> None:
    gpus = gpus_of(tmp_path, "8 MI300X")
    assert {len(gpu.xgmi_peers) for gpu in gpus} == {7}
    assert {(gpu.cu_count, gpu.xcc_count, gpu.vram_bytes) for gpu in gpus} == {(304, 8, 192 * GIB)}
    assert {gpu.partition for gpu in gpus} == {None}
    assert {gpu.compute_partitions for gpu in gpus} == {("spx", "dpx", "qpx", "cpx")}
    assert {gpu.memory_partitions for gpu in gpus} == {("nps1", "nps4")}
    assert {device.id.partition("#")[2] for device in offered(gpus)} == {""}
    hard = offered(gpus, Terms(operating_mode="partition"))
    assert {device.id.partition("#")[2] for device in hard} == {"spx"}


def test_64_partitions_have_64_ids_and_their_own_memory(tmp_path: Path) -> None:
    gpus = gpus_of(tmp_path, "8 MI300X, CPX and NPS4")
    assert len(gpus) == 64
    assert len({(gpu.bdf, gpu.partition) for gpu in gpus}) == 64
    assert len({gpu.render for gpu in gpus}) == 64
    assert {(gpu.cu_count, gpu.xcc_count, gpu.vram_bytes) for gpu in gpus} == {(38, 1, 24 * GIB)}
    assert {(gpu.compute_partition, gpu.memory_partition) for gpu in gpus} == {("cpx", "nps4")}
    assert [gpu.numa_node for gpu in gpus] == [0] * 32 + [1] * 32
    devices = offered(gpus, Terms(operating_mode="partition", mixed=True))
    assert len(devices) == 64
    assert {device.resource for device in devices} == {"amd.com/cpx_nps4"}
    assert devices_of(gpus, Terms())[0] == ()


def test_partitions_of_two_domains_are_told_apart(tmp_path: Path) -> None:
    gpus = gpus_of(tmp_path, "2 MI308X in domains 0 and 1, 4 partitions each")
    assert [(gpu.bdf, gpu.partition) for gpu in gpus] == [
        (f"000{domain}:03:00.0", number) for domain in (0, 1) for number in range(4)
    ]
    assert {(gpu.cu_count, gpu.xcc_count, gpu.vram_bytes) for gpu in gpus} == {(20, 1, 48 * GIB)}
    assert {gpu.compute_partitions for gpu in gpus} == {("spx", "dpx", "cpx")}
    assert len(offered(gpus, Terms(operating_mode="partition"))) == 8


def test_mi355x_is_what_it_is(tmp_path: Path) -> None:
    gpus = gpus_of(tmp_path, "8 MI355X")
    assert {(gpu.name, gpu.gfx_version, gpu.cu_count, gpu.vram_bytes) for gpu in gpus} == {
        ("AMD Instinct MI355X", 90500, 256, 288 * GIB)
    }


def test_radeons_are_masked_in_pairs_and_shared_by_generation(tmp_path: Path) -> None:
    share = tmp_path / "share/misc"
    share.mkdir(parents=True)
    (share / "pci.ids").write_text(
        "1002  AMD\n\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]\n"
        "\t7550  Navi 48 [Radeon RX 9070/9070 XT]\n"
    )
    gpus = gpus_of(tmp_path, "a workstation with RDNA 3 and RDNA 4")
    assert [gpu.name for gpu in gpus] == ["Radeon RX 7900 XT/7900 XTX", "Radeon RX 9070/9070 XT"]
    assert [(gpu.cu_count, gpu.cu_per_wgp, gpu.compute_partition) for gpu in gpus] == [
        (96, 2, None),
        (64, 2, None),
    ]
    assert [len(device.slots) for device in offered(gpus)] == [10, 2]
    hard = offered(gpus, Terms(operating_mode="partition"))
    assert [len(device.slots) for device in hard] == [10, 2], "no partition mode: shared as ever"


def test_an_apu_has_no_serial_no_numa_node_and_its_carve_out(tmp_path: Path) -> None:
    (gpu,) = gpus_of(tmp_path, "an APU")
    assert (gpu.unique_id, gpu.numa_node, gpu.vram_bytes) == (None, None, 512 << 20)
    (device,) = offered([gpu])
    assert device.id == "amdgpu-0000-c4-00.0"
    assert device.rocr_uuid is None


def test_an_apu_without_vram_is_listed_and_not_shared_by_a_size_nobody_knows(
    tmp_path: Path,
) -> None:
    write_sys(tmp_path / "sys", NodeSpec((replace(MI300A, local_memory=None),)))
    (gpu,), _ = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert (gpu.cu_count, gpu.xcc_count, gpu.vram_bytes) == (228, 6, None)
    assert not gpu.system_memory
    devices, (problem,) = devices_of([gpu], Terms())
    assert devices == ()
    assert "the size of its VRAM is unknown" in problem


@pytest.mark.parametrize("machine", MACHINES)
def test_only_of_the_apus_the_memory_is_the_machines(tmp_path: Path, machine: str) -> None:
    apu = machine in {"an APU", "an MI300A"}
    assert {gpu.system_memory for gpu in gpus_of(tmp_path, machine)} == {apu}


@pytest.mark.parametrize(
    ("spec", "no_vram"),
    [
        (replace(STRIX_HALO, vram=96 << 30, local_memory=16 << 30), True),
        (replace(STRIX_HALO, vram=96 << 30, local_memory=96 << 30), False),
        (replace(MI300A, vram=0), True),
        (replace(MI300X, local_memory=(192 << 30) - 4096), False),
        (replace(STRIX_HALO, local_memory=0), False),
    ],
    ids=[
        "a carve-out larger than what TTM may take",
        "a carve-out that the driver uses",
        "no VRAM, and a file that says so",
        "memory ranges that leave a page out",
        "a bank without a size",
    ],
)
def test_memory_is_the_machines_where_kfd_lists_another_size_than_the_vram(
    tmp_path: Path, spec: GpuSpec, no_vram: bool
) -> None:
    write_sys(tmp_path / "sys", NodeSpec((spec,)))
    (gpu,), _ = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert gpu.system_memory == no_vram


def test_a_gpu_that_is_being_bound_is_not_taken_for_one_without_vram(tmp_path: Path) -> None:
    write_sys(tmp_path / "sys", NodeSpec((MI300A,)))
    device = tmp_path / "sys/bus/pci/devices" / MI300A.bdf
    roots = Roots(sys=tmp_path / "sys", share=tmp_path)
    (device / "mem_info_vram_total").unlink(missing_ok=True)
    (gpu,), _ = read_inventory(roots)
    assert gpu.system_memory
    # The driver lists both, this one last, once it has the device.
    (device / "mem_info_gtt_total").unlink()
    (gpu,), _ = read_inventory(roots)
    assert not gpu.system_memory


def test_a_virtual_function_keeps_its_function_and_needs_no_sensors(tmp_path: Path) -> None:
    (gpu,) = gpus_of(tmp_path, "a virtual function")
    assert (gpu.bdf, gpu.vram_bytes) == ("0000:05:02.1", 196288 << 20)
    (device,) = offered([gpu])
    assert device.id == "8eff74b5-0000-1000-801b-b56457addd1b"


@pytest.mark.parametrize("kind", ["io_links", "p2p_links"])
def test_links_of_either_kind_count_and_only_xgmi_does(tmp_path: Path, kind: str) -> None:
    write_sys(tmp_path / "sys", MACHINES["a workstation with RDNA 3 and RDNA 4"])
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, link, other in ((1, 11, 2), (2, 2, 1)):
        path = nodes / str(number) / kind / "7/properties"
        path.parent.mkdir(parents=True)
        path.write_text(f"type {link}\nnode_from {number}\nnode_to {other}\n")
    gpus, _ = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert [gpu.xgmi_peers for gpu in gpus] == [("0000:83:00.0",), ()]


def test_gpus_that_come_and_go_leave_the_others_as_they_were(tmp_path: Path) -> None:
    before = gpus_of(tmp_path, "8 MI300X")
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/4"
    node.rename(tmp_path / "gone")
    left, problems = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert problems == []
    gone = before[2].bdf
    assert [gpu.bdf for gpu in left] == [gpu.bdf for gpu in before if gpu.bdf != gone]
    (tmp_path / "gone").rename(node)
    assert read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))[0] == before


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_in_json_is_the_same_machine(
    tmp_path: Path, machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert from_json(to_json(MACHINES[machine])) == MACHINES[machine]
    assert main([machine]) == 0
    (tmp_path / "machine.json").write_text(capsys.readouterr().out)
    assert main(["--write", str(tmp_path / "tree"), str(tmp_path / "machine.json")]) == 0
    roots = Roots(sys=tmp_path / "tree", share=tmp_path / "share")
    assert read_inventory(roots) == (gpus_of(tmp_path, machine), [])


@pytest.mark.parametrize("text", ["{", '{"gpus": [{"bdf": 1, "what": 2}]}', '{"gpus": [{}]}', "[]"])
def test_what_describes_no_machine_writes_nothing(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "machine.json").write_text(text)
    with pytest.raises(SystemExit):
        main(["--write", str(tmp_path / "tree"), str(tmp_path / "machine.json")])
    assert "machine.json: " in capsys.readouterr().err
    assert not (tmp_path / "tree").exists()
