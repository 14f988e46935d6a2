# SPDX-License-Identifier: Apache-2.0
"""A container is held to its slice, and sees a GPU of that size: unmodified HIP over our thunk."""

from __future__ import annotations

import pytest

from audit_hook.ledger import read_ledger
from audit_hook.slice import GpuShare
from enforcer.model import pci_key

from .container import GPU, MIB, PROGRAMS, SECOND_GPU, Container

NO_DEVICE = ["count 100 0"]
WAYS = ["hip", "hip-now", "hip-noplt", "hip-address", "hip-dlsym", "hip-dlmopen", "hip-hsa"]


def test_without_a_slice_the_program_sees_the_whole_card(container: Container) -> None:
    result = container.hip("malloc=6000", "total")
    assert result.lines == ["malloc 0", "total 0 8192"]
    assert result.err == ""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_bind_hip_is_refused_above_the_slice(container: Container, way: str) -> None:
    container.give_mib(2048)
    result = container.hip("malloc=1500", "malloc=1000", "free", "malloc=1000", program=way)
    assert result.lines == ["malloc 0", "malloc 2", "free 0", "malloc 0"]
    assert f"ringfence: GPU {GPU}: refused {1000 * MIB} bytes: " in result.err
    assert f"of this container's {2048 * MIB} are in use" in result.err
    assert len(result.err.splitlines()) == 1


def test_memory_info_and_properties_show_the_slice(container: Container) -> None:
    container.give_mib(2048)
    result = container.hip("info", "malloc=512", "info", "total")
    assert result.lines == ["info 0 2048 2048", "malloc 0", "info 0 1536 2048", "total 0 2048"]


def test_a_slice_larger_than_the_card_shows_the_card(container: Container) -> None:
    container.give_mib(100_000)
    assert container.hip("total").lines == ["total 0 8192"]


def test_an_unlimited_gpu_is_counted_and_not_limited(container: Container) -> None:
    container.give(GpuShare(GPU, None))
    process = container.start(PROGRAMS / "hip", "malloc=6000", "say=up", "wait", stdin=-1)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    ledger = read_ledger(container.ledger)
    assert ledger is not None
    assert ledger.used(pci_key(GPU)) >= 6000 * MIB
    process.communicate("\n", timeout=30)


def test_a_gpu_outside_the_slice_is_not_shown(container: Container) -> None:
    container.give(GpuShare(SECOND_GPU, 1024 * MIB))
    result = container.hip("malloc=1000", "malloc=100", "count", env={"THUNK_GPUS": "2"})
    assert result.lines == ["malloc 0", "malloc 2", "count 0 1"]
    assert SECOND_GPU in result.err


def test_each_gpu_has_its_own_limit(container: Container) -> None:
    container.give(GpuShare(GPU, 1024 * MIB), GpuShare(SECOND_GPU, 4096 * MIB))
    orders = ["malloc=2000", "device=1", "malloc=2000", "malloc=3000"]
    result = container.hip(*orders, env={"THUNK_GPUS": "2"})
    assert result.lines == ["malloc 2", "device 0", "malloc 0", "malloc 2"]


def test_the_order_a_process_sees_its_gpus_in_does_not_move_limits(container: Container) -> None:
    container.give(GpuShare(GPU, 1024 * MIB), GpuShare(SECOND_GPU, 4096 * MIB))
    env = {"THUNK_GPUS": "2", "HIP_VISIBLE_DEVICES": "1"}
    assert container.hip("malloc=2000", env=env).lines == ["malloc 0"]
    env["HIP_VISIBLE_DEVICES"] = "0"
    assert container.hip("malloc=2000", env=env).lines == ["malloc 2"]


def test_where_the_kernel_refuses_the_hook_only_informs(container: Container) -> None:
    container.give(GpuShare(GPU, 2048 * MIB), kernel_refuses=True)
    result = container.hip("total", "malloc=1500", "malloc=1500", "info")
    assert result.lines == ["total 0 2048", "malloc 0", "malloc 0", "info 0 0 2048"]
    assert result.err == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ringfence-slice 2\nrefuse hook\ngpu 0000:03:00.0 vram=1\nend\n",
        "ringfence-slice 1\nrefuse hook\ngpu 0000:03:00.0 vram=1\n",
        "ringfence-slice 1\nrefuse hook\ngpu 0000:03:00.0 vram=-1\nend\n",
        "x" * 40000,
    ],
)
def test_a_slice_that_cannot_be_read_shows_no_gpu_and_says_so(
    container: Container, text: str
) -> None:
    container.slice_path.write_text(text)
    result = container.hip("count")
    assert result.lines == NO_DEVICE
    assert result.err.startswith("ringfence: slice /etc/ringfence/slice:")
    assert len(result.err.splitlines()) == 1


def test_a_missing_ledger_directory_shows_no_gpu_and_says_so(container: Container) -> None:
    container.give_mib(1024)
    container.ledger.rmdir()
    result = container.hip("count")
    assert result.lines == NO_DEVICE
    assert "ringfence: ledger /run/ringfence/ledger/usage.v1: No such file" in result.err


@pytest.mark.parametrize("planted", ["link", "garbage", "directory"])
def test_a_planted_ledger_shows_no_gpu_and_says_so(container: Container, planted: str) -> None:
    container.give_mib(1024)
    path = container.ledger / "usage.v1"
    if planted == "link":
        path.symlink_to("/tmp/elsewhere")
    elif planted == "garbage":
        path.write_bytes(b"garbage!" * 8)
    else:
        path.mkdir()
    result = container.hip("count")
    assert result.lines == NO_DEVICE
    assert "ringfence: ledger /run/ringfence/ledger/usage.v1: " in result.err
    assert not (container.root / "tmp" / "elsewhere").exists()


