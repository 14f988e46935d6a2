# SPDX-License-Identifier: Apache-2.0
"""The compute units of a slice reach the kernel, and what runs beyond them is seen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bpf import loader
from bpf.decode import CuMask
from enforcer.model import pci_key
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import Enforcer, ledger, wait_for
from tests.vm.guest.test_limit import held

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods


def masks() -> dict[tuple[int, int], CuMask]:
    with loader.open_maps() as maps:
        return maps.cu_masks()


def test_a_containers_queues_are_held_against_its_slice(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    pod = pods.pod("pod-cus")
    one = slice_of(pod, "main", gpu, 64)
    share = dataclasses.replace(one.shares[0], cus="0-7,32")
    pods.slices.append(dataclasses.replace(one, shares=(share,)))
    enforcer.give(pods.slices)
    started = pods.start(pod, pods.slices[-1])
    held(enforcer, started, gpu)
    number = started.container.cgroup_id
    key = (number, pci_key(gpu.bdf))
    wait_for("the slice's compute units", lambda: masks() == {key: CuMask(0xFF | 1 << 32)})
    started.client.open(gpu)
    queue = started.client.ask(f"queue-create {gpu.kfd_id}")["queue"]
    started.client.ask(f"cu-mask {queue} 0xff 0x1")
    row = ledger(number, gpu.bdf)
    assert (row.queues, row.queues_masked, row.masks_wider) == (1, 1, 0)
    started.client.ask(f"cu-mask {queue} 0x1ff 0x1")
    row = ledger(number, gpu.bdf)
    assert (row.queues, row.queues_masked, row.masks_wider) == (1, 0, 1)
    # As the limit they end with the container, whatever becomes of its slice.
    pods.slices.clear()
    enforcer.give([])
    wait_for("a pass without the slice", lambda: one.pod not in (enforcer.metrics() or one.pod))
    assert masks().keys() == {key}
    started.container.kill()
    wait_for("no compute units left", lambda: masks() == {})
