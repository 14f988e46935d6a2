# SPDX-License-Identifier: Apache-2.0
"""A pod's way through the device plugin, with kubelet and API server at the other ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB, Share
from tests.contract.conftest import NODE, RESOURCE, eventually
from tests.contract.peers.kubelet import AdmissionError

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

FIRST = "8eff74b5-0000-1000-80ff-74b5801bb564"


def ids(bench: Bench) -> list[str]:
    """The UUIDs of the node's GPUs, as it registered them."""
    eventually(lambda: "hami.io/node-amd-register" in bench.api.node_annotations(NODE))
    value = bench.api.node_annotations(NODE)["hami.io/node-amd-register"]
    return [gpu["id"] for gpu in json.loads(value)]


def test_a_slice_is_given_recorded_and_the_lock_released(bench: Bench) -> None:
    bench.start()
    first, second = ids(bench)
    devices = f"{second},AMD Instinct MI300X,4096,76:;"
    pod = bench.bind("one", devices)

    admitted = bench.admit(pod)["app"]

    assert dict(admitted.response.envs) == {
        "ROCR_VISIBLE_DEVICES": "GPU-1122334455667788",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-75",
        "HIP_DEVICE_MEMORY_LIMIT_0": "4096m",
    }
    assert [device.host_path for device in admitted.response.devices] == [
        "/dev/kfd",
        "/dev/dri/card1",
        "/dev/dri/renderD129",
    ]
    assert {device.permissions for device in admitted.response.devices} == {"rw"}
    # kubelet's own record names the GPU the pod has.
    assert [one.partition("#")[0] for one in admitted.devices_ids] == ["0000:65:00.0"]
    (item,) = bench.slices
    assert (item.namespace, item.pod, item.container) == ("default", "one", "app")
    assert item.pod_uid == pod["metadata"]["uid"]
    assert item.shares == (Share("0000:65:00.0", 4096 * MIB, "0-75"),)
    assert item.device_ids == tuple(admitted.devices_ids)
    bench.wait_phase("one", "success")
    bench.wait_unlocked()
    assert bench.annotation("one", "amd-devices-to-allocate") == ";"
    assert bench.annotation("one", "amd-devices-allocated") == devices
    assert bench.annotation("one", "amd-cu-allocated") == json.dumps(
        {second: "0-75"}, separators=(",", ":")
    )
    assert first != second
    assert len(bench.kubelet.wait_devices(RESOURCE)) == 20


def test_an_unusable_annotation_gives_nothing_and_frees_the_node(bench: Bench) -> None:
    bench.start()
    pod = bench.bind("bad", "no-such-gpu,AMD Instinct MI300X,4096,76:;")

    with pytest.raises(AdmissionError, match=r"default/bad.*no-such-gpu"):
        bench.admit(pod)

    assert bench.slices == []
    bench.wait_phase("bad", "failed")
    bench.wait_unlocked()
