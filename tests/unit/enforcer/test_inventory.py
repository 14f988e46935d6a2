# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory, smi_uuid
from enforcer.model import Gpu
from tests.testbed.trees import GpuSpec, NodeSpec, PartitionSpec, from_json, write_sys

MI300X = GpuSpec(
    "0000:05:00.0",
    kfd_id=28851,
    card=1,
    render=128,
    vram=192 << 30,
    gfx=90402,
    cus=304,
    xccs=8,
    device_id=0x74A1,
    unique_id=0x8E1BB56457ADDD1B,
    product_name="AMD Instinct MI300X OAM",
    numa=0,
    compute_partition="SPX",
    memory_partition="NPS1",
)


def _read(tmp_path: Path, *gpus: GpuSpec) -> tuple[list[Gpu], list[str]]:
    write_sys(tmp_path / "sys", NodeSpec(gpus, cpus=2))
    return read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path / "share"))


def _node(tmp_path: Path, number: int) -> Path:
    return tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"


def test_a_node_without_the_driver_has_no_gpus(tmp_path: Path) -> None:
    assert read_inventory(Roots(sys=tmp_path)) == ([], [])


def test_a_gpu_is_put_together_from_kfd_and_drm(tmp_path: Path) -> None:
    assert _read(tmp_path, MI300X) == (
        [
            Gpu(
                bdf="0000:05:00.0",
                kfd_id=28851,
                card=1,
                render=128,
                name="AMD Instinct MI300X OAM",
                vram_bytes=192 << 30,
                cu_count=304,
                gfx_version=90402,
                device_id=0x74A1,
                unique_id=0x8E1BB56457ADDD1B,
                numa_node=0,
                compute_queues=24,
                xcc_count=8,
                compute_partition="spx",
                memory_partition="nps1",
            )
        ],
        [],
    )


def test_rdna_cus_are_masked_in_pairs(tmp_path: Path) -> None:
    radeon = GpuSpec(
        "0000:03:00.0", kfd_id=9, card=0, render=128, gfx=120001, cus=64, simd_per_cu=2
    )
    (gpu,), _ = _read(tmp_path, radeon)
    assert (gpu.cu_count, gpu.cu_per_wgp) == (64, 2)


@pytest.mark.parametrize("bdf", ["0000:05:00.2", "0001:05:00.0", "10000:e1:1f.7"])
def test_function_and_domain_are_kept(tmp_path: Path, bdf: str) -> None:
    (gpu,), problems = _read(tmp_path, replace(MI300X, bdf=bdf))
    assert (gpu.bdf, problems) == (bdf, [])


def test_xgmi_peers_are_those_of_the_hive(tmp_path: Path) -> None:
    hives = [("01", "02"), ("02", "01"), ("03", "04"), ("04", "03")]
    gpus = [
        GpuSpec(f"0000:{bus}:00.0", int(bus), int(bus), 128 + int(bus), xgmi=(f"0000:{peer}:00.0",))
        for bus, peer in hives
    ]
    found, _ = _read(tmp_path, *gpus)
    assert [gpu.xgmi_peers for gpu in found] == [(f"0000:{peer}:00.0",) for _, peer in hives]


def test_partitions_share_the_address_and_split_the_memory(tmp_path: Path) -> None:
    parts = tuple(
        PartitionSpec(kfd_id=100 + i, card=1 + i, render=128 + i, vram=24 << 30)
        for i in range(1, 8)
    )
    gpus, problems = _read(
        tmp_path, replace(MI300X, compute_partition="CPX", partitions=parts, card=1, render=128)
    )
    assert problems == []
    assert {gpu.bdf for gpu in gpus} == {"0000:05:00.0"}
    assert [gpu.render for gpu in gpus] == list(range(128, 136))
    assert {gpu.vram_bytes for gpu in gpus} == {24 << 30}
    assert {gpu.cu_count for gpu in gpus} == {38}
    assert len({gpu.kfd_id for gpu in gpus}) == 8
    assert [gpu.partition for gpu in gpus] == list(range(8))
    assert {gpu.name for gpu in gpus} == {MI300X.product_name}
    assert {(gpu.compute_partition, gpu.memory_partition) for gpu in gpus} == {("cpx", "nps1")}
    assert {gpu.numa_node for gpu in gpus} == {0}


def test_partitions_without_a_number_are_told_apart_by_render_node(tmp_path: Path) -> None:
    parts = (PartitionSpec(kfd_id=100, card=2, render=129, vram=96 << 30),)
    write_sys(tmp_path / "sys", NodeSpec((replace(MI300X, partitions=parts),), cpus=2))
    path = _node(tmp_path, 3) / "properties"
    path.write_text(path.read_text().replace("location_id 1281", "location_id 1280"))
    gpus, problems = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert problems == []
    assert [(gpu.render, gpu.partition) for gpu in gpus] == [(128, 0), (129, 1)]


