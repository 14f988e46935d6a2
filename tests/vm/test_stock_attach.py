# SPDX-License-Identifier: Apache-2.0
"""Every BPF object we ship attaches to the distribution's unmodified amdgpu.ko."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.testbed import stock
from tests.testbed.vm import NodeOptions, run_vm

# What a stock kernel lacks of our programs' functions, by its name in the testbed: nothing so far.
EXPECTED_MISSING: Final[dict[str, frozenset[str]]] = {
    "6.1": frozenset(),
    "6.12": frozenset(),
    "newest": frozenset(),
}


@pytest.mark.vm
@pytest.mark.parametrize("kernel", stock.NAMES)
def test_every_program_attaches_to_the_unmodified_driver(kernel: str) -> None:
    result = run_vm(
        ["python3", "-m", "tests.vm.attach_all"],
        NodeOptions(stock=kernel),
        timeout_s=300,
    )
    assert result.returncode == 0, result.stderr.decode()
    report = json.loads(result.stdout)
    print(f"{kernel}: attached in {report['seconds']} s")
    missing = set()
    for part in ("gate", "ledger"):
        for program, why in report[part].items():
            print(f"  {part:6} {program:26} {'attached' if why is None else why}")
            if why is not None:
                missing.add(program)
    assert report["gate"]
    assert report["ledger"]
    assert missing == EXPECTED_MISSING[kernel]
    assert report["self_test"] is True
    assert report["left_behind"] == []
    assert report["holders"] == 0
