# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.testbed import cpio

BUSYBOX = shutil.which("busybox")


@pytest.mark.skipif(BUSYBOX is None, reason="needs busybox (package busybox-static)")
def test_another_cpio_unpacks_what_was_packed(tmp_path: Path) -> None:
    members = [
        cpio.directory("etc"),
        cpio.file("etc/odd", b"12345", 0o600),
        cpio.file("etc/run", b"#!", 0o755),
        cpio.file("empty", b""),
        cpio.symlink("link", "etc/odd"),
    ]
    assert BUSYBOX is not None
    subprocess.run([BUSYBOX, "cpio", "-i"], input=cpio.archive(members), cwd=tmp_path, check=True)
    assert (tmp_path / "etc/odd").read_bytes() == b"12345"
    assert (tmp_path / "etc/odd").stat().st_mode & 0o777 == 0o600
    assert os.access(tmp_path / "etc/run", os.X_OK)
    assert (tmp_path / "link").readlink() == Path("etc/odd")
    assert (tmp_path / "empty").read_bytes() == b""


def test_archives_can_stand_one_behind_the_other() -> None:
    one = cpio.archive([cpio.file("a", b"1")])
    assert len(one) % 4 == 0
    assert one.startswith(b"070701")


def test_the_same_members_give_the_same_bytes() -> None:
    members = [cpio.directory("d"), cpio.file("d/f", b"x")]
    assert cpio.archive(members) == cpio.archive(members)
