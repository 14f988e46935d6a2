# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from deviceplugin.cdi import FILE, Cdi, Groups, cdi_name, groups_of, spec_of
from deviceplugin.devices import GONE

from .given import DEVICES, OTHER, device

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_device_is_its_nodes_and_all_share_kfd() -> None:
    assert json.loads(spec_of(DEVICES)) == {
        "cdiVersion": "0.6.0",
        "kind": "amd.com/gpu",
        "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]},
        "devices": [
            {
                "name": f"card{number}",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": f"/dev/dri/card{number}"},
                        {"path": f"/dev/dri/renderD{128 + number}"},
                    ]
                },
            }
            for number in (0, 1)
        ],
    }
    assert cdi_name(DEVICES[1]) == "amd.com/gpu=card1"


def test_a_gpu_without_a_card_is_named_by_its_render_node() -> None:
    one = device(card=None)
    assert cdi_name(one) == "amd.com/gpu=renderD128"
    assert json.loads(spec_of([one]))["devices"][0]["name"] == "renderD128"


def test_groups_ask_for_the_version_that_has_them() -> None:
    spec = json.loads(spec_of(DEVICES, (44, 105)))
    assert spec["cdiVersion"] == "0.7.0"
    assert spec["containerEdits"]["additionalGids"] == [44, 105]


def test_a_gpu_that_is_gone_is_left_out() -> None:
    gone = replace(device(OTHER), healthy=False, why=GONE)
    ill = replace(device(OTHER), healthy=False, why="x")
    assert len(json.loads(spec_of([device(), gone]))["devices"]) == 1
    assert len(json.loads(spec_of([device(), ill]))["devices"]) == 2


def test_the_groups_are_those_of_the_nodes_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    for name, group in (("kfd", 105), ("dri/card0", 44), ("dri/renderD128", 105), ("dri/card1", 0)):
        (tmp_path / name).touch()
        os.chown(tmp_path / name, -1, group)
    assert groups_of(tmp_path, DEVICES) == (44, 105)
    assert groups_of(tmp_path / "none", DEVICES) == ()


def test_groups_are_read_when_the_devices_change(tmp_path: Path) -> None:
    devices = [DEVICES]
    groups = Groups(tmp_path, lambda: devices[0])
    assert groups.read() == ()
    (tmp_path / "kfd").touch()
    os.chown(tmp_path / "kfd", -1, 105)
    assert groups.read() == (), "not at every look"
    devices[0] = (device(),)
    assert groups.read() == (105,)


def test_the_spec_is_written_once_and_again_when_it_changes_or_goes(tmp_path: Path) -> None:
    devices = [(device(),)]
    groups = [(44,)]
    cdi = Cdi(tmp_path / "cdi", lambda: devices[0], lambda: groups[0])
    path = tmp_path / "cdi" / FILE
    assert cdi.ready()
    assert path.stat().st_mode & 0o777 == 0o644
    first = path.stat().st_ino
    assert cdi.ready()
    assert path.stat().st_ino == first
    devices[0] = (device(), device(OTHER))
    assert cdi.ready()
    assert len(json.loads(path.read_text())["devices"]) == 2
    groups[0] = (44, 105)
    assert cdi.ready()
    assert json.loads(path.read_text())["containerEdits"]["additionalGids"] == [44, 105]
    path.unlink()
    assert cdi.ready()
    assert [one.name for one in path.parent.iterdir()] == [FILE]


def test_where_it_cannot_be_written_it_is_not_ready_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cdi = Cdi(tmp_path / "file", lambda: (device(),))
    assert not cdi.ready()
    assert not cdi.ready()
    assert caplog.text.count("device nodes are given instead") == 1
    (tmp_path / "file").unlink()
    assert cdi.ready()


def test_a_directory_in_the_place_of_the_spec_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / FILE / "x").mkdir(parents=True)
    assert not Cdi(tmp_path, lambda: (device(),)).ready()
    assert [one.name for one in tmp_path.iterdir()] == [FILE]
