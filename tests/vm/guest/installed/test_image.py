# SPDX-License-Identifier: Apache-2.0
"""The image as the chart runs it: its own words for rights and mounts, put into effect by runc."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.host.heartbeat import LIVE_SECONDS
from enforcer.model import MIB
from enforcer.slices import FILE, read_checkpoint
from tests.vm.guest.cluster import NODE
from tests.vm.guest.installed.cluster import STATE
from tests.vm.guest.services import gate_limit, ledger, wait_for

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.installed.cluster import InstalledCluster


def test_a_slice_is_held_by_the_installed_image(cluster: InstalledCluster, gpu: Gpu) -> None:
    one = cluster.begin("held", gpu=0, mib=96, cus=16)
    slices, problems = read_checkpoint(STATE / FILE)
    assert not problems
    assert [share.vram_bytes for item in slices for share in item.shares] == [96 * MIB]
    assert gate_limit(one.pod.cgroup_id, gpu.bdf) == 96 * MIB
    one.client.open(gpu)
    assert int(one.client.ask(f"fill kfd {gpu.kfd_id} {MIB}")["bytes"]) == 96 * MIB
    wait_for(
        "its use in the metrics", lambda: 'container="main"' in (cluster.enforcer.metrics() or "")
    )
    one.container.kill()
    wait_for("all of it given back", lambda: ledger(one.pod.cgroup_id, gpu.bdf).empty)


def _status(cluster: InstalledCluster, container: str) -> dict[str, str]:
    text = Path(f"/proc/{cluster.pod.pid(container)}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_the_plugin_runs_without_a_capability_behind_a_filter(cluster: InstalledCluster) -> None:
    status = _status(cluster, "device-plugin")
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("name", ["device-plugin", "enforcer"])
def test_nothing_can_be_written_but_what_is_mounted_for_it(
    cluster: InstalledCluster, name: str
) -> None:
    root = Path(f"/proc/{cluster.pod.pid(name)}/root")
    for place in ("usr/local/file", "tmp/file", "etc/file"):
        with pytest.raises(OSError, match="Read-only file system"):
            (root / place).write_text("")
    assert not (root / "bin/sh").exists()


def test_a_slice_is_given_the_hook_that_the_init_container_installed(
    cluster: InstalledCluster,
) -> None:
    item = cluster.bind("hooked", cluster.share(gpu=1, mib=64, cus=8))
    response = cluster.kubelet.admit(item)["main"].response
    (mount,) = [one for one in response.mounts if one.container_path == "/usr/local/ringfence"]
    for name in ("libringfence-audit.so", "libringfence-hsa.so"):
        assert (Path(mount.host_path) / name).is_file()
        assert f"/usr/local/ringfence/{name}" in {*response.envs.values()}
    wait_for(
        "the slice settled", lambda: "hami.io/mutex.lock" not in cluster.api.node_annotations(NODE)
    )
    cluster.kubelet.remove(item["metadata"]["uid"])
    cluster.api.store.delete("pods", ("default", "hooked"))


def test_the_enforcer_was_not_ready_before_it_held_anything(cluster: InstalledCluster) -> None:
    ready, line = cluster.at_first
    assert not ready
    assert line.startswith("enforcer: "), line


def test_probes_tell_daemons_that_hang_from_daemons_at_work(cluster: InstalledCluster) -> None:
    """Both at once, as it takes the time after which a loop counts as hung."""
    pod = cluster.pod
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")

    def answers(name: str) -> list[bool]:
        return [pod.probe(name, kind)[0] for kind in kinds]

    for name in pod.containers:
        assert answers(name) == [True] * 3, pod.probe(name, "readinessProbe")
        os.kill(pod.pid(name), signal.SIGSTOP)
    try:
        for name in pod.containers:
            seconds = LIVE_SECONDS + 60
            wait_for(f"{name} not alive", lambda: answers(name) == [False] * 3, seconds, 5.0)  # noqa: B023
            assert "its loop has not come by" in pod.probe(name, "livenessProbe")[1]
    finally:
        for name in pod.containers:
            os.kill(pod.pid(name), signal.SIGCONT)
    cluster.wait_ready(pod)


@pytest.mark.parametrize("name", ["device-plugin", "enforcer"])
def test_its_memory_is_enough(cluster: InstalledCluster, name: str) -> None:
    """The kernel charges the enforcer's container for its maps and for verifying its programs."""
    folder = cluster.pod.cgroup(name)
    limit, peak = (int((folder / f"memory.{file}").read_text()) for file in ("max", "peak"))
    print(f"{name}: at most {peak >> 20} MiB of {limit >> 20}")
    events = dict(line.split() for line in (folder / "memory.events").read_text().splitlines())
    assert int(events["oom_kill"]) == 0
    assert peak < limit * 3 // 4
