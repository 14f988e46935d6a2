# SPDX-License-Identifier: Apache-2.0
"""The distribution's libdrm_amdgpu, below Mesa's Vulkan and VA-API drivers, in a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from enforcer.model import MIB
from tests.hook.container import PROGRAMS, Container
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import ledger, wait_for
from tests.vm.guest.test_matrix import ENTER, slice_file

if TYPE_CHECKING:
    from pathlib import Path

    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch
    from tests.vm.guest.node import Pods

SLICE: Final = 2048
ORDERS: Final = "alloc=1500 gtt=3000 alloc=1000 alloc=500 free free free alloc=2000"
ENOMEM: Final = 12


@pytest.mark.hook
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layers", ["gate", "none"])
def test_its_buffers_count_where_the_kernel_refuses_and_where_the_hook_does(
    switch: Switch, pods: Pods, gpu: Gpu, built: Path, tmp_path: Path, layers: str
) -> None:
    enforcer = switch.run(layers)
    pod = pods.pod("graphics")
    pods.slices.append(slice_of(pod, "main", gpu, SLICE))
    enforcer.give(pods.slices)
    one = pods.start(pod, pods.slices[0])
    wait_for("the container's cgroup", one.container.path.exists)
    refuses = "refuse kernel\n" if layers == "gate" else "refuse hook\n"
    wait_for(refuses, lambda: slice_file(one).exists() and refuses in slice_file(one).read_text())
    container = Container(tmp_path, built)
    # There may be a stand-in for the library.
    del container.env["LD_LIBRARY_PATH"]
    container.slice_path.write_text(slice_file(one).read_text())
    procs = one.container.path / "cgroup.procs"
    node = f"/dev/dri/renderD{gpu.render}"

    result = container.run(
        "/bin/sh", "-c", ENTER, "sh", procs, PROGRAMS / "libdrm", node, *ORDERS.split(), timeout=200
    )

    assert result.lines[1:] == [
        "alloc 0", "gtt 0", f"alloc {ENOMEM}", "alloc 0", *["free 0"] * 3, "alloc 0"
    ], result.err  # fmt: skip
    line = f"ringfence: GPU {gpu.bdf}: refused {1000 * MIB} bytes"
    assert (line in result.err) == (layers == "none")
    if layers == "gate":
        usage = ledger(one.container.cgroup_id, gpu.bdf)
        assert (usage.refusals, usage.refused_bytes) == (1, 1000 * MIB)
