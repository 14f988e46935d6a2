# SPDX-License-Identifier: Apache-2.0
"""Every BPF object we ship attaches to the distribution's unmodified amdgpu.ko."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.testbed import stock
from tests.testbed.vm import NodeOptions, run_vm

# What a stock kernel lacks of our programs' functions, by part: the names that TTM has in a driver
# built outside the tree, and shared virtual memory where the distribution builds without it.
_SVM: Final = frozenset({"svm_create", "svm_created", "svm_destroy", "svm_destroy_again"})
_DKMS: Final = frozenset({"bo_init_dkms", "resource_init_dkms", "resource_fini_dkms"})
_SECONDS: Final = 900.0
WITHOUT_SVM: Final = ("6.1", "6.12")


def expected_missing(kernel: str) -> dict[str, frozenset[str]]:
    svm = _SVM if kernel in WITHOUT_SVM else frozenset[str]()
    return {
        "gate": frozenset(),
        "ledger": svm,
        "probes": _DKMS | (svm & {"svm_create", "svm_destroy"}),
    }


@pytest.mark.vm
@pytest.mark.timeout(_SECONDS + 60)
@pytest.mark.parametrize("kernel", stock.NAMES)
def test_every_program_attaches_to_the_unmodified_driver(kernel: str) -> None:
    result = run_vm(
        ["python3", "-m", "tests.vm.attach_all"],
        NodeOptions(stock=kernel),
        timeout_s=_SECONDS,
    )
    assert result.returncode == 0, result.stderr.decode()
    report = json.loads(result.stdout)
    print(f"{kernel}: attached in {report['seconds']} s")
    for part, expected in expected_missing(kernel).items():
        for program, why in report[part].items():
            print(f"  {part:6} {program:26} {'attached' if why is None else why}")
        assert {name for name, why in report[part].items() if why is not None} == expected
        assert len(report[part]) > len(expected)
    assert report["self_test"] is True
    assert report["vramsnoop"] == 0
    assert report["left_behind"] == []
    assert report["holders"] == 0
