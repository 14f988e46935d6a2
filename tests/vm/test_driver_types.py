# SPDX-License-Identifier: Apache-2.0
"""The simulation driver has the real driver's functions and types, on both kernel lines."""

from __future__ import annotations

import os

import pytest

from tests.testbed import btf_compare, kernels, kmodule, stock
from tests.testbed.btf import read_kernel, read_module
from tests.testbed.cache import Cache, Report


@pytest.mark.vm
@pytest.mark.parametrize(("line", "release"), [("dmem", "newest"), ("nodmem", "6.12")])
def test_what_bpf_relies_on_is_as_in_the_distribution_s_driver(line: str, release: str) -> None:
    cache, report = Cache.from_environment(os.environ), Report()
    kernel = kernels.prepare(cache, line, report)
    real = stock.prepare(cache, release, report)
    (module,) = real.modules.rglob("amdgpu.ko*")
    found = btf_compare.compare(
        btf_compare.read_points(btf_compare.POINTS),
        read_module(
            kmodule.prepare(cache, kernel, report).module, read_kernel(kernel.tree / "vmlinux")
        ),
        read_module(module, read_kernel(real.image)),
    )
    assert [str(difference) for difference in found] == []
