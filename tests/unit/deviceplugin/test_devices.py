# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deviceplugin.devices import (
    devices_of,
    find_device,
    key_of_slot,
    overlaps,
    product_of,
    register_value,
    share_key,
)
from deviceplugin.terms import Terms
from enforcer.model import MIB, Share

from .given import BDF, DEVICES, ID, OTHER, device, gpu

if TYPE_CHECKING:
    from enforcer.model import Gpu


def test_each_gpu_has_as_many_slots_as_may_share_it() -> None:
    assert len(device().slots) == 10
    assert device().slots[3] == f"{BDF}#3"
    assert len(device(gfx_version=120001).slots) == 2
    ((one,), _) = devices_of([gpu()], Terms(split_count=4))
    assert one.slots == tuple(f"{BDF}#{slot}" for slot in range(4))
    assert all(len(slot) <= 63 for slot in device("00010000:65:00.0").slots)


@pytest.mark.parametrize(
    ("gpus", "offered", "complaint"),
    [
        ([gpu(vram_bytes=None), gpu(OTHER)], [OTHER], "the size of its VRAM is unknown"),
        ([gpu(), gpu(OTHER, cu_count=0)], [BDF], "the count of its CUs is unknown"),
        (
            [gpu(), gpu(OTHER, unique_id=0x8EFF74B5801BB564)],
            [BDF],
            f"its UUID {ID} is also that of {BDF}",
        ),
        (
            [gpu(partition=0), gpu(render=130, partition=1), gpu(OTHER)],
            [OTHER],
            "expected SPX mode or --operating-mode partition",
        ),
    ],
)
def test_a_gpu_that_cannot_be_offered_costs_only_itself(
    gpus: list[object], offered: list[str], complaint: str
) -> None:
    devices, problems = devices_of(gpus, Terms())  # type: ignore[arg-type]
    assert [one.gpu.bdf for one in devices] == offered
    assert all(complaint in problem for problem in problems)
    assert problems


def test_a_gpu_without_a_serial_has_an_id_that_annotations_can_carry() -> None:
    assert device(unique_id=None).id == "amdgpu-0000-05-00.0"
    assert device(unique_id=0).rocr_uuid is None


def test_devices_are_found_by_their_registered_id_and_rocr_uuid() -> None:
    assert find_device(DEVICES, ID) is DEVICES[0]
    assert find_device(DEVICES, f"{ID}#spx") is DEVICES[0]
    assert find_device(DEVICES, "GPU-1122334455667788") is DEVICES[1]
    assert find_device(DEVICES, "GPU-") is None
    assert find_device(DEVICES, "") is None
    assert find_device([device(unique_id=None)], "None") is None


def test_a_slot_tells_its_gpu() -> None:
    assert key_of_slot(f"{BDF}#12") == BDF


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX"),
        ("A;B,C:D", "AMD A B C D"),
        ("", "amd-gpu"),
        ("amdgpu", "amdgpu"),
    ],
)
def test_the_product_name_is_one_that_hami_matches(name: str, product: str) -> None:
    assert product_of(gpu(name=name)) == product


def test_the_node_is_registered_as_hami_reads_it() -> None:
    linked = [device(xgmi_peers=(OTHER, "0000:99:00.0")), device(OTHER, healthy=False)]
    first, second = json.loads(register_value(linked))
    assert first == {
        "id": ID,
        "count": 10,
        "devmem": 196288,
        "devcore": 304,
        "type": "AMD Instinct MI300X",
        "health": True,
        "devicevendor": "amd",
        "custominfo": {
            "computeQueues": 24,
            "cuPerWGP": 1,
            "pciBDF": BDF,
            "xgmiPeers": [OTHER],
        },
    }
    assert second["index"] == second["numa"] == 1
    assert "health" not in second


def test_memory_is_registered_in_whole_mib() -> None:
    assert device(vram_bytes=196288 * MIB + MIB - 1).mib == 196288


def cpx(count: int = 8, **more: object) -> list[Gpu]:
    """The partitions of one GPU in CPX mode."""
    return [
        gpu(
            render=128 + number,
            partition=number,
            cu_count=38,
            vram_bytes=24536 * MIB,
            compute_partition="cpx",
            memory_partition="nps4",
            **more,
        )
        for number in range(count)
    ]


def test_partitions_are_offered_one_by_one_under_ids_of_their_own() -> None:
    devices, problems = devices_of([*cpx(), gpu(OTHER)], Terms(operating_mode="partition"))
    assert problems == ()
    assert [one.slots for one in devices[:2]] == [(f"{BDF}-0#cpx",), (f"{BDF}-1#cpx",)]
    assert len({one.id for one in devices}) == 9
    assert devices[1].id == "8e0174a1-0000-1000-80ff-74b5801bb564#cpx"
    assert find_device(devices, devices[3].id) is devices[3]
    assert find_device(devices, devices[3].id.removesuffix("#cpx")) is devices[3]
    # One that is not in a partition mode is shared as ever.
    assert (devices[8].mode, len(devices[8].slots)) == ("", 10)
    assert all(len(slot) <= 63 for one in devices for slot in one.slots)


