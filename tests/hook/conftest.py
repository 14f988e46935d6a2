# SPDX-License-Identifier: Apache-2.0
"""One build for all tests of this folder, and a container for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .build import NotHere, build
from .container import Container

if TYPE_CHECKING:
    from pathlib import Path


def _open_to_all(path: Path) -> None:
    """Processes of other users are tested too, and pytest's directories are the user's alone."""
    for directory in (path, *path.parents[:2]):
        directory.chmod(0o755)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hook/, thunk/ and programs/."""
    root = tmp_path_factory.mktemp("hook")
    _open_to_all(root)
    try:
        return build(root)
    except NotHere as missing:
        pytest.skip(str(missing))


@pytest.fixture
def container(built: Path, tmp_path: Path) -> Container:
    """A container without a slice."""
    _open_to_all(tmp_path)
    return Container(tmp_path / "container", built)
