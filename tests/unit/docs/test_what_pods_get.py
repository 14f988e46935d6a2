# SPDX-License-Identifier: Apache-2.0
"""The page on what pods get names everything that they do get."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from deviceplugin import codec, events
from deviceplugin.allocate import answer
from deviceplugin.devices import register_value
from deviceplugin.hook import Hook
from deviceplugin.node import GROUPS
from deviceplugin.terms import COMPUTE_PARTITION, OPERATING_MODE
from tests.unit.deviceplugin.given import DEVICES, slice_of

PAGE = (Path(__file__).resolve().parents[3] / "docs/what-pods-get.md").read_text()


def test_every_variable_of_an_answer_is_on_the_page() -> None:
    item = replace(slice_of(), oversubscribe=True, hook=True)
    envs = answer(item, DEVICES, Hook(Path("/hook"), 3), Path("/run")).envs
    assert len(envs) >= 10
    for name in envs:
        assert f"`{name.removesuffix('_0')}" in PAGE, name


def test_every_key_of_the_register_annotation_is_on_the_page() -> None:
    gpu = replace(
        DEVICES[0].gpu,
        card=7,
        numa_node=1,
        xgmi_peers=(DEVICES[1].gpu.bdf,),
        partition=3,
        memory_partition="nps4",
    )
    part = replace(DEVICES[0], gpu=gpu, mode="cpx")
    entry = json.loads(register_value([part, DEVICES[1]]))[0]
    keys = {*entry, *entry["custominfo"]}
    assert keys >= {"index", "numa", "mode", "health", "xgmiPeers", "partitionProfile"}
    assert [key for key in keys if f"`{key}`" not in PAGE] == []


def test_every_reason_of_an_event_and_every_annotation_is_on_the_page() -> None:
    reasons = {value for value in vars(events).values() if str(value).startswith("AMDGPU")}
    assert len(reasons) == 7
    annotations = {value for value in vars(codec).values() if str(value).startswith("hami.io/")}
    annotations -= {codec.ALLOCATED, codec.BIND_TIME}
    names = {*reasons, *annotations, GROUPS, OPERATING_MODE, COMPUTE_PARTITION}
    assert [name for name in names if f"`{name}" not in PAGE] == []
