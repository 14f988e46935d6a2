# SPDX-License-Identifier: Apache-2.0
import errno
import json
import math
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.decode import pack_limit
from enforcer.limits import cu_masks, limits
from enforcer.model import Container, ContainerKind, PodCgroup, Share, Slice
from enforcer.slices import (
    Checkpoint,
    CheckpointError,
    decode,
    encode,
    hook_directory,
    read_checkpoint,
    write_checkpoint,
)


def make(container: str = "train", **fields: Any) -> Slice:
    return Slice(
        **{
            "pod_uid": "0f3c1d52-6a0b-4e5a-9d0e-2b1a4c7d8e9f",
            "namespace": "default",
            "pod": "p",
            "container": container,
            "kind": ContainerKind.APP,
            "device_ids": ("0000:03:00.0#0",),
            "shares": (Share("0000:03:00.0", 4 << 30, "0-75"),),
            "created": "2026-11-29T13:00:00Z",
            **fields,
        }
    )


def _nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


TEXT = st.text(min_size=1, max_size=20)
NAME = st.from_regex(r"[0-9a-z][0-9a-z.-]{0,19}", fullmatch=True)
SHARES = st.builds(
    Share,
    bdf=st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True),
    vram_bytes=st.none() | st.integers(1, 1 << 50),
    cus=st.none() | st.from_regex(r"[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3})?", fullmatch=True),
    partition=st.none() | st.integers(0, 63),
)
SLICES = st.builds(
    Slice,
    pod_uid=st.from_regex(r"[0-9a-f]{8}-[0-9a-f]{4}", fullmatch=True),
    namespace=NAME,
    pod=NAME,
    container=NAME,
    kind=st.sampled_from(ContainerKind),
    device_ids=st.lists(TEXT, max_size=3).map(tuple),
    shares=st.lists(SHARES, min_size=1, max_size=3).map(tuple),
    created=st.sampled_from(["2026-11-29T13:00:00Z", "2026-11-29T13:00:00.25+00:00"]),
    oversubscribe=st.booleans(),
    hook=st.none() | st.booleans(),
    priority=st.sampled_from([None, 0, 1]),
)


@given(st.lists(SLICES, max_size=5, unique_by=lambda one: one.key))
def test_every_checkpoint_comes_back(slices: list[Slice]) -> None:
    assert decode(encode(slices)) == (slices, [])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_json_is_a_checkpoint_or_an_error(document: object) -> None:
    for text in (
        json.dumps(document),
        json.dumps({"schema": 1, "slices": document}),
        json.dumps({"schema": 1, "slices": [document]}),
        json.dumps(
            {
                "schema": 1,
                "slices": [{**json.loads(encode([make()]))["slices"][0], "shares": document}],
            }
        ),
    ):
        with suppress(CheckpointError):
            decode(text)


FIELDS = json.loads(encode([make()]))["slices"][0]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(
        ["9" * 5000, "0-99999", "9-0", "2026-13-01T00:00:00Z", "0000:03:1f.7", "app", 1 << 50]
    ),
    lambda one: (
        st.lists(one, max_size=2)
        | st.dictionaries(st.sampled_from(["bdf", "vram_bytes", "cus", "partition"]), one)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), JUNK, max_size=3))
def test_what_is_read_is_of_use_to_everybody(junk: dict[str, object]) -> None:
    text = json.dumps({"schema": 1, "slices": [{**FIELDS, **junk}]})
    slices, problems = decode(text)
    assert len(slices) + len(problems) == 1
    assert decode(encode(slices)) == (slices, [])
    for one in slices:
        hook_directory(Path("/run"), *one.key)
        assert (one.namespace + one.pod).isascii()
        assert datetime.now(UTC) - datetime.fromisoformat(one.created)
        pod = PodCgroup(one.pod_uid, "pod", 7)
        container = Container("c" * 64, pod, "pod/c", 8, one.container)
        cu_masks([one], [container])
        for limit in limits([one] * 50, [pod], [container]):
            pack_limit(limit.vram_bytes)


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("pod_uid", "../../etc", "pod_uid"),
        ("pod_uid", None, "pod_uid"),
        ("namespace", "", "namespace"),
        ("namespace", "\ud800", "namespace"),
        ("pod", "two\nlines", "pod"),
        ("pod", _nested(900), "pod"),
        ("container", "../up", "container"),
        ("container", 7, "container"),
        ("kind", "ephemeral", "kind"),
        ("device_ids", "x", "device_ids"),
        ("device_ids", [""], "device_ids[0]"),
        ("shares", [], "shares"),
        ("shares", [[]], "shares[0]"),
        ("shares", [{"bdf": "0000:03:00.0"}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": 0}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": -4}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": True}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": 1.5}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": 1 << 62}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": math.inf}], "shares[0].vram_bytes"),
        ("shares", [{"bdf": "03:00.0", "vram_bytes": 1}], "shares[0].bdf"),
        ("shares", [{"bdf": "0000:03:00.0", "vram_bytes": 1, "cus": "all"}], "shares[0].cus"),
        (
            "shares",
            [{"bdf": "0000:03:00.0", "vram_bytes": None, "partition": 64}],
            "shares[0].partition",
        ),
        ("oversubscribe", "yes", "oversubscribe"),
        ("hook", 1, "hook"),
        ("priority", 2, "priority"),
        ("priority", True, "priority"),
        ("priority", "0", "priority"),
        ("created", "yesterday", "created"),
        ("created", "2026-13-01T00:00:00Z", "created"),
        ("created", "2026-02-30T00:00:00Z", "created"),
        ("created", "0000-01-01T00:00:00Z", "created"),
        ("created", "2026-01-01T24:61:00Z", "created"),
        ("created", "\u0662026-01-01T00:00:00Z", "created"),
    ],
)
def test_a_bad_entry_costs_only_itself_and_its_field_is_named(
    where: int, field: str, value: object, path: str
) -> None:
    good = [make("a"), make("b"), make("c")]
    document = json.loads(encode(good))
    document["slices"][where][field] = value
    slices, problems = decode(json.dumps(document))
    assert slices == [one for index, one in enumerate(good) if index != where]
    assert len(problems) == 1
    assert len(problems[0]) < 300
    assert problems[0].startswith(f"slices[{where}].{path}: expected ") or (
        path.endswith("bdf") and f"slices[{where}].{path}: " in problems[0]
    )


