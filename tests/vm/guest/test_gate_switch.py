# SPDX-License-Identifier: Apache-2.0
"""Arguments switched between the gate's look and the driver's: who does it is killed."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

from bpf.decode import Counter, Policy
from enforcer.model import MIB
from tests.vm.guest import truth
from tests.vm.guest.gatenode import Node, client_in, settled
from tests.vm.guest.hostile import dies

if TYPE_CHECKING:
    from pathlib import Path

    from tests.vm.guest.node import PlainClient

SMALL: Final = 4096
BIG: Final = MIB
SECONDS: Final = 90.0
"""For the kernel to stop one thread between the two looks and run the other."""


def race(client: PlainClient, words: str) -> bool:
    """Some tries; False if the client did not live through them."""
    try:
        client.ask(f"race {words} {SMALL} {BIG} 2000")
    except (AssertionError, BrokenPipeError):
        return False
    return True


@pytest.mark.parametrize("call", ["kfd", "gem"])
def test_who_has_more_made_than_it_asked_for_is_killed_and_all_comes_back(
    node: Node, client_binary: Path, call: str
) -> None:
    box = node.cgroup("box", 64 * MIB)
    words = f"kfd {node.kfd_id}" if call == "kfd" else "gem"
    killed = node.counted("switched_killed")
    end = time.monotonic() + SECONDS
    with client_in(box, client_binary, node.gpus[0]) as client:
        while race(client, words):
            assert time.monotonic() < end, node.maps.counters()
        assert client.process.wait(timeout=60) == -signal.SIGKILL
    assert node.counted("switched_killed") > killed
    events = [event for event in node.maps.events() if not event.refused]
    assert {event.reason for event in events} == {Counter.SWITCHED_KILLED}
    assert {event.cgroup for event in events} == {box.stat().st_ino}
    assert all(event.used < event.asked <= BIG for event in events)
    assert settled(lambda: node.usage(box).empty), node.usage(box)


def test_who_has_it_made_on_another_gpu_than_it_asked_for_is_killed_and_all_comes_back(
    node: Node, client_binary: Path
) -> None:
    """On one of which its container has no share, and where the gate would refuse."""
    box = node.cgroup("box", 64 * MIB)
    other = node.gpus[1]
    end = time.monotonic() + SECONDS
    with client_in(box, client_binary, node.gpus[0]) as client:
        client.open(other)
        assert client.refused(f"kfd-alloc {other.kfd_id} {SMALL}") == "ENOMEM"
        node.maps.events()
        while not dies(client, f"waver {node.kfd_id} {other.kfd_id} {BIG} 2000"):
            assert time.monotonic() < end, node.maps.counters()
        assert client.process.wait(timeout=60) == -signal.SIGKILL
    (event,) = [event for event in node.maps.events() if not event.refused]
    assert event.reason is Counter.SWITCHED_KILLED
    assert event.cgroup == box.stat().st_ino
    assert settled(lambda: all(one.empty for one in node.maps.usage().values())), node.maps.usage()
    assert settled(lambda: truth.buffers(other.bdf) == 0)


@pytest.mark.parametrize("limit", [64 * MIB, None], ids=["report only", "whole GPU"])
def test_it_lives_where_that_is_only_reported_or_nothing_is_limited(
    node: Node, client_binary: Path, limit: int | None
) -> None:
    box = node.cgroup("box", limit, whole=True)
    node.maps.set_policy(Policy(kill_switchers=limit is None))
    assert node.maps.policy() == Policy(kill_switchers=limit is None)
    killed, spared = node.counted("switched_killed"), node.counted("switched_spared")

    def taken() -> int:
        return node.counted("settled_up") + node.counted("unreserved")

    before = taken()
    end = time.monotonic() + SECONDS
    with client_in(box, client_binary, node.gpus[0]) as client:
        while taken() == before:
            assert race(client, "gem")
            assert time.monotonic() < end, node.maps.counters()
        assert (node.counted("switched_spared") > spared) == (limit is not None)
        usage = node.usage(box)
        assert usage.requested == usage.resident
        assert usage.reserved == 0
    assert node.counted("switched_killed") == killed


def test_who_asks_honestly_is_never_killed(node: Node, client_binary: Path) -> None:
    box = node.cgroup("box", 64 * MIB)
    before = [node.counted(name) for name in ("switched_killed", "switched_spared")]
    with client_in(box, client_binary, node.gpus[0]) as client:
        for size in (1, SMALL, BIG + 1, 64 * MIB, 65 * MIB):
            for command in (f"kfd-alloc {node.kfd_id} {size}", f"gem-create {size} vram"):
                with contextlib.suppress(Exception):
                    client.ask(command)
            client.ask("gem-create 4096 gtt")
    assert [node.counted(name) for name in ("switched_killed", "switched_spared")] == before
