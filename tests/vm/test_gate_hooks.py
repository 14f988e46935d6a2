# SPDX-License-Identifier: Apache-2.0
"""The gate and the ledger in the second best way: no security module, no type information.

The virtual nodes of the other tests have both.
"""

from __future__ import annotations

import os

import pytest

from tests.testbed.otherbuild import VARIABLE as OTHER_BUILD
from tests.testbed.vm import NodeOptions, VmResult, run_vm

_SECONDS = 1500.0
"""A machine that has other things to do takes many times what an idle one does."""
pytestmark = [pytest.mark.vm, pytest.mark.timeout(_SECONDS + 60)]

_PYTEST = ("python3", "-m", "pytest", "-p", "no:cacheprovider")
_TESTS = (
    "TheByte or WordsNoLibrary or TheRecord or WhoIsAsked or takes_over_what_is_held or next_one "
    "or compat or overrun or room"
)
_PROBED = (
    "WhoIsHeld or EverythingComesBack or reload or undisturbed or unfollowed or placement or svm "
    "or upgrade or real_time or perfmon"
)


def _gate_tests(which: str, node: NodeOptions) -> VmResult:
    files = [
        f"tests/vm/guest/{name}.py"
        for name in (
            "test_enforcer_confined",
            "test_gate",
            "test_gate_before_others",
            "test_gate_compat",
            "test_gate_overrun",
            "test_gate_placement",
            "test_gate_reload",
            "test_gate_room",
            "test_gate_svm",
            "test_gate_unfollowed",
            "test_ledger_undisturbed",
            "test_upgrade",
        )
    ]
    environment = {name: os.environ[name] for name in ("RINGFENCE_CLIENT", OTHER_BUILD)}
    command = [*_PYTEST, "-q", "-k", which, *files]
    return run_vm(command, node, env=environment, timeout_s=_SECONDS)


def test_without_the_security_module_the_gate_holds_by_fmod_ret() -> None:
    result = _gate_tests(_TESTS, NodeOptions(kernel="nodmem", gpus=2, lsm="capability"))
    assert result.returncode == 0, (result.stdout + result.stderr).decode()


@pytest.mark.parametrize("kernel", ["dmem", "nodmem"])
def test_a_driver_without_type_information_is_followed_by_probes(kernel: str) -> None:
    which = f"{_TESTS} or {_PROBED}"
    result = _gate_tests(which, NodeOptions(kernel=kernel, gpus=2, module_btf=False))
    assert result.returncode == 0, (result.stdout + result.stderr).decode()
