# SPDX-License-Identifier: Apache-2.0
"""The driver is reloaded under a running enforcer, by the very lines that the page on it has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from bpf import loader
from enforcer.model import MIB
from tests.vm.guest.caller import Caller
from tests.vm.guest.services import ledger, wait_for
from tests.vm.guest.test_gate_reload import LOAD
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer

_PAGE = Path(__file__).parents[3] / "docs/gpu-health.md"
# The node has its driver from elsewhere. A real GPU takes seconds, one after the other.
_AS_HERE = f"modprobe() {{ {LOAD} probe_ms=3000; }}\n"
_PROBE = Path("/sys/module/amdgpu/parameters/probe_ms")


def the_lines() -> str:
    """What the page has as root type."""
    chapter = _PAGE.read_text().partition("## How do I reload the driver?")[2]
    return dedent("".join(re.findall(r"^ {8}.*\n", chapter, re.MULTILINE)))


@pytest.fixture
def at_the_end(switch: Switch) -> Iterator[None]:
    """No later test has an enforcer with programs older than the driver: it does not keep them."""
    yield
    switch.end()


@pytest.mark.usefixtures("at_the_end")
def test_the_documented_lines_reload_the_driver_and_the_limits_are_back(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    # What earlier ones said is in its log.
    enforcer.kill()
    enforcer.log.write_text("")
    enforcer.start()
    assert "listening to the KFD events" not in enforcer.log.read_text()
    before = tenant(pods, enforcer, gpu, 64)
    before.client.kfd_alloc(gpu, 60 * MIB)
    # Booked for longer than the pod is there, as the driver cannot say what came of it.
    with Caller(before.container.path) as caller:
        caller.do("open", f"/dev/dri/renderD{gpu.render}")
        caller.do("open", "/dev/kfd")
        caller.do("acquire", f"/dev/dri/renderD{gpu.render}", gpu.kfd_id)
        arguments = caller.do("kfd_arguments", gpu.kfd_id, MIB)
        assert caller.refused("call_cut_off", "/dev/kfd", arguments) == "EFAULT"
    before.container.kill()
    with loader.open_maps() as maps:
        assert any(not one.followed for _, one in maps.buffers())
    lines = the_lines()
    assert lines.count("amdgpu") == 4
    if Path("/sys/kernel/btf/amdgpu").exists():  # kprobes do not hold a module
        refused = subprocess.run(["rmmod", "amdgpu"], check=False, capture_output=True, text=True)
        assert "in use" in refused.stderr
    subprocess.run(["sh", "-euc", _AS_HERE + lines], check=True, timeout=300)
    _PROBE.write_text("0")
    after = tenant(pods, enforcer, gpu, 64)
    wait_for("the ledger", lambda: after.client.refused("gem-create 4096 vram") == "", 60)
    assert after.client.refused(f"kfd-alloc {gpu.kfd_id} {64 * MIB}") == "ENOMEM"
    assert ledger(after.container.cgroup_id, gpu.bdf).resident == 4096
    # Nor was the gate given up while the driver came: who has no ledger yet is refused.
    assert "ledger not loaded" not in enforcer.log.read_text()
