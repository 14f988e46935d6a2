# SPDX-License-Identifier: Apache-2.0
"""Ways to more than the share with another container's help. See docs/limits.md.

What is passed over sockets and imported is in ``test_gate_passed.py``; here it is kept.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from bpf.decode import Policy
from enforcer.model import MIB
from tests.vm.guest import truth
from tests.vm.guest.gatenode import (
    CGROUPS,
    PAGE,
    Node,
    client_in,
    settled,
)
from tests.vm.guest.hostile import SHARE, Share
from tests.vm.guest.node import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bpf.loader import Maps
    from tests.vm.guest.node import PlainClient

GET_MAGIC: Final = 0x80046402
AUTH_MAGIC: Final = 0x40046411
GEM_FLINK: Final = 0xC008640A
GEM_OPEN: Final = 0xC010640B
SPARE: Final = 3
"""Buffers that can still be made in the test of the most."""
MOST: Final = {"tenant": (1 << 20) // 4, "node": (1 << 20) - 4096}
"""Buffers, by bpf/include/maps.h: of one tenant on one GPU, and of all."""


@pytest.fixture
def client(node: Node, share: Share, client_binary: Path) -> Iterator[PlainClient]:
    with client_in(share.box, client_binary, node.gpus[0]) as made:
        yield made


@pytest.fixture
def helper(node: Node, client_binary: Path) -> Iterator[PlainClient]:
    """In another container, with a share of its own."""
    box = node.cgroup("other", SHARE)
    with client_in(box, client_binary, node.gpus[0]) as made:
        yield made


def hand(giver: PlainClient, taker: PlainClient, fd: str) -> str:
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(taker.ask, "recv kept")
        giver.ask(f"send kept {fd}")
        return received.result(60)["fd"]


def test_what_another_container_keeps_for_it_stays_charged_after_a_restart(
    node: Node, client_binary: Path, helper: PlainClient
) -> None:
    """The container's cgroup is gone, the pod's is not."""
    pod = node.cgroup("pod", SHARE)
    first = CGROUPS / "pod/first"
    first.mkdir()
    node.maps.set_limit(first.stat().st_ino, node.gpu, SHARE)
    number = first.stat().st_ino
    with client_in(first, client_binary, node.gpus[0]) as client:
        fd = client.ask(f"prime-export {client.gem_create(SHARE)}")["fd"]
        kept = hand(client, helper, fd)
    assert settled(lambda: not (first / "cgroup.procs").read_text())
    first.rmdir()
    again = node.cgroup("pod/again", SHARE)
    with client_in(again, client_binary, node.gpus[0]) as client:
        assert client.refused("gem-create 1 vram") == "ENOMEM"
        assert node.usage(pod).requested == SHARE == truth.buffers(node.gpus[0].bdf)
        helper.ask(f"close {kept}")
        assert settled(lambda: node.usage(pod).requested == 0)
        client.gem_create(SHARE)
    assert settled(lambda: node.maps.delete_usage(number, node.gpu))


def test_two_containers_that_keep_each_others_buffers_have_two_shares(
    node: Node, share: Share, client: PlainClient, helper: PlainClient
) -> None:
    for giver, taker in ((client, helper), (helper, client)):
        fd = giver.ask(f"prime-export {giver.gem_create(SHARE)}")["fd"]
        taker.ask(f"prime-import {hand(giver, taker, fd)}")
    for one in (client, helper):
        assert one.refused("gem-create 1 vram") == "ENOMEM"
    assert truth.buffers(node.gpus[0].bdf) == 2 * SHARE
    assert node.usage(share.box).requested == SHARE


def test_a_buffer_found_by_its_global_name_stays_with_its_maker(
    node: Node, share: Share, client: PlainClient, helper: PlainClient
) -> None:
    """On card nodes only, for who the node's first opener vouches: no import, no policy asks."""
    number = struct.Struct("=II")
    for one in (client, helper):
        one.ask(f"open card {node.gpus[0].card}")
    magic = helper.ask(f"ioctl drm {GET_MAGIC:#x} {bytes(4).hex()}")["data"]
    client.ask(f"ioctl drm {AUTH_MAGIC:#x} {magic}")
    handle = int(client.gem_create(SHARE))
    answer = client.ask(f"ioctl drm {GEM_FLINK:#x} {number.pack(handle, 0).hex()}")["data"]
    _, name = number.unpack(bytes.fromhex(answer))
    arguments = struct.pack("=IIQ", name, 0, 0).hex()
    helper.ask(f"ioctl drm {GEM_OPEN:#x} {arguments}")
    client.finish()
    # Its page table goes when the last of its files does.
    assert settled(lambda: truth.buffers(node.gpus[0].bdf) == SHARE)
    assert node.usage(share.box).requested == SHARE
    helper.finish()
    share.hold(0)


