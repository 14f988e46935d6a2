# SPDX-License-Identifier: Apache-2.0
"""A container that got beyond its share by a call the gate was not asked about.

The gate's programs pass it by, as if the kernel had passed over them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from bpf import decode, loader
from bpf.decode import Counter, Event, Policy
from enforcer.model import MIB
from tests.vm.guest.caller import ALLOC_GTT, DOMAIN_GTT
from tests.vm.guest.gatenode import Node, settled
from tests.vm.guest.services import ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.caller import Caller
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer

SHARE: Final = 16 * MIB
BIG: Final = SHARE + MIB
NO_GENERATION: Final = 1 << 31


@contextmanager
def nobody_asked(maps: loader.Maps) -> Iterator[None]:
    """The gate's programs take another generation for the one in charge."""
    gate = loader._Part.GATE
    before = maps._acting(gate)
    maps._set_acting(gate, NO_GENERATION, NO_GENERATION)
    try:
        yield
    finally:
        maps._set_acting(gate, *before)


def overrun(node: Node, caller: Caller) -> int:
    """The handle of a buffer of ``BIG`` bytes that nothing let pass."""
    assert caller.refused("gem_create", node.render, BIG) == "ENOMEM"
    node.maps.events()
    with nobody_asked(node.maps):
        return int(caller.do("gem_create", node.render, BIG))


def told(node: Node, reason: Counter) -> list[Event]:
    return [event for event in node.maps.events() if event.reason is reason]


def asks_for_nothing(node: Node, caller: Caller) -> list[str]:
    """System memory, from both drivers: what the answers are."""
    return [
        caller.refused("gem_create", node.render, MIB, DOMAIN_GTT),
        caller.refused("kfd_alloc", node.kfd_id, MIB, ALLOC_GTT),
    ]


def test_it_is_told_of_and_gets_nothing_more_until_it_is_within_its_share(node: Node) -> None:
    pod, box = node.cgroup("pod", SHARE), node.cgroup("pod/box", SHARE)
    caller = node.caller(box)
    sibling = node.caller(node.cgroup("pod/sibling", SHARE))
    other = node.caller(node.cgroup("other", SHARE))
    handle = overrun(node, caller)
    (event,) = told(node, Counter.OVERRAN)
    assert (event.pid, event.cgroup, event.gpu) == (caller.pid, box.stat().st_ino, node.gpu)
    assert (event.asked, event.used, event.limit) == (BIG, BIG, SHARE)

    assert asks_for_nothing(node, caller) == ["ENOMEM", "ENOMEM"]
    refusals = told(node, Counter.REFUSED_LIMIT)
    assert {one.cgroup for one in refusals} <= {box.stat().st_ino, pod.stat().st_ino}
    assert {(one.used, one.limit) for one in refusals} == {(BIG, SHARE)}
    assert len(refusals) == 2
    # Its pod is above its limit as well, whoever started in it since.
    assert asks_for_nothing(node, sibling) == ["ENOMEM", "ENOMEM"]
    assert asks_for_nothing(node, other) == ["", ""]

    caller.do("gem_close", node.render, handle)
    assert settled(lambda: node.usage(box).requested == 0)
    assert asks_for_nothing(node, caller) == asks_for_nothing(node, sibling) == ["", ""]
    # It is remembered, also when the daemon writes its limit again.
    node.maps.set_limit(box.stat().st_ino, node.gpu, SHARE)
    caller.do("gem_create", node.render, SHARE)
    node.maps.set_limit(box.stat().st_ino, node.gpu, SHARE - MIB)
    assert asks_for_nothing(node, caller) == ["ENOMEM", "ENOMEM"]


def test_a_limit_that_is_lowered_below_what_is_held_takes_no_system_memory(node: Node) -> None:
    box = node.cgroup("box", SHARE)
    caller = node.caller(box)
    caller.do("gem_create", node.render, SHARE)
    node.maps.set_limit(box.stat().st_ino, node.gpu, SHARE - MIB)
    assert asks_for_nothing(node, caller) == ["", ""]
    assert caller.refused("gem_create", node.render, 1) == "ENOMEM"


def test_where_that_is_only_reported_nothing_is_refused(node: Node) -> None:
    box = node.cgroup("box", 2 * BIG)
    caller = node.caller(box)
    node.maps.set_policy(Policy(kill_switchers=False))
    node.maps.set_limit(box.stat().st_ino, node.gpu, SHARE)
    overrun(node, caller)
    assert len(told(node, Counter.OVERRAN)) == 1
    assert asks_for_nothing(node, caller) == ["", ""]


def test_such_a_buffer_and_its_file_go_to_no_other_container(node: Node) -> None:
    one, two = node.cgroup("one", SHARE), node.cgroup("two", SHARE)
    maker, taker = node.caller(one), node.caller(two)
    pass_on(maker, taker, maker.do("descriptor", node.render))
    handle = overrun(node, maker)
    buffer = maker.do("prime_export", node.render, handle)
    opened = maker.do("descriptor", node.render)
    for descriptor in (buffer, opened):
        with pytest.raises(OSError, match="Permission denied"):
            pass_on(maker, taker, descriptor)
    maker.do("prime_import", node.render, buffer)
    # However it came there: it is not imported.
    (two / "cgroup.procs").write_text(str(maker.pid))
    assert maker.refused("prime_import", node.render, buffer) == "ENOMEM"
    (event,) = told(node, Counter.REFUSED_IMPORT)
    assert (event.cgroup, event.asked) == (two.stat().st_ino, BIG)


def pass_on(giver: Caller, taker: Caller, descriptor: int) -> int:
    """Over a socket; the taker's descriptor. Raises OSError if it got none."""
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(taker.do, "take", "overrun")
        giver.do("give", "overrun", descriptor)
        return int(taken.result(30))


def test_the_enforcer_ends_the_container(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, SHARE // MIB)
    size = SHARE + 4 * MIB  # within the room that dmem leaves for page tables
    assert one.client.refused(f"gem-create {size} vram") == "ENOMEM"
    with loader.open_maps() as maps, nobody_asked(maps):
        one.client.gem_create(size)
    assert one.container.process.wait(timeout=60) != 0
    wait_for("all given back", lambda: ledger(one.pod.cgroup_id, gpu.bdf).requested == 0, 30)
    lines = decode.REASONS[Counter.OVERRAN], "above its limit"
    wait_for("what happened", lambda: all(one in enforcer.log.read_text() for one in lines))
