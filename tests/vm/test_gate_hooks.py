# SPDX-License-Identifier: Apache-2.0
"""The gate where "bpf" is no active security module: fmod_ret alone asks.

The virtual nodes of the other tests have it active, as the kernel's own default is.
"""

from __future__ import annotations

import pytest

from tests.testbed.vm import NodeOptions, run_vm

_PYTEST = ("python3", "-m", "pytest", "-p", "no:cacheprovider")
_TESTS = "TheByte or WordsNoLibrary or TheRecord or WhoIsAsked or takes_over_what_is_held"


@pytest.mark.vm
def test_without_the_security_module_the_gate_holds_by_fmod_ret() -> None:
    result = run_vm(
        [*_PYTEST, "-q", "-k", _TESTS, "tests/vm/guest/test_gate.py"],
        NodeOptions(kernel="nodmem", gpus=2, lsm="capability"),
        timeout_s=400,
    )
    print(result.stdout.decode())
    assert result.returncode == 0, result.stderr.decode()
