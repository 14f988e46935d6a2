# SPDX-License-Identifier: Apache-2.0
"""Shared virtual memory: what a call would bring into VRAM is held, what a fault brings is told."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from bpf.decode import Counter
from enforcer.model import MIB
from tests.vm.guest.caller import SVM_ACCESS, SVM_PREFERRED, SVM_PREFETCH
from tests.vm.guest.gatenode import Node, settled

SYSTEM: Final = 0
UNDEFINED: Final = 0xFFFFFFFF

# What has dmem was built with SVM, too.
has_svm = pytest.mark.dmem


def fault(node: Node, pid: int, address: int) -> None:
    """The GPU touches that memory of the process."""
    knob = Path(f"/sys/kernel/debug/amdgpu/{node.gpus[0].bdf}/sim_svm_fault")
    knob.write_text(f"{pid} {address:x}")


def test_a_call_that_fails_in_the_driver_costs_nothing(node: Node) -> None:
    box = node.cgroup("box", 8 * MIB)
    caller = node.caller(box)
    # Memory that is not there; on a kernel without SVM nothing is.
    assert caller.refused("svm", 1 << 30, MIB, [(SVM_PREFETCH, node.kfd_id)]) in {"EFAULT", "EPERM"}
    assert (node.usage(box).requested, node.usage(box).reserved) == (0, 0)
    assert node.counted("unfollowed") == 0


@has_svm
@pytest.mark.parametrize("kind", [SVM_PREFETCH, SVM_PREFERRED], ids=["prefetched", "preferred"])
def test_memory_larger_than_what_is_left_is_refused_a_place_in_vram(node: Node, kind: int) -> None:
    box = node.cgroup("box", 8 * MIB)
    caller = node.caller(box)
    caller.do("kfd_alloc", node.kfd_id, 4 * MIB)
    memory = caller.do("memory", 8 * MIB)
    assert caller.refused("svm", memory, 5 * MIB, [(kind, node.kfd_id)]) == "ENOMEM"
    assert caller.refused("svm", memory, 5 * MIB, [(SVM_ACCESS, node.kfd_id)]) == ""
    assert caller.refused("svm", memory, 5 * MIB, [(kind, SYSTEM)]) == ""
    (event,) = node.maps.events()
    assert (event.reason, event.cgroup) == (Counter.REFUSED_LIMIT, box.stat().st_ino)
    assert (event.asked, event.used, event.limit) == (5 * MIB, 4 * MIB, 8 * MIB)
    assert (node.usage(box).requested, node.usage(box).reserved) == (4 * MIB, 0)


@has_svm
def test_it_is_charged_while_its_buffer_exists(node: Node) -> None:
    box = node.cgroup("box", 8 * MIB)
    caller = node.caller(box)
    memory = caller.do("memory", 8 * MIB)
    caller.do("svm", memory, 2 * MIB, [(SVM_PREFERRED, node.kfd_id)])
    assert node.usage(box).requested == 0
    caller.do("svm", memory, 2 * MIB, [(SVM_PREFETCH, node.kfd_id)])
    caller.do("svm", memory + 2 * MIB, 4 * MIB, [(SVM_PREFETCH, node.kfd_id)])
    usage = node.usage(box)
    assert (usage.requested, usage.resident, usage.svm) == (6 * MIB, 6 * MIB, 6 * MIB)
    assert (usage.reserved, usage.svm_faulted) == (0, 0)
    assert caller.refused("gem_create", node.render, 3 * MIB) == "ENOMEM"
    caller.do("svm", memory, 6 * MIB, [(SVM_PREFETCH, SYSTEM)])
    assert settled(lambda: node.usage(box).requested == 0), node.usage(box)
    assert node.usage(box).svm == 0
    caller.do("svm", memory, 8 * MIB, [(SVM_PREFETCH, node.kfd_id)])
    assert node.usage(box).svm == 8 * MIB
    caller.end()
    assert settled(lambda: node.usage(box).empty), node.usage(box)


@has_svm
def test_one_call_that_makes_several_buffers_is_charged_for_their_sum(node: Node) -> None:
    box = node.cgroup("box", 8 * MIB)
    caller = node.caller(box)
    memory = caller.do("memory", 8 * MIB)
    for part in range(4):
        caller.do("svm", memory + part * 2 * MIB, 2 * MIB, [(SVM_PREFERRED, SYSTEM)])
    counted = [node.counted(name) for name in ("unreserved", "settled_up")]
    caller.do("svm", memory, 8 * MIB, [(SVM_PREFETCH, node.kfd_id)])
    usage = node.usage(box)
    assert (usage.requested, usage.resident, usage.reserved) == (8 * MIB, 8 * MIB, 0)
    assert usage.peak == 8 * MIB
    assert [node.counted(name) for name in ("unreserved", "settled_up")] == counted


@has_svm
def test_the_last_attribute_of_a_kind_counts_and_too_many_are_refused(node: Node) -> None:
    caller = node.caller(node.cgroup("box", MIB))
    memory = caller.do("memory", 8 * MIB)
    to_gpu, to_system = (SVM_PREFETCH, node.kfd_id), (SVM_PREFETCH, SYSTEM)
    assert caller.refused("svm", memory, 8 * MIB, [to_gpu, to_system]) == ""
    assert caller.refused("svm", memory, 8 * MIB, [to_system, to_gpu]) == "ENOMEM"
    undefined = (SVM_PREFERRED, UNDEFINED)
    assert caller.refused("svm", memory, MIB, [undefined] * 127 + [to_gpu]) == ""
    before = node.counted("refused_arguments")
    assert caller.refused("svm", memory, MIB, [undefined] * 128 + [to_system]) == "ENOMEM"
    assert node.counted("refused_arguments") == before + 1


@has_svm
def test_a_tenant_has_no_place_on_a_gpu_without_a_share(node: Node) -> None:
    caller = node.caller(node.cgroup("box", MIB))
    memory = caller.do("memory", MIB)
    before = node.counted("refused_no_share")
    other = node.gpus[1].kfd_id
    assert caller.refused("svm", memory, MIB, [(SVM_PREFERRED, other)]) == "ENOMEM"
    assert node.counted("refused_no_share") == before + 1


@has_svm
def test_what_a_page_fault_brings_into_vram_is_charged_to_the_process_and_told(
    node: Node,
) -> None:
    pod, box = node.cgroup("pod", 8 * MIB), node.cgroup("pod/box", 4 * MIB)
    caller = node.caller(box)
    memory = caller.do("memory", 8 * MIB)
    counted = {name: node.counted(name) for name in ("svm_faulted", "svm_unowned")}
    caller.do("svm", memory, 2 * MIB, [(SVM_PREFERRED, node.kfd_id)])
    fault(node, caller.pid, memory)
    told = {name: node.counted(name) - before for name, before in counted.items()}
    if told["svm_unowned"]:
        # Nothing in a driver without type information says whose it is.
        assert told == {"svm_faulted": 0, "svm_unowned": 1}
        return
    assert told == {"svm_faulted": 1, "svm_unowned": 0}
    for at in (pod, box):
        usage = node.usage(at)
        assert (usage.requested, usage.resident) == (2 * MIB, 2 * MIB)
        assert (usage.svm, usage.svm_faulted) == (2 * MIB, 2 * MIB)
    # Beyond the limit all the same: nothing can refuse it, and then nothing else is let pass.
    for part in range(1, 4):
        fault(node, caller.pid, memory + part * 2 * MIB)
    assert node.usage(box).requested >= 6 * MIB
    assert caller.refused("kfd_alloc", node.kfd_id, 1) == "ENOMEM"
    caller.end()
    assert settled(lambda: node.usage(pod).empty), node.usage(pod)
    assert node.usage(pod).svm_faulted >= 6 * MIB
