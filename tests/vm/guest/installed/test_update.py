# SPDX-License-Identifier: Apache-2.0
"""From one built image to another and back, under a tenant that never stops allocating; and off."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit_hook.install import CURRENT
from bpf import loader
from bpf.libbpf import Libbpf
from deviceplugin.hook import AUDITOR, IN_CONTAINER
from enforcer.model import MIB
from tests.contract.peers.allocatable import Allocatable
from tests.contract.peers.kubelet import Second
from tests.vm.guest.installed.cluster import STATE
from tests.vm.guest.node import RefusedError
from tests.vm.guest.services import gate_limit, ledger, wait_for

if TYPE_CHECKING:
    from typing import Self

    from enforcer.model import Gpu
    from tests.vm.guest.cluster import Running
    from tests.vm.guest.installed.cluster import DaemonPod, InstalledCluster

PINS = Path("/sys/fs/bpf/ringfence")
HOOK = Path("/var/lib/ringfence-hook")
PROGRAMS = ("/usr/bin", "/usr/lib", "/lib", "/lib64")
"""Folders of the node by which a container has programs that are linked as those of images are."""
SLICE = 96
PART = 32 * MIB
_SECONDS = 300
REFUSALS = re.compile(
    r'^ringfence_refusals_total\{[^}]*container="main"[^}]*\} (\S+)$', re.MULTILINE
)


_PAUSE_SECONDS = 0.05
"""Between two calls: the emulated machine is one thread, which the daemons need too."""


class Busy(threading.Thread):
    """Fills its slice to the byte, asks for one more, gives all back, and so on.

    ``wrong`` is every answer that a slice of its size cannot give.
    """

    def __init__(self, running: Running, gpu: Gpu) -> None:
        super().__init__(daemon=True)
        self._client = running.client
        self._gpu = gpu
        self._over = threading.Event()
        self.rounds = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._over.is_set():
            handles: list[str] = []
            try:
                while len(handles) < SLICE * MIB // PART:
                    handles.append(self._client.kfd_alloc(self._gpu, PART))
                    time.sleep(_PAUSE_SECONDS)
            except RefusedError as error:
                self.wrong.append(f"below the slice, after {len(handles)} parts: {error}")
            # The smallest that can be had: a page.
            answer = self._client.refused(f"kfd-alloc {self._gpu.kfd_id} 4096")
            if answer != "ENOMEM" and len(handles) == SLICE * MIB // PART:
                self.wrong.append(f"above the slice: {answer or 'given'}")
            for handle in handles:
                time.sleep(_PAUSE_SECONDS)
                self._client.ask(f"kfd-free {handle}")
            self.rounds += 1

    def finish(self) -> None:
        self._over.set()
        self.join(60)


@dataclass(frozen=True, slots=True)
class Build:
    """What of an image is at work on the node: the kernel's digest of each pinned program's code,
    and the version of the hook that the next pod gets."""

    gate: dict[str, str]
    ledger: dict[str, str]
    hook: str

    @classmethod
    def at_work(cls) -> Self:
        return cls(_tags("gate"), _tags("ledger"), (HOOK / CURRENT).readlink().name)


def _tags(part: str) -> dict[str, str]:
    library = Libbpf()
    return {
        pin.name: library.program_tag(pin, linked=pin.name != "ledger_forget")
        for pin in PINS.glob(f"*/*/{part}_*")
        if pin.name != f"{part}_record"
    }


def _loads(running: Running) -> bytes:
    """The hook's library, as a program has it that is begun in the container now."""
    library = str(IN_CONTAINER / AUDITOR)
    assert library in running.container.execute("/usr/bin/cat", "/proc/self/maps")
    (pid, *_) = running.container.pids()
    return Path(f"/proc/{pid}/root{library}").read_bytes()