def test_of_two_entries_for_one_container_the_first_counts() -> None:
    first, second = make(), make(shares=(Share("0000:03:00.0", None),))
    slices, problems = decode(encode([first, second]))
    assert slices == [first]
    assert "'train'" in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 2, "slices": []}',
        '{"schema": 1}',
        '{"slices": []}',
        '{"schema": 1, "slices": {}}',
        "[" * 100000,
    ],
)
def test_garbage_and_other_schemas_are_no_checkpoint(text: str) -> None:
    with pytest.raises(CheckpointError):
        decode(text)


def test_a_missing_file_is_an_empty_checkpoint(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "slices.json") == ([], [])


def test_a_file_that_is_no_text_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=str(path)):
        read_checkpoint(path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    write_checkpoint(path, [make()])
    assert read_checkpoint(path) == ([make()], [])
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["slices.json"]


def test_a_torn_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    write_checkpoint(path, [make()])
    path.with_name("slices.json.new").write_text('{"schema": 1, "sli')
    assert read_checkpoint(path) == ([make()], [])
    write_checkpoint(path, [])
    assert read_checkpoint(path) == ([], [])


def test_a_full_disk_leaves_the_old_file() -> None:
    # /dev/full takes no byte; the new file's name is made to lead there.
    directory = Path(f"/dev/shm/ringfence-{os.getpid()}")
    directory.mkdir()
    path = directory / "slices.json"
    new = directory / "slices.json.new"
    try:
        write_checkpoint(path, [make()])
        new.symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            write_checkpoint(path, [])
        assert read_checkpoint(path) == ([make()], [])
    finally:
        new.unlink(missing_ok=True)
        path.unlink()
        directory.rmdir()


def test_a_reader_keeps_the_last_good_state_through_garbage(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    checkpoint = Checkpoint(path)
    assert checkpoint.read() == ([], [])
    write_checkpoint(path, [make()])
    assert checkpoint.read() == ([make()], [])
    path.write_text("{")
    for _ in range(2):
        slices, problems = checkpoint.read()
        assert slices == [make()]
        assert "keeping the slices known before" in problems[0]
    write_checkpoint(path, [make(), make("b")])
    assert checkpoint.read() == ([make(), make("b")], [])


def test_a_reader_keeps_the_last_good_state_when_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    checkpoint = Checkpoint(path)
    write_checkpoint(path, [make()])
    checkpoint.read()
    path.unlink()
    slices, problems = checkpoint.read()
    assert slices == [make()]
    assert "gone" in problems[0]


def test_an_emptied_checkpoint_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    checkpoint = Checkpoint(path)
    write_checkpoint(path, [make()])
    checkpoint.read()
    write_checkpoint(path, [])
    assert checkpoint.read() == ([], [])


@pytest.mark.parametrize("how", ["stat", "read_text"])
def test_a_file_that_cannot_be_read_is_not_one_without_slices_and_is_read_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / "slices.json"
    write_checkpoint(path, [make()])
    reader = Checkpoint(path)

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Path, how, broken)
        for _ in range(2):
            slices, problems = reader.read()
            assert slices == []
            assert problems == [
                f"{path}: cannot read: [Errno 5] Input/output error; "
                "keeping the slices known before"
            ]
    assert reader.read() == ([make()], [])
