# SPDX-License-Identifier: Apache-2.0
"""The imported image begun by containerd's own client, with the rights and mounts of the chart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB
from tests.vm.guest.installed.containerd import ContainerdCluster
from tests.vm.guest.services import gate_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu


@pytest.fixture
def node(
    logs: Path, client_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ContainerdCluster]:
    folder = Path(os.environ["RINGFENCE_INSTALLED"])
    root = tmp_path_factory.mktemp("containerd")
    with ContainerdCluster(folder, logs, client_binary, root) as made:
        yield made
    made.enforcer.unload()


def test_a_slice_is_held_by_what_containerd_has_started(node: ContainerdCluster, gpu: Gpu) -> None:
    one = node.begin("held", gpu=0, mib=96, cus=16)
    assert gate_limit(one.pod.cgroup_id, gpu.bdf) == 96 * MIB
    one.client.open(gpu)
    assert int(one.client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
    assert one.client.refused("gem-create 4096 vram") == "ENOMEM"
    one.container.kill()
    assert node.pod.terminate() == {"device-plugin": 0, "enforcer": 0}