def test_hamis_variables_hold_where_there_is_no_slice_file(container: Container) -> None:
    result = container.hip("total", "malloc=3000", env={"HIP_DEVICE_MEMORY_LIMIT_0": "2048m"})
    assert result.lines == ["total 0 2048", "malloc 2"]
    result = container.hip("total", env={"HIP_DEVICE_MEMORY_LIMIT": "1g"})
    assert result.lines == ["total 0 1024"]
    orders = ["device=1", "malloc=2000", "malloc=3000"]
    env = {"THUNK_GPUS": "2", "HIP_DEVICE_MEMORY_LIMIT_1": "4g", "HIP_DEVICE_MEMORY_LIMIT": "1g"}
    assert container.hip(*orders, env=env).lines == ["device 0", "malloc 0", "malloc 2"]


def test_hamis_zero_means_no_limit(container: Container) -> None:
    result = container.hip("total", env={"HIP_DEVICE_MEMORY_LIMIT_0": "0"})
    assert result.lines == ["total 0 8192"]


@pytest.mark.parametrize("value", ["1.5G", "-1", "2048mb", " 1g", "0x10", "99999999999999999999"])
def test_an_unreadable_variable_refuses_instead_of_meaning_no_limit(
    container: Container, value: str
) -> None:
    result = container.hip("count", env={"HIP_DEVICE_MEMORY_LIMIT_0": value})
    assert result.lines == NO_DEVICE
    assert f'HIP_DEVICE_MEMORY_LIMIT_0 is "{value}", expected digits' in result.err


def test_a_process_may_lower_the_pods_variable_but_not_raise_it(container: Container) -> None:
    container.env["HIP_DEVICE_MEMORY_LIMIT_0"] = "2g"
    pod = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    hip = PROGRAMS / "hip"
    raised = f"env HIP_DEVICE_MEMORY_LIMIT_0=6g {hip} total; :"
    assert container.run("sh", "-c", raised, unshare=pod).lines == ["total 0 2048"]
    lowered = f"env HIP_DEVICE_MEMORY_LIMIT_0=1g {hip} total; :"
    assert container.run("sh", "-c", lowered, unshare=pod).lines == ["total 0 1024"]
    dropped = f"env -u HIP_DEVICE_MEMORY_LIMIT_0 {hip} total; :"
    assert container.run("sh", "-c", dropped, unshare=pod).lines == ["total 0 2048"]


def test_memory_of_regions_is_within_the_slice_and_the_hosts_is_not_counted(
    container: Container,
) -> None:
    container.give_mib(2048)
    result = container.run(PROGRAMS / "regions", "1500", "1500", "3000")
    refused = f"{0x1008:x}"
    assert result.lines == [
        "size 2048", "device 0", "free 0", "device 0", f"device {refused}", "host 0"
    ]  # fmt: skip


def test_two_copies_of_hip_in_one_process_share_the_slice(container: Container) -> None:
    container.give_mib(2048)
    result = container.run(PROGRAMS / "copies", "1500", "1000", "400")
    assert result.lines == ["malloc 0", "malloc 2", "malloc 0"]


def test_refusals_print_one_line_a_second_and_nothing_on_standard_output(
    container: Container,
) -> None:
    container.give_mib(1024)
    # What is larger than the whole slice HIP refuses by itself, and ROCr is not asked.
    result = container.hip("malloc=600", *["malloc=600"] * 200)
    assert result.lines == ["malloc 0", *["malloc 2"] * 200]
    lines = result.err.splitlines()
    # However slow the machine is, it does not refuse one a second.
    assert 1 <= len(lines) < 100
    assert all("refused" in line for line in lines)


def test_the_log_level_says_how_much_is_told(container: Container) -> None:
    container.give_mib(1024, cus="0-15")
    orders = ["malloc=100", "free"]
    assert container.hip(*orders).err == ""
    info = container.hip(*orders, env={"LIBHIP_LOG_LEVEL": "3"}).err
    assert info == (
        f"ringfence: GPU {GPU}: memory {1024 * MIB} bytes, compute units 16; "
        "this library refuses what is above\n"
    )
    debug = container.hip(*orders, env={"LIBHIP_LOG_LEVEL": "4"}).err
    assert f"ringfence: GPU {GPU}: took {100 * MIB} bytes of a pool; the container holds" in debug
    assert f"ringfence: GPU {GPU}: gave back {100 * MIB} bytes of a pool" in debug
    for level in ("", "0", "5", "warn"):
        assert container.hip(*orders, env={"LIBHIP_LOG_LEVEL": level}).err == ""
    # Errors are told at any level.
    refused = container.hip("malloc=600", "malloc=600", env={"LIBHIP_LOG_LEVEL": "1"})
    assert "refused" in refused.err


def test_warnings_are_left_out_where_only_errors_are_wanted(container: Container) -> None:
    container.ledger.rmdir()
    (container.root / "tmp" / "ringfence-usage.v1").mkdir()
    env = {"HIP_DEVICE_MEMORY_LIMIT_0": "2g", "LIBHIP_LOG_LEVEL": "1"}
    assert container.hip("malloc=100", env=env).err == ""
