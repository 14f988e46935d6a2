# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deviceplugin.checkpoint
from deviceplugin.checkpoint import Checkpoint
from enforcer.slices import CheckpointError, read_checkpoint

from .given import slice_of


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


def test_slices_are_written_anew_in_their_place(path: Path) -> None:
    checkpoint = Checkpoint(path)
    for name in "abc":
        checkpoint.add(slice_of(name))
    amended = replace(slice_of("a"), hook=True)
    checkpoint.amend([amended, slice_of("gone")])
    assert checkpoint.slices == (amended, slice_of("b"), slice_of("c"))
    assert Checkpoint(path).slices == checkpoint.slices


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


def test_a_full_disk_does_not_keep_a_bad_entry_and_the_start_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpoint(path).add(slice_of("good"))
    document = json.loads(path.read_text())
    document["slices"].append({"pod_uid": 7})
    path.write_text(json.dumps(document))

    def full(_: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    checkpoint = Checkpoint(path)
    assert checkpoint.slices == (slice_of("good"),)
    (problem,) = checkpoint.problems
    assert "could not be kept: [Errno 28]" in problem


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


def test_a_disk_that_hangs_keeps_nobody_longer_than_they_would_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    answers = threading.Event()
    write = deviceplugin.checkpoint.write_document

    def hang(path: Path, text: str) -> None:
        answers.wait(20)
        write(path, text)

    monkeypatch.setattr(deviceplugin.checkpoint, "write_document", hang)
    started = time.monotonic()
    with pytest.raises(OSError, match=r"slices.json: not written after 0.2 s"):
        checkpoint.add(slice_of("b"), 0.2)
    with pytest.raises(OSError, match="not written after"):
        checkpoint.remove_pod("uid-pod", 0.2)
    assert time.monotonic() - started < 10
    assert checkpoint.slices == (slice_of("a"),)
    answers.set()
    checkpoint.add(slice_of("c", name="other"))
    assert read_checkpoint(path)[0] == [slice_of("c", name="other")], "in the order they came"


def test_a_slice_written_just_as_the_patience_ends_is_given(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Future.result

    def late(future: Future[None], timeout: float | None = None) -> None:
        wait(future)
        if timeout is not None:
            raise TimeoutError

    monkeypatch.setattr(Future, "result", late)
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"), 0.2)
    assert checkpoint.slices == (slice_of("a"),)


def test_a_pod_has_the_same_slices_as_long_as_they_are_the_same(path: Path) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    before = checkpoint.of_pod("uid-pod")
    checkpoint.add(slice_of("a", name="other"))
    assert checkpoint.of_pod("uid-pod") is before == (slice_of("a"),)
    checkpoint.add(slice_of("b"))
    assert checkpoint.of_pod("uid-pod") == (slice_of("a"), slice_of("b"))
    checkpoint.remove_pod("uid-pod")
    assert checkpoint.of_pod("uid-pod") == ()


def test_the_file_is_flushed_once_for_each_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpoint(path).add(slice_of("z"))
    flushed: list[Path] = []
    monkeypatch.setattr(deviceplugin.checkpoint, "flush_document", flushed.append)
    checkpoint = Checkpoint(path)
    checkpoint.flush()
    assert flushed == [path], "what a killed predecessor wrote"
    checkpoint.flush()
    checkpoint.add(slice_of("a"))
    assert flushed == [path]
    checkpoint.flush()
    checkpoint.flush()
    assert flushed == [path] * 2


def test_a_flush_that_failed_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError("no space")

    checkpoint = Checkpoint(path)
    checkpoint.flush()
    checkpoint.add(slice_of("a"))
    with monkeypatch.context() as broken:
        broken.setattr(deviceplugin.checkpoint, "flush_document", fail)
        with pytest.raises(OSError, match="no space"):
            checkpoint.flush()
    flushed: list[Path] = []
    monkeypatch.setattr(deviceplugin.checkpoint, "flush_document", flushed.append)
    checkpoint.flush()
    assert flushed == [path]


@pytest.mark.parametrize("torn", [b"", b"\0" * 300, b'{"schema": 1, "slices": [\n{"pod_u'])
def test_what_was_flushed_survives_a_power_cut_that_tears_what_was_not(
    path: Path, torn: bytes
) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    checkpoint.flush()
    checkpoint.add(slice_of("b"))
    checkpoint.add(slice_of("c"))
    path.write_bytes(torn)
    after = Checkpoint(path)
    assert after.slices == (slice_of("a"),)
    assert read_checkpoint(path)[0] == [slice_of("a")], "the enforcer reads it, too"
    (problem,) = after.problems
    assert problem.endswith("going on from " + str(path.with_name("slices.json.flushed")))
    after.add(slice_of("d"))
    after.flush()
    assert Checkpoint(path).slices == (slice_of("a"), slice_of("d"))


def test_a_slice_is_flushed_however_many_come_after_it(path: Path) -> None:
    checkpoint = Checkpoint(path)
    for name in ("a", "b", "c"):
        checkpoint.add(slice_of(name))
        checkpoint.flush()
    checkpoint.add(slice_of("d"))
    path.write_bytes(b"")
    assert Checkpoint(path).slices == (slice_of("a"), slice_of("b"), slice_of("c"))


def test_what_was_flushed_long_ago_does_not_come_back_while_the_file_is_well(path: Path) -> None:
    checkpoint = Checkpoint(path)
    checkpoint.add(slice_of("a"))
    checkpoint.flush()
    checkpoint.remove_pod("uid-pod")
    checkpoint.flush()
    assert Checkpoint(path).slices == ()


def test_a_file_cut_off_anywhere_is_kept_aside_and_the_start_goes_on(path: Path) -> None:
    Checkpoint(path).add(slice_of("a"))
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        checkpoint = Checkpoint(path)
        assert checkpoint.slices == ()
        assert checkpoint.problems != ()
        (aside,) = path.parent.glob("slices.json.bad-*")
        assert aside.read_bytes() == whole[:length]
        aside.unlink()


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_file_with_a_damaged_part_never_stops_the_start(damage: bytes, at: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "slices.json"
        for name in ("a", "b"):
            Checkpoint(path).add(slice_of(name))
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        checkpoint = Checkpoint(path)
        checkpoint.add(slice_of("c"))
        assert slice_of("c") in Checkpoint(path).slices
