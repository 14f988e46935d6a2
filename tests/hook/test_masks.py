# SPDX-License-Identifier: Apache-2.0
"""Every queue carries the slice's compute units, and no process can widen them."""

from __future__ import annotations

import re

import pytest

from audit_hook.slice import GpuShare

from .container import GPU, MIB, PROGRAMS, SECOND_GPU, Container, Result

SLICE = "0000ffff,00000000,00000000,00000000"


def masks(result: Result) -> dict[int, str]:
    """The mask each queue ended up with in the driver, by queue id."""
    found: dict[int, str] = {}
    for line in result.driver.splitlines():
        if match := re.fullmatch(r"cumask id=(\d+) bits=\d+ mask=(\S+)", line):
            # ROCr leaves out words beyond the highest CU of HSA_CU_MASK.
            words = [*match[2].split(","), *["00000000"] * 4]
            found[int(match[1])] = ",".join(words[:4])
    return found


def compute_queues(result: Result) -> set[int]:
    """Ids of the AQL queues (HSA_QUEUE_COMPUTE_AQL) the driver was asked for."""
    found = re.findall(r"^queue id=(\d+) node=1 type=21", result.driver, re.M)
    return {int(number) for number in found}


def test_every_compute_queue_is_born_with_the_slices_mask(container: Container) -> None:
    container.give_mib(4096, cus="0-15")
    result = container.hip("default", program="streams")
    assert result.lines == ["stream 0", "sync 0"]
    queues = compute_queues(result)
    assert queues
    assert {queue: masks(result).get(queue) for queue in queues} == dict.fromkeys(queues, SLICE)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("ffffffff,ffffffff,ffffffff,000000ff", SLICE),
        ("00000003", "00000003,00000000,00000000,00000000"),
        ("00ff00f0", "000000f0,00000000,00000000,00000000"),
        ("ffff0000", SLICE),
    ],
)
def test_a_stream_gets_what_it_asks_for_within_the_slice(
    container: Container, asked: str, given: str
) -> None:
    container.give_mib(4096, cus="0-15")
    result = container.hip("mask", asked, program="streams")
    assert result.lines == ["stream 0", "sync 0"]
    assert masks(result)[max(compute_queues(result))] == given


def test_a_wider_global_mask_neither_widens_nor_crashes(container: Container) -> None:
    container.give_mib(4096, cus="0-15")
    env = {"ROC_GLOBAL_CU_MASK": "0xffffffffffff"}
    result = container.hip("default", program="streams", env=env)
    assert (result.code, result.lines) == (0, ["stream 0", "sync 0"])
    assert set(masks(result).values()) == {SLICE}


def test_a_mask_reset_brings_back_the_slice_not_the_card(container: Container) -> None:
    container.give_mib(4096, cus="0-15")
    result = container.hip(program="queue")
    assert result.lines == ["queue 0", "set 0", f"mask 0 {SLICE}"]


HOSTILE = [
    {"HSA_CU_MASK_SKIP_INIT": "1"},
    {"HSA_CU_MASK": "0:0-103"},
    {"HSA_CU_MASK": "0:zz"},
    {"HSA_CU_MASK": "", "HSA_CU_MASK_SKIP_INIT": "1"},
    {"HSA_TOOLS_LIB": ""},
    {"HSA_TOOLS_LIB": None},
    {"HSA_TOOLS_LIB": "/nonexistent.so", "HSA_CU_MASK_SKIP_INIT": "1"},
    {"HSA_TOOLS_LIB": '"" "', "HSA_TOOLS_DISABLE_REGISTER": "1"},
    {"HSA_ENABLE_DTIF": "1", "ROCR_VISIBLE_DEVICES": "0"},
]


@pytest.mark.parametrize(
    "env", HOSTILE, ids=lambda env: " ".join(map("{}={}".format, env, env.values()))
)
def test_a_hostile_environment_drops_neither_mask_nor_limit(
    container: Container, env: dict[str, str | None]
) -> None:
    container.give_mib(2048, cus="0-15")
    result = container.hip("default", program="streams", env=env)
    assert result.lines == ["stream 0", "sync 0"]
    queues = compute_queues(result)
    assert {queue: masks(result).get(queue) for queue in queues} == dict.fromkeys(queues, SLICE)
    assert container.hip("malloc=3000", env=env).lines == ["malloc 2"]


