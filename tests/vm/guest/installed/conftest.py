# SPDX-License-Identifier: Apache-2.0
"""One installed node for all tests of this folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.installed.cluster import InstalledCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A pod on an emulated and maybe busy machine takes its time."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def cluster(logs: Path, client_binary: Path) -> Iterator[InstalledCluster]:
    folder = Path(os.environ["RINGFENCE_INSTALLED"])
    with InstalledCluster(folder, logs, client_binary) as made:
        yield made
    made.enforcer.unload()
