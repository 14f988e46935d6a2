# SPDX-License-Identifier: Apache-2.0
"""The cluster of this folder's tests: one for all of them, as its start takes a while."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.kubelet.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster on an emulated and maybe busy machine takes its time."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def whole_cluster(
    tmp_path_factory: pytest.TempPathFactory, logs: Path, client_binary: Path
) -> Iterator[Cluster]:
    programs = Path(os.environ["RINGFENCE_KUBERNETES"])
    with Cluster(programs, tmp_path_factory.mktemp("cluster"), logs, client_binary) as made:
        yield made


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, without a pod before and after."""
    yield whole_cluster
    whole_cluster.remove_all()