def test_the_mask_follows_the_gpu_not_the_order_the_process_sees(container: Container) -> None:
    container.give(
        GpuShare(GPU, 1024 * MIB, cus="0-15"), GpuShare(SECOND_GPU, 1024 * MIB, cus="16-31")
    )
    env = {"THUNK_GPUS": "2", "HIP_VISIBLE_DEVICES": "1"}
    result = container.hip("default", program="streams", env=env)
    assert result.lines == ["stream 0", "sync 0"]
    assert masks(result)[max(masks(result))] == "ffff0000,00000000,00000000,00000000"


def test_rocrs_own_queues_are_masked_as_far_as_the_indices_fit(container: Container) -> None:
    container.give(
        GpuShare(GPU, 1024 * MIB, cus="0-15"), GpuShare(SECOND_GPU, 1024 * MIB, cus="16-31")
    )
    second = "ffff0000,00000000,00000000,00000000"
    pod = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    command = f"{{}} {PROGRAMS / 'streams'} default; :"
    container.env |= {"THUNK_GPUS": "2", "ROCR_VISIBLE_DEVICES": "0,1"}
    # As the pod has it, also where the process cleared it; and a process that turns it round.
    for change in ("HIP_VISIBLE_DEVICES=1", "-u ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES=1"):
        container.log.unlink(missing_ok=True)
        result = container.run("sh", "-c", command.format(f"env {change}"), unshare=pod)
        queues = re.findall(r"^queue id=(\d+) node=2 type=21", result.driver, re.M)
        assert len(queues) > 1
        assert masks(result) == {int(number): second for number in queues}
    container.log.unlink()
    turned = command.format("env ROCR_VISIBLE_DEVICES=1")
    result = container.run("sh", "-c", turned, unshare=pod)
    assert result.lines == ["stream 0", "sync 0"]
    assert set(masks(result).values()) == {second}


def test_pairs_of_a_work_group_processor_are_kept_whole(container: Container) -> None:
    container.give_mib(4096, cus="0-4,7,9-10")
    result = container.hip("default", program="streams", env={"THUNK_GFX": "1030"})
    assert result.lines == ["stream 0", "sync 0"]
    assert masks(result)[max(compute_queues(result))] == "0000000f,00000000,00000000,00000000"


def test_a_mask_without_a_cu_of_this_gpu_makes_no_queue_and_says_so(container: Container) -> None:
    container.give_mib(4096, cus="200-210")
    result = container.hip(program="queue")
    assert result.lines == [f"queue {0x1008}"]
    assert (
        "ringfence: the slice's compute units are none that this gfx90a with 104 has" in result.err
    )


def test_hamis_mask_variable_holds_where_there_is_no_slice_file(container: Container) -> None:
    env = {"HSA_CU_MASK": "0:0-15", "HIP_DEVICE_MEMORY_LIMIT_0": "2g"}
    result = container.hip(program="queue", env=env)
    assert result.lines == ["queue 0", "set 0", f"mask 0 {SLICE}"]


def test_a_pods_mask_variable_wins_over_its_processs(container: Container) -> None:
    container.env["HSA_CU_MASK"] = "0:0-15"
    pod = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    for change in ("HSA_CU_MASK=0:0-103", "-u HSA_CU_MASK", "HSA_CU_MASK_SKIP_INIT=1"):
        command = f"env {change} {PROGRAMS / 'queue'}; :"
        result = container.run("sh", "-c", command, unshare=pod)
        assert result.lines == ["queue 0", "set 0", f"mask 0 {SLICE}"]


@pytest.mark.parametrize(("priority", "expected"), [(0, "3"), (1, "-3"), (None, "")])
def test_queues_get_the_slices_priority(
    container: Container, priority: int | None, expected: str
) -> None:
    container.give(GpuShare(GPU, 1024 * MIB), priority=priority)
    result = container.hip("default", program="streams")
    found = re.findall(r"^update id=\d+ priority=(-?\d+)$", result.driver, re.M)
    assert "".join(sorted(set(found))) == expected