@pytest.mark.timeout(2800)
def test_no_byte_over_and_no_refusal_below_from_version_to_version(
    cluster: InstalledCluster, gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    one = cluster.begin("busy", gpu=0, mib=SLICE, cus=16, folders=PROGRAMS)
    wait_for(
        "the container's own limit",
        lambda: gate_limit(one.container.cgroup_id, gpu.bdf) == SLICE * MIB,
        _SECONDS,
    )
    one.client.open(gpu)
    found = Build.at_work()
    builds = {"image.tar": found}
    hook = (HOOK / found.hook / AUDITOR).read_bytes()
    assert _loads(one) == hook
    busy = Busy(one, gpu)
    busy.start()
    try:
        for image, surge, second in (
            ("next.tar", False, Second.REPLACES),
            ("image.tar", True, Second.REFUSED),
            ("next.tar", True, Second.REPLACES_AND_DROPS),
        ):
            refused = _refusals(cluster)
            cluster.kubelet.second = second
            gap = Allocatable(cluster.kubelet, "amd.com/gpu")
            gap.start()
            _replace(cluster, image, surge=surge)
            with capsys.disabled():
                print(f"\n{image}, {'surge' if surge else 'one after the other'}, "
                      f"{second.value}: no GPU allocatable for {gap.finish():.1f} s")  # fmt: skip
            _still(cluster, busy, refused)
            assert busy.wrong == []
            before, found = found, Build.at_work()
            assert found.gate != before.gate
            assert found.ledger != before.ledger
            assert found.hook != before.hook
            assert found == builds.setdefault(image, found)
            versions = {path.name for path in HOOK.iterdir()} - {CURRENT}
            assert versions == {build.hook for build in builds.values()}
            # The container is given nothing new: it began under the first.
            assert _loads(one) == hook
    finally:
        busy.finish()
    assert busy.wrong == []
    assert busy.rounds > 3
    assert gate_limit(one.container.cgroup_id, gpu.bdf) == SLICE * MIB
    assert ledger(one.container.cgroup_id, gpu.bdf).requested == 0


def _replace(cluster: InstalledCluster, archive: str, *, surge: bool) -> None:
    """A rolling update of this node: with a surge the new pod is there first, and waits."""
    old = cluster.pod
    cluster.use(archive)
    if surge:
        new = cluster.start_pod()
        wait_for(
            "the new plugin to stand in line",
            lambda: "waiting" in new.log("device-plugin"),
            _SECONDS,
        )
        # What has kubelet call it available, and the controller end the old one.
        for name in new.containers:
            wait_for(
                f"{name} ready in line",
                lambda: "ready: in line" in new.probe(name, "readinessProbe")[1],  # noqa: B023
                _SECONDS,
            )
        _end(old)
    else:
        _end(old)
        new = cluster.start_pod()
    cluster.wait_ready(new)


def _end(pod: DaemonPod) -> None:
    """By SIGTERM, within the pod's grace period."""
    assert pod.terminate() == {"device-plugin": 0, "enforcer": 0}


def _still(cluster: InstalledCluster, busy: Busy, refused: float) -> None:
    """The tenant goes on, and so does the count of what it was refused."""
    rounds = busy.rounds
    wait_for("the tenant to go on", lambda: busy.rounds > rounds, _SECONDS)
    wait_for("the refusals to go on counting", lambda: _refusals(cluster) >= refused, _SECONDS)


def _refusals(cluster: InstalledCluster) -> float:
    return sum(float(value) for value in REFUSALS.findall(cluster.enforcer.metrics() or ""))


@pytest.mark.parametrize("values", ["removed", "removed, not privileged"])
def test_removed_nothing_is_left(cluster: InstalledCluster, values: str) -> None:
    """Last: nothing runs afterwards."""
    if not PINS.exists():
        cluster.set_values("defaults")
        cluster.install()
    _end(cluster.pod)
    cluster.set_values(values)
    with loader.open_maps() as maps:
        assert maps.ledger_acts()
        pod = cluster.start_pod()
        assert not maps.ledger_acts()
    assert pod.alive()
    assert not PINS.exists()
    for place in (STATE, Path("/run/ringfence"), Path("/var/lib/ringfence-hook")):
        assert list(place.iterdir()) == []
    pod.close()
