# SPDX-License-Identifier: Apache-2.0
"""Ways to more than the share by what a call's arguments are, and when. See docs/limits.md.

Words of the caller's own making, 32-bit calls, odd sizes and threads that race are in
``test_gate.py``, sizes switched by a thread that is lucky in ``test_gate_switch.py``. Here the page
fault is the attacker's: the gate has read one half when the attacker changes it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bpf import loader
from bpf.decode import Counter
from enforcer.model import MIB
from tests.vm.guest.caller import (
    DOMAIN_GTT,
    DOMAIN_VRAM,
    DUMB_CREATE,
    GEM_CREATE,
    GEM_OP,
    KFD_ALLOC,
    SET_PLACEMENT,
)
from tests.vm.guest.gatenode import (
    OBJECTS,
    PINS,
    Node,
    client_in,
    fresh_node,
    loaded_parts,
)
from tests.vm.guest.hostile import SHARE, Share, dies, gem_arguments, kfd_arguments
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bpf.loader import Gate
    from enforcer.model import Gpu
    from tests.vm.guest.node import PlainClient

SMALL: Final = MIB
BIG: Final = 2 * SHARE


@pytest.fixture(scope="module")
def loaded() -> Iterator[Gate]:
    with loaded_parts() as gate:
        yield gate


@pytest.fixture
def node(loaded: Gate, gpus: list[Gpu]) -> Iterator[Node]:
    with fresh_node(gpus) as made:
        yield made


@pytest.fixture
def share(node: Node) -> Share:
    return Share(node, node.cgroup("box", SHARE))


@pytest.fixture
def client(node: Node, share: Share, client_binary: Path) -> Iterator[PlainClient]:
    with client_in(share.box, client_binary, node.gpus[0]) as made:
        yield made


def torn(
    file: str, command: int, offset: int, before: bytes, after: bytes, by: str = "thread"
) -> str:
    return f"torn {file} {command:#x} {offset} {before.hex()} {after.hex()} {by}"


def kill_or_refusal(loaded: Gate, node: Node, client: PlainClient, command: str) -> None:
    """Where the gate waits for arguments the switch is seen and punished; elsewhere refused."""
    killed, unread = node.counted("switched_killed"), node.counted("refused_arguments")
    if loaded.asked_by == "lsm":
        assert dies(client, command)
        assert node.counted("switched_killed") == killed + 1
    else:
        assert client.refused(command) == "ENOMEM"
        assert node.counted("refused_arguments") == unread + 1


class TestTornArguments:
    def test_a_size_that_grows(
        self, loaded: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        client.gem_create(SMALL)
        command = torn("drm", GEM_CREATE, 8, gem_arguments(SMALL), gem_arguments(BIG))
        kill_or_refusal(loaded, node, client, command)
        share.hold(0 if loaded.asked_by == "lsm" else SMALL)

    def test_a_size_that_grows_for_kfd(
        self, loaded: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        before, after = (kfd_arguments(node.kfd_id, size) for size in (SMALL, BIG))
        kill_or_refusal(loaded, node, client, torn("kfd", KFD_ALLOC, 16, before, after))
        share.hold(0)

    def test_system_memory_that_becomes_vram(
        self, loaded: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        before, after = (gem_arguments(BIG, domain) for domain in (DOMAIN_GTT, DOMAIN_VRAM))
        kill_or_refusal(loaded, node, client, torn("drm", GEM_CREATE, 24, before, after))
        share.hold(0)

    def test_a_picture_that_becomes_larger(
        self, loaded: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        client.ask(f"open card {node.gpus[0].card}")
        before, after = (
            struct.pack("=IIIIIIQ", height, 1024, 32, 0, 0, 0, 0) for height in (64, 8192)
        )
        kill_or_refusal(loaded, node, client, torn("drm", DUMB_CREATE, 8, before, after))
        share.hold(0)

    def test_a_question_that_becomes_a_move_into_vram(
        self, loaded: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        handle = int(client.gem_create(BIG, "gtt"))
        before, after = (
            struct.pack("=IIQII", handle, op, DOMAIN_VRAM, 0, 0) for op in (0, SET_PLACEMENT)
        )
        kill_or_refusal(loaded, node, client, torn("drm", GEM_OP, 8, before, after))
        share.hold(0)

    def test_the_event_says_what_was_asked_for_and_what_was_made(
        self, loaded: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        node.maps.events()
        command = torn("drm", GEM_CREATE, 8, gem_arguments(SMALL), gem_arguments(BIG))
        kill_or_refusal(loaded, node, client, command)
        (event,) = node.maps.events()
        assert (event.cgroup, event.gpu) == (share.box.stat().st_ino, node.gpu)
        if loaded.asked_by == "lsm":
            assert event.reason is Counter.SWITCHED_KILLED
            assert (event.asked, event.used) == (BIG, SMALL)
        else:
            assert event.reason is Counter.REFUSED_ARGUMENTS
        share.hold(0)


def test_a_call_that_is_held_up_for_ever_holds_up_no_update(
    loaded: Gate, node: Node, share: Share, client: PlainClient
) -> None:
    if loaded.asked_by != "lsm":
        return  # elsewhere it is refused at once: the cases above
    arguments = gem_arguments(SMALL)
    client.stdin.write(torn("drm", GEM_CREATE, 8, arguments, arguments, "never") + "\n")
    client.stdin.flush()
    waits = Path(f"/proc/{client.process.pid}/wchan")
    wait_for("the call to wait", lambda: "userfault" in waits.read_text())
    again = loader.load_gate(OBJECTS / "gate.bpf.o", PINS)
    loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
    assert again.self_test()
    assert "userfault" in waits.read_text()
    client.process.kill()
    share.hold(0)


class TestArgumentsThatMove:
    @pytest.mark.parametrize("how", ["dontneed", "mremap", "dup"])
    @pytest.mark.parametrize("call", ["kfd", "gem"])
    def test_a_page_dropped_or_moved_and_a_file_exchanged_during_calls(
        self, node: Node, share: Share, client: PlainClient, how: str, call: str
    ) -> None:
        target = f"kfd {node.kfd_id}" if call == "kfd" else "gem"
        answer = client.ask(f"shake {how} {target} {SHARE // 32} 200")
        assert int(answer["made"]) > 0
        share.hold()
        assert client.ask(f"fill {target} 4096")["errno"] == "ENOMEM"
        share.hold(SHARE)
        client.finish()
        share.forget()
        share.hold(0)

    @pytest.mark.parametrize("call", ["kfd", "gem"])
    def test_arguments_written_by_another_process_through_proc_mem(
        self, node: Node, share: Share, client: PlainClient, call: str
    ) -> None:
        target = f"kfd {node.kfd_id}" if call == "kfd" else "gem"
        if not dies(client, f"shake mem {target} {SHARE // 8} 200"):
            assert client.ask(f"fill {target} 4096")["errno"] == "ENOMEM"
        share.hold()


def test_a_tracer_that_rewrites_the_arguments_at_the_entry_of_the_call(
    share: Share, client: PlainClient
) -> None:
    client.gem_create(SHARE - 2 * SMALL)
    assert client.refused(f"poke {SMALL} {BIG}") == "ENOMEM"
    assert client.refused(f"poke {SMALL} {2 * SMALL}") == ""
    share.hold(SHARE)


@pytest.mark.parametrize("file", ["kfd", "drm"])
def test_io_uring_has_no_way_to_the_driver(
    node: Node, share: Share, client: PlainClient, file: str
) -> None:
    if file == "kfd":
        command, arguments = KFD_ALLOC, kfd_arguments(node.kfd_id, SMALL)
    else:
        command, arguments = GEM_CREATE, gem_arguments(SMALL)
    assert client.refused(f"uring {file} {command:#x} {arguments.hex()}") == "EOPNOTSUPP"
    share.hold(0)
