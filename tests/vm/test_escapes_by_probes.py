# SPDX-License-Identifier: Apache-2.0
"""Escapes and random use where the driver has no type information.

``test_gate_hooks.py`` has what the gate and the ledger do there.
"""

from __future__ import annotations

import os

import pytest

from tests.testbed.vm import NodeOptions, run_vm

_SECONDS = 1500.0
_COMMAND = ("python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s")
_FILES = tuple(
    f"tests/vm/guest/{name}.py"
    for name in (
        "test_escape_accomplice",
        "test_escape_arguments",
        "test_escape_processes",
        "test_escape_sharing",
        "test_random_use",
    )
)


@pytest.mark.vm
@pytest.mark.timeout(_SECONDS + 60)
def test_no_way_round_the_gate_is_open_where_the_ledger_goes_by_probes() -> None:
    node = NodeOptions(kernel="nodmem", gpus=2, module_btf=False)
    environment = {"RINGFENCE_CLIENT": os.environ["RINGFENCE_CLIENT"]}
    result = run_vm([*_COMMAND, *_FILES], node, env=environment, timeout_s=_SECONDS)
    assert result.returncode == 0, (result.stdout + result.stderr).decode()