def test_partitions_are_numbered_by_the_highest_bits_of_the_location_too(tmp_path: Path) -> None:
    parts = tuple(
        PartitionSpec(100 + n, card=1 + n, render=132 - n, vram=1 << 30) for n in (1, 2, 3)
    )
    write_sys(tmp_path / "sys", NodeSpec((replace(MI300X, partitions=parts),)))
    for number, name in enumerate((1, 2, 3, 4)):
        path = _node(tmp_path, name) / "properties"
        low, high = f"location_id {1280 + number}\n", f"location_id {1280 | number << 28}\n"
        assert low in path.read_text()
        path.write_text(path.read_text().replace(low, high))
    gpus, problems = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert problems == []
    assert [(gpu.bdf, gpu.partition) for gpu in gpus] == [("0000:05:00.0", n) for n in range(4)]
    assert [gpu.render for gpu in gpus[1:]] == [131, 130, 129]


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize(
    "how", ["no render node", "render minor of nobody", "no CUs", "elsewhere", "unreadable"]
)
def test_one_broken_gpu_costs_only_itself_and_is_named(
    tmp_path: Path, broken: int, how: str
) -> None:
    gpus = [
        GpuSpec(f"0000:0{index}:00.0", kfd_id=index, card=index, render=128 + index)
        for index in (1, 2, 3)
    ]
    write_sys(tmp_path / "sys", NodeSpec(tuple(gpus), cpus=2))
    path = _node(tmp_path, broken + 2) / "properties"
    text = path.read_text()
    render = f"drm_render_minor {129 + broken}"
    location = f"location_id {(broken + 1) << 8}"
    path.write_text(
        {
            "no render node": text.replace(render, "drm_render_minor 0"),
            "render minor of nobody": text.replace(render, "drm_render_minor 190"),
            "no CUs": text.replace("simd_count 416", "simd_count 0"),
            "elsewhere": text.replace(location, "location_id 25344"),
            "unreadable": "simd_count\n",
        }[how]
    )
    found, problems = read_inventory(Roots(sys=tmp_path / "sys", share=tmp_path))
    assert [gpu.kfd_id for gpu in found] == [
        gpu.kfd_id for index, gpu in enumerate(gpus) if index != broken
    ]
    assert len(problems) == 1
    assert f"KFD node {broken + 2}" in problems[0]


def test_a_name_comes_from_the_database_where_the_gpu_has_none(tmp_path: Path) -> None:
    (tmp_path / "share/misc").mkdir(parents=True)
    (tmp_path / "share/misc/pci.ids").write_text(
        "1002  AMD\n\t74a1  Aqua Vanjaram [Instinct MI300X]\n"
    )
    (gpu,), _ = _read(tmp_path, replace(MI300X, product_name=None))
    assert gpu.name == "Instinct MI300X"


def test_a_name_is_never_invented(tmp_path: Path) -> None:
    (gpu,), _ = _read(tmp_path, replace(MI300X, product_name=None))
    assert gpu.name == "AMD GPU 1002:74a1"


def test_unknown_is_none_and_not_zero(tmp_path: Path) -> None:
    bare = GpuSpec("0000:03:00.0", 7, 0, 128, vram=None, numa=None, queues=0)
    (gpu,), problems = _read(tmp_path, bare)
    assert problems == []
    assert (gpu.vram_bytes, gpu.numa_node, gpu.unique_id, gpu.compute_queues) == (None,) * 4


def test_amd_smis_sample_is_reproduced() -> None:
    # The UUID a MI300X VF (device 0x74b5) reports.
    expected = "8eff74b5-0000-1000-801b-b56457addd1b"
    assert smi_uuid(0x8E1BB56457ADDD1B, 0x74B5) == expected


@pytest.mark.parametrize(("unique_id", "device_id"), [(None, 1), (0, 1), (1, None)])
def test_without_an_id_there_is_no_uuid(unique_id: int | None, device_id: int | None) -> None:
    assert smi_uuid(unique_id, device_id) is None


@given(st.integers(1, (1 << 64) - 1), st.integers(0, 0xFFFF), st.integers(0, 0xFF))
def test_a_uuid_holds_serial_device_and_partition(serial: int, device: int, partition: int) -> None:
    uuid = smi_uuid(serial, device, partition)
    assert uuid is not None
    assert [len(group) for group in uuid.split("-")] == [8, 4, 4, 4, 12]
    digits = uuid.replace("-", "")
    assert int(digits[:2] + digits[18:], 16) == serial
    assert (int(digits[2:4], 16), int(digits[4:8], 16)) == (partition, device)


def test_a_node_can_be_described_in_json(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "cpus": 2,
            "gpus": [
                {
                    "bdf": "0000:05:00.0",
                    "kfd_id": 1,
                    "card": 1,
                    "render": 128,
                    "partitions": [{"kfd_id": 2, "card": 2, "render": 129, "vram": 1 << 30}],
                }
            ],
        }
    )
    write_sys(tmp_path, from_json(text))
    gpus, problems = read_inventory(Roots(sys=tmp_path, share=tmp_path))
    assert [gpu.kfd_id for gpu in gpus] == [1, 2]
    assert problems == []
