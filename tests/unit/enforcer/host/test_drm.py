# SPDX-License-Identifier: Apache-2.0
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.host import drm
from enforcer.host.files import FileError
from tests.testbed.trees import GpuSpec, NodeSpec, PartitionSpec, write_sys

GPU = GpuSpec(
    "0000:03:00.0",
    kfd_id=5,
    card=1,
    render=128,
    vram=192 << 30,
    vram_used=7 << 20,
    unique_id=0x8E1BB56457ADDD1B,
    product_name="AMD Instinct MI300X",
    numa=1,
    compute_partition="SPX",
    memory_partition="NPS1",
    compute_partitions=("SPX", "DPX", "QPX", "CPX"),
    memory_partitions=("NPS1", "NPS4"),
)
OLD = """\
pos:\t0
drm-driver:\tamdgpu
drm-client-id:\t42
drm-pdev:\t0000:03:00.0
pasid:\t32770
drm-memory-vram:\t1024 KiB
drm-memory-gtt: \t0 KiB
amd-evicted-vram:\t8 KiB
amd-requested-vram:\t1032 KiB
"""
NEW = """\
drm-driver:\tamdgpu
drm-client-id:\t42
drm-pdev:\t0000:03:00.0
drm-total-vram:\t3 MiB
drm-shared-vram:\t4096
drm-resident-vram:\t2 MiB
drm-memory-vram:\t2048 KiB
amd-requested-vram:\t3072 KiB
"""


def test_a_device_is_read_whole(tmp_path: Path) -> None:
    write_sys(tmp_path, NodeSpec((GPU,)))
    (device,), problems = drm.devices(tmp_path)
    assert problems == []
    assert (device.bdf, device.card, device.render) == ("0000:03:00.0", 1, 128)
    assert (device.vendor, device.device) == (0x1002, 0x740F)
    assert device.unique_id == 0x8E1BB56457ADDD1B
    assert device.product_name == "AMD Instinct MI300X"
    assert (device.numa_node, device.vram_total) == (1, 192 << 30)
    assert (device.compute_partition, device.memory_partition) == ("spx", "nps1")
    assert device.compute_partitions == ("spx", "dpx", "qpx", "cpx")
    assert device.memory_partitions == ("nps1", "nps4")


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("SPX\n", ("spx",)),
        ("SPX, DPX\n", ("spx", "dpx")),
        ("", ()),
        ("\n", ()),
        ("Not supported\n", ()),
        (" , SPX,,\n", ("spx",)),
    ],
)
def test_the_modes_a_device_can_be_put_in(tmp_path: Path, text: str, modes: tuple[str]) -> None:
    write_sys(tmp_path, NodeSpec((GPU,)))
    path = tmp_path / "devices/pci0000:00" / GPU.bdf / "available_compute_partition"
    path.write_text(text)
    (device,), problems = drm.devices(tmp_path)
    assert (device.compute_partitions, problems) == (modes, [])
    path.unlink()
    assert drm.devices(tmp_path)[0][0].compute_partitions == ()


def test_what_a_device_does_not_say_is_unknown(tmp_path: Path) -> None:
    bare = GpuSpec("0000:03:00.0", kfd_id=5, card=1, render=128, vram=None, numa=-1)
    write_sys(tmp_path, NodeSpec((bare,)))
    (device,), problems = drm.devices(tmp_path)
    assert problems == []
    assert (device.unique_id, device.product_name, device.numa_node, device.vram_total) == (
        (None,) * 4
    )


def test_a_unique_id_of_zero_is_none(tmp_path: Path) -> None:
    write_sys(tmp_path, NodeSpec((GPU,)))
    (tmp_path / "devices/pci0000:00/0000:03:00.0/unique_id").write_text("0000000000000000\n")
    assert drm.devices(tmp_path)[0][0].unique_id is None


def test_a_partition_is_a_device_without_a_pci_address(tmp_path: Path) -> None:
    parted = GpuSpec(
        "0000:05:00.0",
        kfd_id=1,
        card=1,
        render=128,
        partitions=(PartitionSpec(kfd_id=2, card=2, render=129, vram=1),),
    )
    write_sys(tmp_path, NodeSpec((parted,)))
    devices, _ = drm.devices(tmp_path)
    assert [(device.name, device.bdf, device.render) for device in devices] == [
        ("0000:05:00.0", "0000:05:00.0", 128),
        ("amdgpu_xcp_0", None, 129),
    ]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_one_broken_device_costs_only_itself(tmp_path: Path, broken: int) -> None:
    gpus = tuple(GpuSpec(f"0000:0{i}:00.0", kfd_id=i, card=i, render=128 + i) for i in range(3))
    write_sys(tmp_path, NodeSpec(gpus))
    (tmp_path / f"devices/pci0000:00/0000:0{broken}:00.0/mem_info_vram_total").write_text("lots")
    devices, problems = drm.devices(tmp_path)
    assert [device.card for device in devices] == [card for card in range(3) if card != broken]
    assert len(problems) == 1
    assert f"0000:0{broken}:00.0" in problems[0]


def test_devices_that_cannot_be_listed_are_told(tmp_path: Path) -> None:
    entries = tmp_path / "class/drm"
    entries.parent.mkdir()
    entries.symlink_to(entries)
    (problem,) = drm.devices(tmp_path)[1]
    assert problem.startswith(f"no DRM device can be seen: {entries}: cannot read: Too many")


