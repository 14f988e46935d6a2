# SPDX-License-Identifier: Apache-2.0
"""Whoever builds the image of a commit has the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def _build(folder: Path, umask: int, flavour: list[str]) -> dict[str, str]:
    """Clone the commit below ``folder``, build with a cache of its own; the files' digests."""
    clone, out = folder / "tree", folder / "out"
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", PROJECT, clone], umask=umask, check=True
    )
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"},
        "RINGFENCE_CACHE": str(folder / "cache"),
        "TZ": f"Etc/GMT+{umask % 12}",
    }
    subprocess.run(
        [sys.executable, "-m", "image", f"--out={out}", *flavour],
        cwd=clone,
        env=environment,
        umask=umask,
        check=True,
    )
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flavour", [[], ["--debug"]], ids=["plain", "debug"])
def test_built_twice_it_is_the_same_byte_for_byte(tmp_path: Path, flavour: list[str]) -> None:
    one = _build(tmp_path / "one", 0o022, flavour)
    other = _build(tmp_path / "elsewhere", 0o077, flavour)
    assert sorted(path.rpartition(".")[2] for path in one) == ["json", "tar"]
    assert one == other
    # Over a gigabyte, of which there is nothing to see any more.
    shutil.rmtree(tmp_path)
