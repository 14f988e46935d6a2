# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocate import Answer, Mount
from deviceplugin.record import FILE, RecordError, recorded
from deviceplugin.server import container_response

from .given import DEVICES

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = Answer(
    {"LD_AUDIT": "/x", "HSA_CU_MASK": "0:0-3"},
    ("/dev/kfd", "/dev/dri/renderD128"),
    mounts=(Mount("/a", "/b"), Mount("/c", "/d", read_only=False)),
)


def entry(uid: str, container: str, resource: str, given: Answer = ANSWER) -> dict[str, object]:
    message = container_response(given, by_name=False).SerializeToString()
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": {"-1": ["a#0"]},
        "AllocResp": base64.b64encode(message).decode(),
    }


def write(directory: Path, *entries: dict[str, object]) -> None:
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {"amd.com/gpu": ["a#0"]}}
    (directory / FILE).write_text(json.dumps({"Data": data, "Checksum": 3273824}))


def test_what_a_container_was_answered_is_read_back(tmp_path: Path) -> None:
    other = Answer({"A": "1"}, ("/dev/x",))
    write(
        tmp_path,
        entry("uid", "side", "amd.com/gpu", other),
        entry("uid", "main", "vendor/nic", other),
        entry("uid", "main", "amd.com/gpu"),
        entry("uid-2", "main", "amd.com/gpu", other),
    )
    assert recorded(tmp_path, "uid", "main") == [ANSWER]
    assert recorded(tmp_path, "uid", "side") == [other]
    assert recorded(tmp_path, "uid", "nobody") == []


def test_cdi_names_are_read_back(tmp_path: Path) -> None:
    given = replace(ANSWER, gpus=DEVICES)
    message = container_response(given, by_name=True).SerializeToString()
    by_name = {"AllocResp": base64.b64encode(message).decode()}
    write(tmp_path, entry("uid", "main", "amd.com/gpu") | by_name)
    names = ("amd.com/gpu=card0", "amd.com/gpu=card1")
    assert recorded(tmp_path, "uid", "main") == [replace(ANSWER, devices=(), names=names)]


def test_a_node_on_which_nothing_was_allocated_has_no_entries(tmp_path: Path) -> None:
    write(tmp_path)
    assert recorded(tmp_path, "uid", "main") == []


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"{tmp_path / FILE}: cannot read: No such file"):
        recorded(tmp_path, "uid", "main")


@pytest.mark.parametrize(
    "change",
    [
        {"AllocResp": "%"},
        {"AllocResp": None},
        {"AllocResp": base64.b64encode(b"\xff").decode()},
        {"PodUID": ...},
    ],
)
def test_an_entry_of_another_form_is_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    changed = {**entry("uid", "main", "amd.com/gpu"), **change}
    write(tmp_path, {name: value for name, value in changed.items() if value is not ...})
    with pytest.raises(RecordError, match="expected kubelet's record, found"):
        recorded(tmp_path, "uid", "main")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"Data": 1}', '{"Data": {}}', "[" * 100_000])
def test_a_file_of_another_form_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RecordError, match=f"{tmp_path / FILE}: expected kubelet's record"):
        recorded(tmp_path, "uid", "main")


@given(st.binary())
def test_any_bytes_are_a_record_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("record")
    (path / FILE).write_bytes(content)
    with suppress(RecordError):
        recorded(path, "uid", "main")