def test_a_device_that_vanished_behind_its_link_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "class/drm").mkdir(parents=True)
    (tmp_path / "class/drm/card7").symlink_to("../../devices/gone/drm/card7")
    (tmp_path / "class/drm/card0-HDMI-A-1").mkdir()
    (tmp_path / "class/drm/version").write_text("drm 1.1.0 20060810\n")
    assert drm.devices(tmp_path) == ([], [])


def test_load_is_in_bytes_percent_degrees_and_watts(tmp_path: Path) -> None:
    write_sys(tmp_path, NodeSpec((GPU,)))
    load = drm.load(tmp_path / "bus/pci/devices/0000:03:00.0")
    assert load == drm.DrmLoad(7 << 20, 0, 41.0, 90.0)


def test_power_falls_back_to_the_momentary_value(tmp_path: Path) -> None:
    write_sys(tmp_path, NodeSpec((GPU,)))
    hwmon = tmp_path / "devices/pci0000:00/0000:03:00.0/hwmon/hwmon3"
    (hwmon / "power1_average").unlink()
    (hwmon / "power1_input").write_text("1500000\n")
    assert drm.load(tmp_path / "bus/pci/devices/0000:03:00.0").power == 1.5


def test_a_virtual_function_without_sensors_has_no_load_but_no_error(tmp_path: Path) -> None:
    assert drm.load(tmp_path / "nowhere") == drm.DrmLoad(None, None, None, None)


def test_fdinfo_of_the_old_keys() -> None:
    client = drm.parse_fdinfo(OLD, "x")
    assert client == drm.DrmClient(
        "0000:03:00.0", 42, resident=1 << 20, requested=1032 << 10, evicted=8 << 10
    )


def test_fdinfo_of_the_new_keys_with_every_unit() -> None:
    client = drm.parse_fdinfo(NEW, "x")
    assert client == drm.DrmClient(
        "0000:03:00.0", 42, resident=2 << 20, total=3 << 20, shared=4096, requested=3 << 20
    )


def test_fdinfo_of_another_file_is_nothing() -> None:
    assert drm.parse_fdinfo("pos:\t0\nflags:\t02\n", "x") is None
    assert drm.parse_fdinfo("drm-driver:\ti915\ndrm-client-id:\t1\n", "x") is None


@pytest.mark.parametrize(
    "line",
    ["drm-client-id:\tx", "drm-pdev:\tcard0", "drm-resident-vram:\t1 GiB", "drm-total-vram:\t-1"],
)
def test_malformed_fdinfo_is_an_error(line: str) -> None:
    key = line.partition(":")[0]
    text = "\n".join([one for one in NEW.splitlines() if not one.startswith(key + ":")] + [line])
    with pytest.raises(FileError, match=r"^x: "):
        drm.parse_fdinfo(text, "x")


@given(st.text())
def test_any_text_is_a_client_nothing_or_a_file_error(text: str) -> None:
    for start in ("", "drm-driver: amdgpu\n", NEW):
        with suppress(FileError):
            drm.parse_fdinfo(start + text, "x")


def test_a_client_is_counted_once_over_descriptors_and_processes(tmp_path: Path) -> None:
    for pid, fd, text in (
        (1, 3, NEW),
        (1, 4, NEW),
        (2, 3, NEW),
        (2, 4, NEW.replace("\t42", "\t43")),
        (2, 5, NEW.replace("03:00.0", "04:00.0")),
        (2, 6, "pos:\t0\n"),
    ):
        path = tmp_path / str(pid) / "fdinfo" / str(fd)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    clients, problems = drm.clients(tmp_path, [1, 2, 3])
    assert sorted((client.bdf, client.client) for client in clients) == [
        ("0000:03:00.0", 42),
        ("0000:03:00.0", 43),
        ("0000:04:00.0", 42),
    ]
    assert problems == []


def test_one_malformed_descriptor_costs_only_itself(tmp_path: Path) -> None:
    for fd, text in ((3, NEW.replace("\t42", "\tx")), (4, NEW)):
        path = tmp_path / "1" / "fdinfo" / str(fd)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    clients, problems = drm.clients(tmp_path, [1])
    assert len(clients) == len(problems) == 1


def test_only_descriptors_of_drm_devices_are_read(tmp_path: Path) -> None:
    for fd, target in ((3, "/dev/dri/renderD128"), (4, "/data/model"), (5, "socket:[7]")):
        path = tmp_path / "1" / "fdinfo" / str(fd)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NEW.replace("\t42", f"\t{fd}"))
        (tmp_path / "1/fd").mkdir(exist_ok=True)
        (tmp_path / "1/fd" / str(fd)).symlink_to(target)
    clients, problems = drm.clients(tmp_path, [1])
    assert [client.client for client in clients] == [3]
    assert problems == []


def test_engine_times_are_nanoseconds_and_capacities_are_none() -> None:
    text = (
        "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\n"
        "drm-engine-gfx:\t1234 ns\ndrm-engine-enc_1:\t5 ns\ndrm-engine-capacity-gfx:\t2\n"
    )
    client = drm.parse_fdinfo(text, "x")
    assert client is not None
    assert client.engines == (("gfx", 1234), ("enc_1", 5))


@pytest.mark.parametrize("value", ["12", "12 us", "-1 ns", "x ns", ""])
def test_an_engine_time_of_another_shape_is_an_error(value: str) -> None:
    text = (
        "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\n"
        f"drm-engine-gfx:\t{value}\n"
    )
    with pytest.raises(FileError, match="expected nanoseconds"):
        drm.parse_fdinfo(text, "x")
