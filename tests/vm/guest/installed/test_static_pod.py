# SPDX-License-Identifier: Apache-2.0
"""The image as a pod that a real kubelet runs, and a pod of the API server that it serves."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB
from tests.vm.guest.installed.static import StaticCluster
from tests.vm.guest.kubelet.cluster import Talk, is_held, leaves_nothing
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu

PINS = Path("/sys/fs/bpf/ringfence")
_SECONDS = 1200
"""Until a loop counts as hung, kubelet has asked five times, and what hangs has had its grace."""


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, logs: Path, client_binary: Path
) -> Iterator[StaticCluster]:
    programs, installed = (
        Path(os.environ[f"RINGFENCE_{name}"]) for name in ("KUBERNETES", "INSTALLED")
    )
    root = tmp_path_factory.mktemp("cluster")
    with StaticCluster(programs, installed, root, logs, client_binary) as made:
        yield made


@pytest.mark.timeout(2400)
def test_a_static_pod_of_the_image_serves_a_pod_and_holds_it(
    cluster: StaticCluster, gpu: Gpu
) -> None:
    one = cluster.running(cluster.admitted("held", cluster.share(0, 96, 16)))
    # The hook is where the init container has put it.
    assert one.environment()["LD_AUDIT"] == "/usr/local/ringfence/libringfence-audit.so"
    with Talk("held", "main") as client:
        is_held(one, gpu, 96 * MIB)
        client.open(gpu)
        assert int(client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
        assert client.refused("gem-create 4096 vram") == "ENOMEM"
        # Taken down while it holds all of it.
        leaves_nothing(cluster, one, gpu)
    # What hangs is started anew by kubelet, and what does not is left alone.
    for pid in cluster.pids("device-plugin"):
        os.kill(pid, signal.SIGSTOP)
    again = {"device-plugin": 1, "enforcer": 0}
    wait_for("the plugin started anew and ready", lambda: cluster.ready() == again, _SECONDS, 5.0)
    cluster.running(cluster.admitted("after", cluster.share(0, 96, 16)))
    cluster.end("after")
    cluster.end_static()
    assert PINS.exists()
