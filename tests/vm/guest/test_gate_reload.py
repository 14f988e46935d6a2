# SPDX-License-Identifier: Apache-2.0
"""The driver is unloaded and loaded again under a gate that stays."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from bpf import loader
from enforcer.model import MIB
from tests.vm.guest.gatenode import OBJECTS, PINS, fresh_node, loaded_parts

if TYPE_CHECKING:
    from enforcer.model import Gpu


LOAD = '. /run/testbed/run.conf && insmod "$DRIVER" $DRIVER_OPTIONS'
"""As the node did when it came up."""


def test_a_ledger_holds_its_driver_or_else_tenants_are_refused_until_it_is_back(
    gpus: list[Gpu],
) -> None:
    with loaded_parts(), fresh_node(gpus) as node:
        ledger = loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
        assert node.maps.ledger_acts()
        unloaded = subprocess.run(["rmmod", "amdgpu"], check=False, capture_output=True)
        if not ledger.by_probes:
            assert b"in use" in unloaded.stderr
            return
        assert unloaded.returncode == 0, unloaded.stderr
        assert not node.maps.ledger_acts()
        subprocess.run(["sh", "-c", LOAD], check=True)
        box = node.cgroup("box", MIB)
        caller = node.caller(box)
        before = node.counted("refused_no_ledger")
        assert caller.refused("gem_create", node.render, 4096) == "ENOMEM"
        assert node.counted("refused_no_ledger") == before + 1
        loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
        assert node.maps.ledger_acts()
        caller.do("gem_create", node.render, MIB)
        assert caller.refused("gem_create", node.render, 4096) == "ENOMEM"