def test_an_open_file_taken_from_another_process_is_one_that_was_passed(
    node: Node, share: Share, client: PlainClient, helper: PlainClient
) -> None:
    theirs = helper.ask(f"open render {node.gpus[0].render}")["fd"]
    helper.gem_create(SHARE)
    taken = client.ask(f"pidfd-getfd {helper.process.pid} {theirs}")["fd"]
    client.ask(f"use drm {taken}")
    # Whoever makes the call pays, whosever file it is.
    client.gem_create(SHARE)
    assert client.refused("gem-create 1 vram") == "ENOMEM"
    assert node.usage(share.box).requested == SHARE
    node.maps.set_policy(Policy(refuse_passed=True))
    assert client.refused(f"pidfd-getfd {helper.process.pid} {theirs}") == "EACCES"


def test_an_open_file_that_a_supervisor_puts_into_a_process_is_one_that_was_passed(
    node: Node, share: Share, client: PlainClient, helper: PlainClient
) -> None:
    """By seccomp: the supervisor is in another container, and answers for a call with a file."""

    def supervised(fd: str) -> tuple[str, str]:
        """What came of it for the supervisor and for the one who called."""
        listener = hand(client, helper, client.ask("listen")["fd"])
        outcome = helper.refused(f"inject {listener} {fd}")
        helper.ask(f"close {listener}")
        try:
            return outcome, client.ask("notified")["fd"]
        except RefusedError as error:
            return outcome, error.errno

    theirs = helper.ask(f"open render {node.gpus[0].render}")["fd"]
    helper.gem_create(SHARE)
    outcome, fd = supervised(theirs)
    assert outcome == ""
    client.ask(f"use drm {fd}")
    client.gem_create(SHARE)
    assert client.refused("gem-create 1 vram") == "ENOMEM"
    assert node.usage(share.box).requested == SHARE
    node.maps.set_policy(Policy(refuse_passed=True))
    assert supervised(theirs) == ("EACCES", "EACCES")


def test_kfd_serves_nobody_but_the_process_that_opened_it(
    node: Node, share: Share, client: PlainClient, helper: PlainClient
) -> None:
    theirs = helper.ask("open kfd")["fd"]
    taken = client.ask(f"pidfd-getfd {helper.process.pid} {theirs}")["fd"]
    client.ask(f"use kfd {taken}")
    assert client.refused(f"kfd-alloc {node.kfd_id} {PAGE}") == "EBADF"
    share.hold(0)


def test_a_file_that_was_passed_and_is_opened_anew_by_way_of_proc_is_its_own(
    node: Node, share: Share, client: PlainClient, helper: PlainClient
) -> None:
    kept = hand(helper, client, helper.ask(f"open render {node.gpus[0].render}")["fd"])
    client.ask(f"use drm {client.ask(f'reopen {kept}')['fd']}")
    client.ask(f"close {kept}")
    assert client.ask(f"fill gem {MIB}")["bytes"] == str(SHARE)
    share.hold(SHARE)


@contextmanager
def nearly_full(maps: Maps, share: Share, what: str) -> Iterator[None]:
    """So many buffers on the books that ``SPARE`` can follow."""
    if what == "tenant":
        name, key, at = "usage", struct.pack("=QQ", share.box.stat().st_ino, share.node.gpu), 32
    else:
        name, key, at = "population", struct.pack("=I", 0), 0
    pinned = maps._maps[name]

    def count(by: int | None) -> int:
        value = maps._lib.lookup(pinned.fd, key, pinned.value_size)
        assert value is not None
        (now,) = struct.unpack_from("=q", value, at)
        by = MOST[what] - SPARE - now if by is None else by
        value = value[:at] + struct.pack("=q", now + by) + value[at + 8 :]
        maps._lib.update(pinned.fd, key, value, name)
        return by

    by = count(None)
    try:
        yield
    finally:
        count(-by)


@pytest.mark.parametrize("what", ["tenant", "node"])
def test_more_tiny_buffers_than_the_ledger_can_follow_are_refused(
    node: Node, share: Share, client: PlainClient, what: str
) -> None:
    """A million calls take an hour here: the counters are set to just before it."""
    client.gem_create(PAGE)
    before = node.counted("refused_buffers_full")
    with nearly_full(node.maps, share, what):
        assert int(client.ask(f"fill gem {PAGE}")["count"]) == SPARE
        assert node.counted("refused_buffers_full") == before + 1
        assert node.usage(share.box).requested == (SPARE + 1) * PAGE
    client.gem_create(MIB)
    share.hold((SPARE + 1) * PAGE + MIB)
