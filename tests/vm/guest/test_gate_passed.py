# SPDX-License-Identifier: Apache-2.0
"""Buffers and open files that one container hands to another: counted, or refused by policy."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from bpf.decode import Counter, Policy
from enforcer.model import MIB
from tests.vm.guest.gatenode import Node, client_in, settled
from tests.vm.guest.node import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.vm.guest.node import PlainClient

SIZE: Final = 4 * MIB
SECONDS: Final = 90.0
"""For the kernel to stop one thread between the two looks and run the other."""


@dataclass
class Pair:
    """A client in each of two containers, a second one in the first, and one in none."""

    makers: Path
    takers: Path
    maker: PlainClient
    taker: PlainClient
    sibling: PlainClient
    free: PlainClient


@pytest.fixture
def pair(node: Node, client_binary: Path) -> Iterator[Pair]:
    one, other = node.cgroup("one", 64 * MIB), node.cgroup("other", 64 * MIB)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(client_in(cgroup, client_binary, node.gpus[0]))
            for cgroup in (one, other, one, None)
        ]
        yield Pair(one, other, *clients)


def export(node: Node, maker: PlainClient, kind: str) -> str:
    """A new buffer's dma-buf; its descriptor."""
    if kind == "gem":
        return maker.ask(f"prime-export {maker.gem_create(SIZE)}")["fd"]
    return maker.ask(f"kfd-export {maker.kfd_alloc(node.gpus[0], SIZE)}")["fd"]


def hand(giver: PlainClient, taker: PlainClient, fd: str) -> str:
    """Over a socket; the taker's descriptor. Raises RefusedError if it got none."""
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(taker.ask, "recv passed")
        giver.ask(f"send passed {fd}")
        return received.result(30)["fd"]


@pytest.mark.parametrize("kind", ["gem", "kfd"])
def test_an_imported_buffer_stays_charged_to_its_maker_and_is_counted(
    node: Node, pair: Pair, kind: str
) -> None:
    fd = hand(pair.maker, pair.taker, export(node, pair.maker, kind))
    before = node.counted("imported")
    pair.taker.ask(f"prime-import {fd}")
    assert node.counted("imported") == before + 1
    pair.taker.ask(f"kfd-import {node.kfd_id} {fd}")
    assert node.counted("imported") == before + 2
    assert node.usage(pair.makers).requested == SIZE
    held = node.maps.usage().get((pair.takers.stat().st_ino, node.gpu))
    assert held is None or held.requested == 0
    assert [event for event in node.maps.events() if event.reason is Counter.REFUSED_IMPORT] == []
    pair.maker.finish()
    assert node.usage(pair.makers).requested == SIZE
    pair.taker.finish()
    assert settled(lambda: node.usage(pair.makers).requested == 0)


@pytest.mark.parametrize("kind", ["gem", "kfd"])
def test_another_containers_buffer_is_not_imported_where_that_is_refused(
    node: Node, pair: Pair, kind: str
) -> None:
    node.maps.set_policy(Policy(refuse_imports=True))
    own = export(node, pair.maker, kind)
    fd = hand(pair.maker, pair.taker, own)
    before = {name: node.counted(name) for name in ("imported", "refused_import")}
    assert pair.taker.refused(f"prime-import {fd}") == "ENOMEM"
    assert pair.taker.refused(f"kfd-import {node.kfd_id} {fd}") == "ENOMEM"
    events = [event for event in node.maps.events() if event.reason is Counter.REFUSED_IMPORT]
    assert [(event.cgroup, event.gpu, event.asked) for event in events] == [
        (pair.takers.stat().st_ino, node.gpu, SIZE)
    ] * 2
    pair.maker.ask(f"prime-import {own}")
    pair.sibling.ask(f"prime-import {hand(pair.maker, pair.sibling, own)}")
    pair.free.ask(f"prime-import {hand(pair.maker, pair.free, own)}")
    # What is refused is no import, whoever of the gate's programs is asked first.
    assert node.counted("imported") == before["imported"]
    assert node.counted("refused_import") == before["refused_import"] + 2
    # A descriptor that is none is the driver's to answer.
    assert pair.taker.refused("prime-import 1000") == "EBADF"


def test_who_swaps_the_descriptor_under_an_import_is_killed(node: Node) -> None:
    maker = node.caller(node.cgroup("one", 64 * MIB))
    taker = node.caller(node.cgroup("other", 64 * MIB))
    theirs = maker.do("prime_export", node.render, maker.do("gem_create", node.render, SIZE))
    own = taker.do("prime_export", node.render, taker.do("gem_create", node.render, SIZE))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(taker.do, "take", "swapped")
        maker.do("give", "swapped", theirs)
        fd = taken.result(30)
    node.maps.set_policy(Policy(refuse_imports=True))
    killed = node.counted("switched_killed")
    with pytest.raises(EOFError):
        print(taker.do("swap", node.render, own, fd, SECONDS), "refused", node.maps.counters())
    assert node.counted("switched_killed") > killed
    (event,) = [event for event in node.maps.events() if not event.refused]
    assert (event.pid, event.asked, event.used) == (taker.pid, SIZE, 0)


def test_what_is_passed_between_containers_is_kept_back_where_that_is_refused(
    node: Node, pair: Pair
) -> None:
    buffer = export(node, pair.maker, "gem")
    opened = pair.maker.ask(f"open render {node.gpus[0].render}")["fd"]
    theirs = pair.free.ask(f"open render {node.gpus[0].render}")["fd"]
    hand(pair.maker, pair.taker, opened)  # the default
    node.maps.set_policy(Policy(refuse_passed=True))
    before = node.counted("refused_passed")
    for fd in (buffer, opened):
        with pytest.raises(RefusedError, match="EACCES"):
            hand(pair.maker, pair.taker, fd)
    assert node.counted("refused_passed") == before + 2
    for fd in (buffer, opened):
        hand(pair.maker, pair.sibling, fd)
        hand(pair.maker, pair.free, fd)
    hand(pair.free, pair.taker, theirs)
    assert node.counted("refused_passed") == before + 2
    assert node.maps.fill()["clients"][0] > 0
