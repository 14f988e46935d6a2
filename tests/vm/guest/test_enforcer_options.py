# SPDX-License-Identifier: Apache-2.0
"""What the administrator wants of the gate reaches it, and is the new enforcer's word alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bpf import loader
from bpf.decode import Policy
from tests.vm.guest.services import Enforcer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.vm.guest.conftest import Switch


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
