# SPDX-License-Identifier: Apache-2.0
"""Ways to more than the share by who makes the call, and from where. See docs/limits.md.

Cgroups made below the container, and threads of one process that race, are in ``test_gate.py``.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.model import MIB
from tests.vm.guest import truth
from tests.vm.guest.gatenode import (
    CGROUPS,
    Node,
    client_in,
    held_up,
    settled,
)
from tests.vm.guest.hostile import SHARE, Share
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.vm.guest.node import PlainClient

HALF: Final = SHARE // 2
CHUNK: Final = 256 * 1024
CROWD: Final = 24
"""Processes that interrupt each other, and the calls of each."""
CALLS: Final = 100
DEEP: Final = 24
"""More cgroups below one another than the gate looks at from the root down."""


@pytest.fixture
def client(node: Node, share: Share, client_binary: Path) -> Iterator[PlainClient]:
    """It has half of the share."""
    with client_in(share.box, client_binary, node.gpus[0]) as made:
        made.gem_create(HALF)
        yield made


def fills(client: PlainClient, before: str = "") -> int:
    """How much more it gets on the render node."""
    answer = client.ask(f"{before}fill gem {CHUNK}")
    assert answer["errno"] == "ENOMEM"
    return int(answer["bytes"])


def gives_back(node: Node, share: Share, client: PlainClient) -> None:
    """All but the client's half, and with it the rest; nobody ever had more than the share."""
    share.hold(HALF)
    lost = share.lost()
    assert node.usage(share.box).peak <= SHARE
    assert fills(client) == (HALF - lost) // CHUNK * CHUNK
    client.finish()
    share.forget()
    share.hold(0)
    wait_for("an empty GPU", lambda: not truth.in_vram(node.gpus[0].bdf).total(), 30)


class TestAnotherProcess:
    @pytest.mark.parametrize("kind", ["fork", "clone --", "clone vm --", "clone files --"])
    def test_a_child_of_any_kind_gets_what_is_left(
        self, share: Share, client: PlainClient, kind: str
    ) -> None:
        assert fills(client, f"{kind} ") == HALF
        share.hold(SHARE)

    def test_a_sibling_made_by_the_child(self, share: Share, client: PlainClient) -> None:
        assert fills(client, "fork clone parent -- ") == HALF
        share.hold(SHARE)

    def test_another_program(self, node: Node, share: Share, client: PlainClient) -> None:
        drm = client.ask("exec")["fd"]
        client.open(node.gpus[0])
        client.kfd_alloc(node.gpus[0], CHUNK)
        client.ask(f"use drm {drm}")
        assert fills(client) == HALF - CHUNK
        share.hold(SHARE)

    def test_a_process_whose_first_thread_has_ended(
        self, share: Share, client: PlainClient
    ) -> None:
        client.ask("leave-leader")
        assert fills(client) == HALF
        share.hold(SHARE)

    @pytest.mark.parametrize("call", ["kfd", "gem"])
    def test_very_many_at_once(
        self, node: Node, share: Share, client: PlainClient, call: str
    ) -> None:
        target = f"kfd {node.kfd_id}" if call == "kfd" else "gem"
        assert int(client.ask(f"bomb 24 {target} {CHUNK}")["bytes"]) == HALF
        share.hold(SHARE)
        client.ask("reap")
        # What came through the file they shared with their parent stays there.
        share.hold(HALF if call == "kfd" else SHARE)


