# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from image.layer import write_layer

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = 1_700_000_000


def tree(root: Path, names: list[str]) -> Path:
    """The same tree, made in the order of ``names``."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o755 if "bin" in name else 0o644)
    (root / "lib").symlink_to("usr/lib")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for path in root.rglob("*/"):
        if not path.is_symlink() and path.name != "tmp":
            path.chmod(0o755)
    return root


NAMES = ["usr/bin/program", "usr/lib/b.so", "usr/lib/a.so", "etc/passwd"]


def test_order_of_making_and_times_do_not_change_a_byte(tmp_path: Path) -> None:
    first = tree(tmp_path / "first", NAMES)
    second = tree(tmp_path / "second", NAMES[::-1])
    os.utime(second / "etc/passwd", (EPOCH + 50, EPOCH + 50))
    layers = [
        write_layer(root, tmp_path / f"{root.name}.tar.gz", EPOCH) for root in (first, second)
    ]
    assert layers[0].digest == layers[1].digest
    assert layers[0].path.read_bytes() == layers[1].path.read_bytes()


def test_the_digests_are_of_the_file_and_of_the_tar_within(tmp_path: Path) -> None:
    layer = write_layer(tree(tmp_path / "root", NAMES), tmp_path / "layer", EPOCH)
    data = layer.path.read_bytes()
    assert layer.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert layer.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}"
    assert layer.size == len(data)


def test_everything_is_roots_and_keeps_its_mode_and_its_kind(tmp_path: Path) -> None:
    layer = write_layer(tree(tmp_path / "root", NAMES), tmp_path / "layer", EPOCH)
    with tarfile.open(layer.path) as archive:
        entries = {entry.name: entry for entry in archive}
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert max(entry.mtime for entry in entries.values()) <= EPOCH
    assert entries["usr/bin/program"].mode == 0o755
    assert entries["lib"].linkname == "usr/lib"
    assert (entries["tmp"].isdir(), entries["tmp"].mode) == (True, 0o1777)
    names = list(entries)
    assert names == sorted(names)
    assert set(names) == {*NAMES, "usr", "usr/bin", "usr/lib", "etc", "lib", "tmp"}


def test_what_is_left_out_takes_directories_that_held_nothing_else_with_it(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", NAMES)
    layer = write_layer(root, tmp_path / "layer", EPOCH, lambda path: not path.startswith("etc/"))
    with tarfile.open(layer.path) as archive:
        assert archive.getnames() == ["etc", "etc/passwd"]


def test_a_pipe_is_refused_by_name(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", NAMES)
    os.mkfifo(root / "etc/pipe")
    with pytest.raises(ValueError, match=r"etc/pipe: expected a file, a directory or a link"):
        write_layer(root, tmp_path / "layer", EPOCH)
