# SPDX-License-Identifier: Apache-2.0
"""System buffers that are given a place in VRAM after they were made (GEM_OP, SET_PLACEMENT)."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from bpf import loader
from enforcer.model import MIB
from tests.vm.guest.caller import (
    DOMAIN_GTT,
    DOMAIN_VRAM,
    GEM_OP,
    SET_PLACEMENT,
)
from tests.vm.guest.gatenode import OBJECTS, PINS, Node, client_in, held_up, settled

if TYPE_CHECKING:
    from pathlib import Path


MOST_HANDLES: Final = 130
"""More than one level of the kernel's tree of handles holds."""


def test_it_is_charged_by_its_size_until_the_buffer_ends(node: Node) -> None:
    box = node.cgroup("box", 8 * MIB)
    caller = node.caller(box)
    handles = [caller.do("gem_create", node.render, 4 * MIB, DOMAIN_GTT) for _ in range(3)]
    assert node.usage(box).requested == 0
    for handle in handles[:2]:
        caller.do("set_placement", node.render, handle, DOMAIN_VRAM)
    usage = node.usage(box)
    assert (usage.requested, usage.reserved, usage.refusals) == (8 * MIB, 0, 0)
    assert caller.refused("set_placement", node.render, handles[2], DOMAIN_VRAM) == "ENOMEM"
    assert (node.usage(box).refusals, node.usage(box).refused_bytes) == (1, 4 * MIB)
    # Again, or back and again: it is on record.
    for domains in (DOMAIN_VRAM, DOMAIN_GTT, DOMAIN_VRAM | DOMAIN_GTT):
        caller.do("set_placement", node.render, handles[0], domains)
    assert (node.usage(box).requested, node.usage(box).reserved) == (8 * MIB, 0)
    caller.do("gem_close", node.render, handles[0])
    assert settled(lambda: node.usage(box).requested == 4 * MIB)
    caller.do("set_placement", node.render, handles[2], DOMAIN_VRAM)
    caller.end()
    assert settled(lambda: node.usage(box).empty), node.usage(box)
    assert node.counted("unfollowed") == 0


def test_a_buffer_that_was_made_in_vram_costs_nothing_more(node: Node) -> None:
    box = node.cgroup("box", 4 * MIB)
    caller = node.caller(box)
    handle = caller.do("gem_create", node.render, 4 * MIB)
    caller.do("set_placement", node.render, handle, DOMAIN_GTT)
    caller.do("set_placement", node.render, handle, DOMAIN_VRAM)
    assert node.usage(box).requested == 4 * MIB


def test_each_of_many_handles_is_found_with_its_own_size(node: Node) -> None:
    box = node.cgroup("box", 1 << 40)
    caller = node.caller(box)
    pages = range(1, MOST_HANDLES + 1)
    handles = [caller.do("gem_create", node.render, n * 4096, DOMAIN_GTT) for n in pages]
    expected = 0
    for n, handle in zip(pages, handles, strict=True):
        caller.do("set_placement", node.render, handle, DOMAIN_VRAM)
        expected += n * 4096
        assert node.usage(box).requested == expected


def test_one_that_waits_in_the_driver_while_the_ledger_is_replaced_is_charged(node: Node) -> None:
    box = node.cgroup("box", 4 * MIB)
    caller = node.caller(box)
    handle = caller.do("gem_create", node.render, 4 * MIB, DOMAIN_GTT)
    with ThreadPoolExecutor(1) as pool:
        with held_up(node.gpus[0]):
            placing = pool.submit(caller.do, "set_placement", node.render, handle, DOMAIN_VRAM)
            assert settled(lambda: node.maps.usage() != {} and node.usage(box).requested > 0)
            loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
            assert not placing.done()
        placing.result()
    # The next call is none that the one before left anything to.
    assert caller.refused("gem_create", node.render, 4096) == "ENOMEM"
    assert (node.usage(box).requested, node.usage(box).reserved) == (4 * MIB, 0)
    caller.do("gem_close", node.render, handle)
    assert settled(lambda: node.usage(box).requested == 0), node.usage(box)


@pytest.mark.parametrize("handle", [0, 2, 63, 64, 4096, 0xFFFFFFFF])
def test_a_handle_that_is_none_is_the_drivers_to_answer(node: Node, handle: int) -> None:
    box = node.cgroup("box", 4 * MIB)
    caller = node.caller(box)
    caller.do("gem_create", node.render, 4096, DOMAIN_GTT)
    assert caller.refused("set_placement", node.render, handle, DOMAIN_VRAM) == "ENOENT"
    assert (node.usage(box).requested, node.usage(box).reserved) == (0, 0)


def test_what_moves_to_vram_with_its_next_use_is_resident_then(
    node: Node, client_binary: Path
) -> None:
    box = node.cgroup("box", 8 * MIB)
    with client_in(box, client_binary, node.gpus[0]) as client:
        handle = client.gem_create(4 * MIB, "gtt")
        placement = struct.pack("=IIQII", int(handle), SET_PLACEMENT, DOMAIN_VRAM, 0, 0)
        client.ask(f"ioctl drm {GEM_OP:#x} {placement.hex()}")
        before = node.usage(box)
        assert (before.requested, before.resident) == (4 * MIB, 0)
        client.ask(f"cs {handle}")
        assert node.usage(box).resident == 4 * MIB
    assert settled(lambda: node.usage(box).empty), node.usage(box)
