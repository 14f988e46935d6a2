# SPDX-License-Identifier: Apache-2.0
"""A container is held from the moment its cgroup is made, whether or not the enforcer runs."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from bpf import loader
from enforcer.model import MIB, pci_key
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import gate_limit, wait_for

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer


def test_a_new_container_has_the_pods_smallest_slice_while_the_enforcer_stands_still(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    pod = pods.pod("pod")
    pods.slices.extend(
        [slice_of(pod, "large", gpu, 4096), slice_of(pod, "small", gpu, 1024, slot=1)]
    )
    enforcer.give(pods.slices)
    key = pod.cgroup_id, pci_key(gpu.bdf)

    def pending() -> int | None:
        with loader.open_maps() as maps:
            return maps.pending().get(key)

    wait_for("the pod's limit", lambda: gate_limit(pod.cgroup_id, gpu.bdf) == 5120 * MIB)
    assert wait_for("the limit of new containers", pending) == 1024 * MIB
    os.kill(enforcer.pid, signal.SIGSTOP)
    try:
        scope = pod.path / f"cri-containerd-{'a' * 64}.scope"
        scope.mkdir()
        number = scope.stat().st_ino
        assert gate_limit(number, gpu.bdf) == 1024 * MIB
        scope.rmdir()
        assert gate_limit(number, gpu.bdf) == "absent"
    finally:
        os.kill(enforcer.pid, signal.SIGCONT)
    pod.remove()
    # A pass that was stopped half-way may write once more what the kernel has taken back.
    wait_for("no limit of the pod", lambda: gate_limit(key[0], gpu.bdf) == "absent")
    wait_for("none of new containers", lambda: pending() is None)
