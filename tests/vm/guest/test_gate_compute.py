# SPDX-License-Identifier: Apache-2.0
"""Compute queues of a container: which run on its slice's compute units, and which may not be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from bpf.decode import Counter, CuMask
from enforcer.model import MIB
from tests.vm.guest.gatenode import Node, settled

if TYPE_CHECKING:
    from pathlib import Path


SLICE: Final = 0xFF << 28
"""Eight compute units, on both sides of a word's end."""
GRACE_SECONDS: Final = 1.2
"""Longer than a queue may be without its mask before that is held against its container."""

QUEUE_SDMA: Final = 1


def box_with(node: Node, *, enforced: bool) -> Path:
    box = node.cgroup("box", 8 * MIB)
    node.maps.set_cu_mask(box.stat().st_ino, node.gpu, CuMask(SLICE, enforced))
    return box


@pytest.mark.types
def test_queues_are_told_apart_by_their_masks(node: Node) -> None:
    pod = node.cgroup("pod", 16 * MIB)
    box = node.cgroup("pod/box", 8 * MIB)
    node.maps.set_cu_mask(box.stat().st_ino, node.gpu, CuMask(SLICE))
    caller = node.caller(box)
    first, second = (caller.do("create_queue", node.kfd_id) for _ in range(2))
    caller.do("create_queue", node.kfd_id, QUEUE_SDMA)

    def seen() -> tuple[int, int]:
        of_box, of_pod = node.usage(box), node.usage(pod)
        assert of_box.queues == of_pod.queues
        return of_box.queues, of_box.queues_masked

    assert seen() == (2, 0)
    caller.do("set_cu_mask", first, SLICE)
    caller.do("set_cu_mask", second, 0xF << 30)
    assert seen() == (2, 2)
    caller.do("set_cu_mask", second, SLICE | 1)
    assert seen() == (2, 1)
    assert node.usage(box).masks_wider == 1
    caller.do("destroy_queue", second)
    assert seen() == (1, 1)
    caller.end()
    assert settled(lambda: seen() == (0, 0))
    assert node.usage(pod).queues_masked == 0


@pytest.mark.types
@pytest.mark.parametrize("bits", [32, 64, 1024])
def test_a_mask_beyond_the_slice_is_counted_and_refused_where_that_is_enforced(
    node: Node, bits: int
) -> None:
    box = box_with(node, enforced=False)
    caller = node.caller(box)
    queue = caller.do("create_queue", node.kfd_id)
    beyond = 1 << (bits - 1) if bits > 32 else 1 << 5
    wider = node.counted("cu_mask_wider")
    assert caller.refused("set_cu_mask", queue, beyond, bits) == ""
    assert (node.usage(box).masks_wider, node.usage(box).masks_refused) == (1, 0)
    assert node.counted("cu_mask_wider") == wider + 1
    node.maps.set_cu_mask(box.stat().st_ino, node.gpu, CuMask(SLICE, enforced=True))
    assert caller.refused("set_cu_mask", queue, beyond, bits) == "EACCES"
    (event,) = node.maps.events()
    assert (event.reason, event.refused) == (Counter.REFUSED_CU_MASK, True)
    assert (event.pid, event.cgroup, event.gpu) == (caller.pid, box.stat().st_ino, node.gpu)
    assert (node.usage(box).masks_wider, node.usage(box).masks_refused) == (2, 1)
    assert caller.refused("set_cu_mask", queue, SLICE, 64) == ""
    assert node.usage(box).queues_masked == 1
    node.maps.delete_cu_mask(box.stat().st_ino, node.gpu)
    assert caller.refused("set_cu_mask", queue, beyond, bits) == ""


@pytest.mark.types
def test_who_leaves_a_queue_without_a_mask_gets_no_further_one_where_that_is_enforced(
    node: Node,
) -> None:
    box = box_with(node, enforced=True)
    caller = node.caller(box)
    first = caller.do("create_queue", node.kfd_id)
    second = caller.do("create_queue", node.kfd_id)  # at once: the first has its time
    caller.do("set_cu_mask", first, SLICE)
    time.sleep(GRACE_SECONDS)
    assert caller.refused("create_queue", node.kfd_id) == "EACCES"
    assert caller.refused("create_queue", node.kfd_id, QUEUE_SDMA) == ""
    assert node.usage(box).masks_refused == 1
    assert [event.reason for event in node.maps.events()] == [Counter.REFUSED_UNMASKED]
    caller.do("set_cu_mask", second, SLICE)
    third = caller.do("create_queue", node.kfd_id)
    time.sleep(GRACE_SECONDS)
    assert caller.refused("create_queue", node.kfd_id) == "EACCES"
    caller.do("destroy_queue", third)
    caller.do("create_queue", node.kfd_id)


@pytest.mark.types
def test_a_container_is_held_by_its_own_slice_and_nobody_by_another_s(node: Node) -> None:
    pod = node.cgroup("pod", 16 * MIB)
    masks = {}
    for name, mask in (("a", 0xF), ("b", 0xF0)):
        masks[name] = node.cgroup(f"pod/{name}", 8 * MIB)
        number = masks[name].stat().st_ino
        node.maps.set_cu_mask(number, node.gpu, CuMask(mask, enforced=True))
    node.maps.set_cu_mask(pod.stat().st_ino, node.gpu, CuMask(0xFF, enforced=True))
    one, free = node.caller(masks["a"]), node.caller(node.cgroup("other"))
    queue, others = one.do("create_queue", node.kfd_id), free.do("create_queue", node.kfd_id)
    assert one.refused("set_cu_mask", queue, 0xF0) == "EACCES"
    assert one.refused("set_cu_mask", queue, 0xF) == ""
    assert free.refused("set_cu_mask", others, 0xFFFFFFFF) == ""
    assert node.maps.cu_masks()[masks["b"].stat().st_ino, node.gpu] == CuMask(0xF0, True)


@pytest.mark.probes
def test_without_the_drivers_types_queues_are_not_followed_and_none_is_refused(node: Node) -> None:
    caller = node.caller(box_with(node, enforced=True))
    wider = node.counted("cu_mask_wider")
    queue = caller.do("create_queue", node.kfd_id)
    time.sleep(GRACE_SECONDS)
    caller.do("create_queue", node.kfd_id)
    caller.do("set_cu_mask", queue, 1 << 5)
    assert node.counted("cu_mask_wider") == wider
    assert node.maps.fill()["queues"][0] == 0
    assert node.maps.events() == []


def test_a_mask_goes_with_its_cgroup_whether_or_not_a_daemon_runs(node: Node) -> None:
    box = node.cgroup("box", MIB)
    inner = box / "inner"
    inner.mkdir()
    number = inner.stat().st_ino
    node.maps.set_limit(number, node.gpu, MIB)
    node.maps.set_cu_mask(number, node.gpu, CuMask(SLICE))
    assert node.maps.cu_masks() == {(number, node.gpu): CuMask(SLICE)}
    inner.rmdir()
    assert node.maps.cu_masks() == {}
    assert not node.maps.delete_cu_mask(number, node.gpu)