class TestAnotherCgroup:
    def test_a_child_born_in_a_cgroup_below(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        below = node.cgroup("box/below")
        assert fills(client, f"clone into={below} -- ") == HALF
        share.hold(SHARE)

    def test_deeper_than_the_gate_looks(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        path = "box"
        for _ in range(DEEP):
            path += "/below"
            node.cgroup(path)
        client.ask(f"enter {CGROUPS / path}")
        assert fills(client) == HALF
        share.hold(SHARE)

    def test_a_thread_in_a_threaded_cgroup(self, share: Share, client: PlainClient) -> None:
        below = share.box / "threads"
        below.mkdir()
        (below / "cgroup.type").write_text("threaded")
        (below / "cgroup.threads").write_text(str(client.process.pid))
        assert fills(client) == HALF
        (share.box / "cgroup.threads").write_text(str(client.process.pid))
        below.rmdir()
        share.hold(SHARE)

    def test_a_cgroup_namespace_and_what_can_be_mounted_in_it(
        self, share: Share, client: PlainClient, tmp_path: Path
    ) -> None:
        client.ask("unshare")
        client.ask(f"mount-cgroups {tmp_path}")
        # Its own cgroup is the top of all it sees; above that is no cgroup.
        client.ask(f"enter {tmp_path}")
        assert client.refused(f"enter {tmp_path}/..") == "ENOENT"
        assert str(client.process.pid) in (share.box / "cgroup.procs").read_text().split()
        assert fills(client) == HALF
        share.hold(SHARE)

    def test_a_process_moved_with_what_it_has(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        """By the node: nobody in the container can. What was made here stays charged here."""
        other = node.cgroup("other", SHARE)
        client.ask(f"enter {other}")
        assert fills(client) == SHARE
        assert node.usage(share.box).requested == HALF
        assert node.usage(other).requested == SHARE
        assert truth.buffers(node.gpus[0].bdf) == HALF + SHARE

    def test_a_process_moved_in_the_middle_of_a_call(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        """What it asked for here is charged here, though it is made over there."""
        other = node.cgroup("other", SHARE)
        with ThreadPoolExecutor(1) as pool:
            with held_up(node.gpus[0]):
                making = pool.submit(client.gem_create, HALF)
                wait_for("the call to be let pass", lambda: node.usage(share.box).reserved == HALF)
                (other / "cgroup.procs").write_text(str(client.process.pid))
            making.result(60)
        assert (other.stat().st_ino, node.gpu) not in node.maps.usage()
        share.hold(SHARE)


class TestDeath:
    def test_a_storm_of_kills_and_exits_in_the_middle_of_calls(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")
        client.ask(f"kill-storm {node.kfd_id} 24 {seed}")
        gives_back(node, share, client)

    def test_a_crowd_that_interrupt_each_other_anywhere(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        """At real-time priorities: also inside the programs, which the kernel then passes over."""
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")
        answer = client.ask(f"crowd {node.kfd_id} {CROWD} {CALLS} {seed}")
        assert int(answer["made"]) + int(answer["refused"]) == CROWD * CALLS
        gives_back(node, share, client)

    def test_cgroup_kill_in_the_middle_of_it(
        self, node: Node, share: Share, client: PlainClient
    ) -> None:
        client.stdin.write(f"kill-storm {node.kfd_id} 1000 1\n")
        client.stdin.flush()
        wait_for("a child at work", lambda: node.usage(share.box).peak > HALF)
        (share.box / "cgroup.kill").write_text("1")
        client.process.wait(timeout=60)
        share.hold(0)
        share.forget()
        share.hold(0)
        assert settled(lambda: not (share.box / "cgroup.procs").read_text())


@pytest.mark.parametrize("call", ["kfd", "gem"])
def test_the_tiniest_buffers(node: Node, share: Share, client: PlainClient, call: str) -> None:
    target = f"kfd {node.kfd_id}" if call == "kfd" else "gem"
    answer = client.ask(f"fill {target} 1")
    assert int(answer["count"]) == HALF // 4096
    assert node.usage(share.box).buffers >= HALF // 4096
    share.hold(SHARE)


def test_page_tables_are_shown_and_take_nothing_from_the_share(
    node: Node, share: Share, client: PlainClient
) -> None:
    handle = client.gem_create(2 * MIB)
    before = node.usage(share.box).page_tables
    for _ in range(64):
        client.ask(f"gem-map {handle} 4096")
    tables = node.usage(share.box).page_tables
    assert tables >= before + 32 * 4096
    assert tables == truth.page_tables(node.gpus[0].bdf)
    assert fills(client) == HALF - 2 * MIB
    share.hold(SHARE)