def test_a_serial_shared_by_partitions_finds_none_of_them() -> None:
    devices, _ = devices_of(cpx(), Terms(operating_mode="partition"))
    assert find_device(devices, "GPU-8eff74b5801bb564") is None


def test_a_gpu_in_spx_mode_is_one_hard_partition() -> None:
    spx = gpu(compute_partition="spx", memory_partition="nps1")
    ((one,), _) = devices_of([spx], Terms(operating_mode="partition"))
    assert (one.id, one.slots, one.mode) == (f"{ID}#spx", (f"{BDF}#spx",), "spx")
    ((one,), _) = devices_of([spx], Terms())
    assert (one.id, len(one.slots), one.mode) == (ID, 10, "")


def test_partitions_are_registered_with_mode_and_profile() -> None:
    devices, _ = devices_of(cpx(2), Terms(operating_mode="partition"))
    first, second = json.loads(register_value(devices))
    assert (first["mode"], first["count"], first["devmem"]) == ("cpx", 1, 24536)
    assert second["custominfo"]["partitionProfile"] == "cpx_nps4"
    assert second["custominfo"]["pciBDF"] == BDF


@pytest.mark.parametrize(
    ("terms", "resources"),
    [
        (Terms(operating_mode="partition"), {"amd.com/gpu"}),
        (Terms(operating_mode="partition", mixed=True), {"amd.com/cpx_nps4", "amd.com/gpu"}),
        (Terms(whole=True, mixed=True), {"amd.com/cpx_nps4", "amd.com/gpu"}),
    ],
)
def test_mixed_naming_has_a_resource_for_each_kind(terms: Terms, resources: set[str]) -> None:
    devices, _ = devices_of([*cpx(2), gpu(OTHER)], terms)
    assert {one.resource for one in devices} == resources


def test_a_kind_that_cannot_be_named_stays_under_the_common_name() -> None:
    odd = gpu(compute_partition="cpx", memory_partition=None)
    ((one,), _) = devices_of([odd], Terms(operating_mode="partition", mixed=True))
    assert one.resource == "amd.com/gpu"


def test_without_a_scheduler_gpus_and_partitions_go_whole() -> None:
    devices, problems = devices_of([*cpx(2), gpu(OTHER)], Terms(whole=True, split_count=5))
    assert problems == ()
    assert [one.slots for one in devices] == [(f"{BDF}-0#0",), (f"{BDF}-1#0",), (f"{OTHER}#0",)]


@pytest.mark.parametrize("name", [BDF, "card0"])
def test_an_excluded_gpu_is_not_offered(name: str) -> None:
    devices, problems = devices_of([gpu(), gpu(OTHER)], Terms(exclude=frozenset({name})))
    assert [one.gpu.bdf for one in devices] == [OTHER]
    assert problems == ()


def test_scaled_memory_is_registered_in_whole_mib() -> None:
    ((one,), _) = devices_of([gpu()], Terms(memory_scaling=1.5))
    assert (one.mib, one.scaling) == (294432, 1.5)
    ((one,), _) = devices_of([gpu(vram_bytes=3 * MIB)], Terms(memory_scaling=1.25))
    assert one.mib == 3
    ((one,), _) = devices_of([gpu()], Terms(memory_scaling=1.5, whole=True))
    assert one.mib == 196288


def test_a_gpu_in_another_partition_mode_is_offered_and_reported_once() -> None:
    terms = Terms(operating_mode="partition", compute_partition="dpx")
    devices, problems = devices_of([*cpx(), gpu(OTHER)], terms)
    assert len(devices) == 9
    (problem,) = problems
    assert "expected compute partition mode dpx, found cpx: drain the node" in problem


def test_shares_overlap_across_partition_modes() -> None:
    first, second = cpx(2)
    assert overlaps(Share(BDF, None, partition=0), first)
    assert not overlaps(Share(BDF, None, partition=0), second)
    assert overlaps(Share(BDF, None), second)
    assert overlaps(Share(BDF, None, partition=0), gpu())
    assert not overlaps(Share(OTHER, None), first)
    assert share_key(Share(BDF, None, partition=3)) == f"{BDF}-3"


def test_a_mode_that_a_gpu_cannot_be_put_in_is_not_recommended() -> None:
    terms = Terms(operating_mode="partition", compute_partition="qpx")
    some = gpu(compute_partition="spx", compute_partitions=("spx", "dpx", "cpx"))
    _, (problem,) = devices_of([some], terms)
    assert problem.endswith("found spx: it can be put in spx, dpx, cpx alone")
    for can in ((), ("spx", "qpx")):
        some = gpu(compute_partition="spx", compute_partitions=can)
        _, (problem,) = devices_of([some], terms)
        assert problem.endswith("drain the node, then amd-smi set --compute-partition QPX")
