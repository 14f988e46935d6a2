# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deviceplugin.checkpoint import Checkpoint
from enforcer.slices import CheckpointError, read_checkpoint

from .given import slice_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slices.json"


def test_a_slice_is_on_disk_when_it_is_given(path: Path) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    checkpoint.add(slice_of("b"))
    assert read_checkpoint(path)[0] == [slice_of("a"), slice_of("b")]
    assert Checkpoint(path).slices == (slice_of("a"), slice_of("b"))


def test_a_container_has_one_slice(path: Path) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    checkpoint.add(slice_of("a", device_ids=("x#1",)))
    assert checkpoint.slices == (slice_of("a", device_ids=("x#1",)),)


def test_a_pods_slices_go_together(path: Path) -> None:
    checkpoint = Checkpoint(path)
    for item in (slice_of("a"), slice_of("b"), slice_of("a", name="other")):
        checkpoint.add(item)
    assert checkpoint.remove_pod("uid-pod") == [slice_of("a"), slice_of("b")]
    assert read_checkpoint(path)[0] == [slice_of("a", name="other")]
    assert checkpoint.remove_pod("uid-pod") == []


def test_a_slice_that_cannot_be_written_is_not_given(path: Path) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    path.with_name("slices.json.new").mkdir()
    with pytest.raises(OSError, match=r"slices.json.new"):
        checkpoint.add(slice_of("b"))
    with pytest.raises(OSError, match=r"slices.json.new"):
        checkpoint.remove_pod("uid-pod")
    assert checkpoint.slices == (slice_of("a"),)
    assert read_checkpoint(path)[0] == [slice_of("a")]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": 2, "slices": []}', b'{"schema": 0}', b"\xff\xfe", b"null"],
)
def test_garbage_is_kept_aside_and_the_start_goes_on(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    checkpoint = Checkpoint(path)
    assert checkpoint.slices == ()
    (aside,) = path.parent.glob("slices.json.bad-*")
    assert aside.read_bytes() == content
    checkpoint.add(slice_of())
    assert Checkpoint(path).slices == (slice_of(),)


def test_a_bad_entry_costs_only_itself_and_the_file_is_kept(path: Path) -> None:
    Checkpoint(path).add(slice_of("good"))
    document = json.loads(path.read_text())
    document["slices"].insert(0, {"pod_uid": 7})
    path.write_text(json.dumps(document))
    checkpoint = Checkpoint(path)
    assert checkpoint.slices == (slice_of("good"),)
    (aside,) = path.parent.glob("slices.json.bad-*")
    assert json.loads(aside.read_text()) == document


def test_a_file_that_cannot_be_read_is_not_replaced(path: Path) -> None:
    path.mkdir()
    with pytest.raises(CheckpointError, match="cannot read"):
        Checkpoint(path)
    assert path.is_dir()


def test_a_write_that_was_torn_leaves_the_old_slices(path: Path) -> None:
    Checkpoint(path).add(slice_of())
    path.with_name("slices.json.new").write_text('{"schema": 1, "sli')
    checkpoint = Checkpoint(path)
    assert checkpoint.slices == (slice_of(),)
    checkpoint.add(slice_of("b"))
    assert len(Checkpoint(path).slices) == 2
