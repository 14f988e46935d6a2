# SPDX-License-Identifier: Apache-2.0
"""Two plugins on one node, as a rolling update has them for a while."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from enforcer.api.server import Server
from tests.contract.conftest import RESOURCE, eventually
from tests.contract.peers.allocatable import Allocatable
from tests.contract.peers.kubelet import Second
from tests.contract.test_health import Enforcer

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


def test_the_second_waits_for_the_first_and_knows_what_it_gave(bench: Bench) -> None:
    first = bench.start()
    second = bench.start(wait=False)
    eventually(lambda: "waiting for the other device plugin" in bench.log)
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    time.sleep(1)
    assert len(bench.kubelet.registrations) == 1
    assert bench.terminate(first) == 0

    bench.kubelet.wait_registrations(2)
    bench.kubelet.wait_devices(RESOURCE, lambda ids: "Healthy" in ids.values())
    bench.wait_unlocked()
    got = bench.admit(bench.bind("two", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    assert got["app"].response.envs["HSA_CU_MASK"] == "0:76-151"
    assert [item.pod for item in bench.slices] == ["one", "two"]
    assert second.poll() is None


@pytest.mark.parametrize("second", Second)
def test_under_every_kubelet_the_second_has_the_devices_at_once_and_keeps_them(
    bench: Bench, second: Second
) -> None:
    """As in containers, to which KFD shows no GPU: they know of them from the enforcer alone."""
    server = Server(Enforcer(bench.root), bench.root / "enforcer.sock")
    server.start()
    bench.kubelet.second = second
    (bench.root / "nothing").mkdir()
    container = f"--sys={bench.root / 'nothing'}"
    first = bench.start(container)
    gap = Allocatable(bench.kubelet, RESOURCE)
    gap.start()
    bench.start(container, wait=False)
    eventually(lambda: "waiting for the other device plugin" in bench.log, timeout=60)
    assert gap.seconds == 0
    # An update ends both at once, and the next enforcer needs longer.
    server.stop()
    assert bench.terminate(first) == 0
    bench.kubelet.wait_registrations(2, timeout=60)
    eventually(lambda: healthy(bench), timeout=60)
    # The first one's disconnect may be noticed after the second's registration.
    time.sleep(1)
    eventually(lambda: healthy(bench), timeout=60)
    print(f"{second.value}: no GPU allocatable for {gap.finish():.2f} s")


def test_one_that_is_there_before_its_enforcer_does_not_wait_for_the_next_look(
    bench: Bench,
) -> None:
    enforcer = Enforcer(bench.root)
    (bench.root / "nothing").mkdir()
    bench.start(f"--sys={bench.root / 'nothing'}", "--health-pulse=600", wait=False)
    eventually(lambda: "no GPU in sight here, and the enforcer says nothing" in bench.log, 60)
    server = Server(enforcer, bench.root / "enforcer.sock")
    server.start()
    eventually(lambda: healthy(bench), timeout=60)
    server.stop()


def healthy(bench: Bench) -> bool:
    devices = bench.kubelet.wait_devices(RESOURCE, lambda _: True)
    return "Healthy" in devices.values()


def test_a_killed_first_lets_the_second_in(bench: Bench) -> None:
    first = bench.start()
    bench.start(wait=False)
    eventually(lambda: "waiting for the other device plugin" in bench.log)
    bench.kill(first)
    bench.kubelet.wait_registrations(2)


def test_one_that_waits_leaves_when_told_to(bench: Bench) -> None:
    bench.start()
    second = bench.start(wait=False)
    eventually(lambda: "waiting for the other device plugin" in bench.log)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=3) == 0
    assert len(bench.kubelet.registrations) == 1
