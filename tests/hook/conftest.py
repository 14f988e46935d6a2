# SPDX-License-Identifier: Apache-2.0
"""One build for all tests of this folder, and a container for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.testbed.cache import StepError

from .build import NotHere, build, build_thunk
from .container import WITHOUT_IMAGES, Container
from .debian import TRIXIE_ROCM, unpacked

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


@pytest.fixture(scope="session")
def trixie(built: Path) -> Path:
    try:
        rootfs = unpacked("trixie", TRIXIE_ROCM)
    except StepError as error:
        pytest.skip(f"the archive has no Debian 13: {error}")
    build_thunk(built / "thunk-6", headers_of_6=rootfs / "usr" / "include" / "hsakmt")
    return rootfs


@pytest.fixture
def newer(container: Container, trixie: Path) -> Container:
    """A container of Debian 13 with a slice of 2 GiB and 16 CUs."""
    container.rootfs = trixie
    container.thunk = "thunk-6"
    container.give_mib(2048, cus="0-15")
    container.env |= WITHOUT_IMAGES
    return container
