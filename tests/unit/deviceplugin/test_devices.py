# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from deviceplugin.devices import (
    bdf_of_slot,
    devices_of,
    find_device,
    product_of,
    register_value,
)
from enforcer.model import MIB

from .given import BDF, DEVICES, ID, OTHER, device, gpu


def test_each_gpu_has_as_many_slots_as_may_share_it() -> None:
    assert len(device().slots) == 10
    assert device().slots[3] == f"{BDF}#3"
    assert len(device(gfx_version=120001).slots) == 2
    ((one,), _) = devices_of([gpu()], 4)
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
        ([gpu(), gpu(render=130), gpu(OTHER)], [OTHER], "it is split into 2 partitions"),
    ],
)
def test_a_gpu_that_cannot_be_offered_costs_only_itself(
    gpus: list[object], offered: list[str], complaint: str
) -> None:
    devices, problems = devices_of(gpus, 0)  # type: ignore[arg-type]
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
    assert bdf_of_slot(f"{BDF}#12") == BDF


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
