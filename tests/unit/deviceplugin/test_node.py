# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from deviceplugin.node import capacity_of
from deviceplugin.pod import parse_node

from .given import OTHER, device


def test_capacity_is_that_of_healthy_gpus() -> None:
    assert capacity_of([device(), device(OTHER, healthy=False)]) == {
        "amd.com/gpumem": "196288",
        "amd.com/gpucores": "304",
    }
    assert capacity_of([]) == {"amd.com/gpumem": "0", "amd.com/gpucores": "0"}


def test_a_nodes_capacity_is_read_and_others_are_not() -> None:
    node = parse_node(
        {
            "metadata": {"name": "n", "resourceVersion": "1"},
            "status": {
                "capacity": {"amd.com/gpumem": "5", "cpu": "8"},
                "allocatable": {"amd.com/gpumem": "5", "amd.com/gpucores": 7},
            },
        }
    )
    assert node.capacity == {"amd.com/gpumem": ("5", "5"), "amd.com/gpucores": ("", "7")}
    assert parse_node({"metadata": {"name": "n", "resourceVersion": "1"}}).capacity == {}
