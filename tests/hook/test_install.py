# SPDX-License-Identifier: Apache-2.0
"""An update of the hook beside running processes: each keeps its version, both keep one ledger."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from audit_hook.install import CURRENT, install

from .container import PROGRAMS, Container

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def node(built: Path, tmp_path: Path) -> Path:
    """A node whose containers get the hook's current version, as a runtime mounts it."""
    root = tmp_path / "node"
    root.mkdir()
    install(built / "hook", root / "versions")
    (root / "hook").symlink_to(root / "versions" / CURRENT)
    for name in ("thunk", "programs"):
        (root / name).symlink_to(built / name)
    for directory in (root, *tmp_path.parents[:2], tmp_path):
        directory.chmod(0o755)
    return root


def test_running_processes_keep_their_version_and_share_the_books_with_new_ones(
    built: Path, node: Path, tmp_path: Path
) -> None:
    container = Container(tmp_path / "container", node)
    container.give_mib(2048)
    orders = ["malloc=1500", "say=up", "wait", "free", "malloc=1000", "malloc=1500"]
    old = container.start(PROGRAMS / "hip", *orders, stdin=-1)
    assert old.stdout is not None
    assert [old.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    newer = shutil.copytree(built / "hook", tmp_path / "newer")
    for path in newer.iterdir():
        path.write_bytes(path.read_bytes() + b"\0")
    before = (node / "versions" / CURRENT).resolve()
    assert install(newer, node / "versions") != before
    script = "cat /usr/local/ringfence/libringfence-hsa.so | cksum"
    sizes = int(container.run("sh", "-c", script).lines[0].split()[1])
    assert sizes == (before / "libringfence-hsa.so").stat().st_size + 1
    assert container.hip("malloc=1500", "malloc=400").lines == ["malloc 2", "malloc 0"]
    out, err = old.communicate("\n", timeout=30)
    assert out.splitlines() == ["free 0", "malloc 0", "malloc 2"]
    assert "refused" in err
