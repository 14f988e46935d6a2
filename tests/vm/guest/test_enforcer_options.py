# SPDX-License-Identifier: Apache-2.0
"""What the administrator wants of the gate reaches it, and is the new enforcer's word alone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bpf import loader
from bpf.decode import SCHEMA, Policy
from enforcer.api.client import Client
from enforcer.model import MIB, Why, pci_key
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import Enforcer, wait_for

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch
    from tests.vm.guest.node import Pods

SOCKET = Path("/run/ringfence/enforcer.sock")


@pytest.fixture
def alone(switch: Switch) -> None:
    """No other enforcer runs."""
    switch.end()


@pytest.mark.usefixtures("alone")
def test_policies_are_those_of_the_enforcer_that_runs(tmp_path: Path, logs: Path) -> None:
    strict = ["--refuse-imports", "--refuse-passed", "--on-switch", "report"]
    for options, policy in (
        (strict, Policy(kill_switchers=False, refuse_imports=True, refuse_passed=True)),
        ([], Policy()),
    ):
        enforcer = Enforcer(tmp_path, logs, more=options)
        enforcer.give([])
        enforcer.start()
        with loader.open_maps() as maps:
            assert maps.policy() == policy
        assert enforcer.stop() == 0
    enforcer.unload()


@pytest.mark.usefixtures("alone")
def test_a_gate_without_a_bpf_file_system_is_loaded_when_one_is_mounted(
    tmp_path: Path, logs: Path, pods: Pods, gpu: Gpu
) -> None:
    place = tmp_path / "bpf"
    place.mkdir()
    pins = place / "ringfence" / str(SCHEMA)
    more = ["--bpffs", str(pins.parent), "--refuse-imports"]
    enforcer = Enforcer(tmp_path, logs, "gate", more=more)
    enforcer.give([])
    enforcer.start()
    try:
        with Client(SOCKET) as client:
            assert client.snapshot(30).support.gate.reason == Why.NOT_LOADED
            subprocess.run(["mount", "-t", "bpf", "bpf", place], check=True)
            wait_for("the gate", lambda: client.snapshot(30).support.gate.on, 300, 1)
        pod = pods.pod("late")
        one = slice_of(pod, "main", gpu, 64)
        enforcer.give([one])
        started = pods.start(pod, one)
        wait_for("the container's cgroup", started.container.path.exists)
        key = (started.container.path.stat().st_ino, pci_key(gpu.bdf))
        with loader.open_maps(pins) as maps:
            assert maps.policy() == Policy(refuse_imports=True)
            wait_for("the limit", lambda: maps.limits().get(key) == 64 * MIB)
        started.client.open(gpu)
        handle = started.client.kfd_alloc(gpu, 64 * MIB)
        assert started.client.refused(f"kfd-alloc {gpu.kfd_id} 4096") == "ENOMEM"
        started.client.ask(f"kfd-free {handle}")
        assert enforcer.stop() == 0
        assert enforcer.log.read_text().count("gate on: what it lacked is there") == 1
    finally:
        loader.unload(pins)
        subprocess.run(["umount", place], check=True)
