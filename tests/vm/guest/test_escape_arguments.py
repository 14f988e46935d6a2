# SPDX-License-Identifier: Apache-2.0
"""Ways to more than the share by what a call's arguments are, and when. See docs/limits.md.

Words of the caller's own making, 32-bit calls, odd sizes and threads that race are in
``test_gate.py``, sizes switched by a thread that is lucky in ``test_gate_switch.py``. Here the page
fault is the attacker's: the gate has read one half when the attacker changes it.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bpf import loader
from bpf.decode import Counter
from enforcer.model import MIB
from tests.vm.guest import truth
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
    held_up,
)
from tests.vm.guest.hostile import (
    KFD_ALLOC_SHORTER,
    SHARE,
    Share,
    dies,
    gem_arguments,
    kfd_arguments,
    kfd_arguments_shorter,
)
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bpf.loader import Gate
    from enforcer.model import Gpu
    from tests.vm.guest.node import PlainClient

SMALL: Final = MIB
BIG: Final = 2 * SHARE
RESTARTS: Final = 20
SLIPS: Final = 2000


@pytest.fixture
def client(node: Node, share: Share, client_binary: Path) -> Iterator[PlainClient]:
    with client_in(share.box, client_binary, node.gpus[0]) as made:
        yield made


def torn(
    file: str, command: int, offset: int, before: bytes, after: bytes, by: str = "thread"
) -> str:
    return f"torn {file} {command:#x} {offset} {before.hex()} {after.hex()} {by}"


def kill_or_refusal(gate: Gate, node: Node, client: PlainClient, command: str) -> None:
    """Where the gate waits for arguments the switch is seen and punished; elsewhere refused."""
    killed, unread = node.counted("switched_killed"), node.counted("refused_arguments")
    if gate.asked_by == "lsm":
        assert dies(client, command)
        assert node.counted("switched_killed") == killed + 1
    else:
        assert client.refused(command) == "ENOMEM"
        assert node.counted("refused_arguments") == unread + 1


class TestTornArguments:
    def test_a_size_that_grows(
        self, gate: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        client.gem_create(SMALL)
        command = torn("drm", GEM_CREATE, 8, gem_arguments(SMALL), gem_arguments(BIG))
        kill_or_refusal(gate, node, client, command)
        share.hold(0 if gate.asked_by == "lsm" else SMALL)

    def test_a_size_that_grows_for_kfd(
        self, gate: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        before, after = (kfd_arguments(node.kfd_id, size) for size in (SMALL, BIG))
        kill_or_refusal(gate, node, client, torn("kfd", KFD_ALLOC, 16, before, after))
        share.hold(0)

    def test_system_memory_that_becomes_vram(
        self, gate: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        before, after = (gem_arguments(BIG, domain) for domain in (DOMAIN_GTT, DOMAIN_VRAM))
        kill_or_refusal(gate, node, client, torn("drm", GEM_CREATE, 24, before, after))
        share.hold(0)

    def test_a_picture_that_becomes_larger(
        self, gate: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        client.ask(f"open card {node.gpus[0].card}")
        before, after = (
            struct.pack("=IIIIIIQ", height, 1024, 32, 0, 0, 0, 0) for height in (64, 8192)
        )
        kill_or_refusal(gate, node, client, torn("drm", DUMB_CREATE, 8, before, after))
        share.hold(0)

    def test_a_question_that_becomes_a_move_into_vram(
        self, gate: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        handle = int(client.gem_create(BIG, "gtt"))
        before, after = (
            struct.pack("=IIQII", handle, op, DOMAIN_VRAM, 0, 0) for op in (0, SET_PLACEMENT)
        )
        kill_or_refusal(gate, node, client, torn("drm", GEM_OP, 8, before, after))
        share.hold(0)

    def test_the_event_says_what_was_asked_for_and_what_was_made(
        self, gate: Gate, node: Node, share: Share, client: PlainClient
    ) -> None:
        node.maps.events()
        command = torn("drm", GEM_CREATE, 8, gem_arguments(SMALL), gem_arguments(BIG))
        kill_or_refusal(gate, node, client, command)
        (event,) = node.maps.events()
        assert (event.cgroup, event.gpu) == (share.box.stat().st_ino, node.gpu)
        if gate.asked_by == "lsm":
            assert event.reason is Counter.SWITCHED_KILLED
            assert (event.asked, event.used) == (BIG, SMALL)
        else:
            assert event.reason is Counter.REFUSED_ARGUMENTS
        share.hold(0)


def test_a_handle_that_is_a_buffers_only_when_the_driver_looks(
    node: Node, share: Share, client: PlainClient
) -> None:
    """None when the gate is asked, the big buffer's in the driver, and none when it is done."""
    handle = int(client.gem_create(BIG, "gtt"))
    killed = node.counted("switched_killed")
    with held_up(node.gpus[0]):
        assert dies(client, f"slip {handle} {SLIPS}")
    assert node.counted("switched_killed") == killed + 1
    share.hold(0)


class TestAnotherGpu:
    """The number of the GPU is switched to that of one with a smaller share, or with none."""

    @pytest.fixture(params=[None, SMALL], ids=["no share", "a smaller share"])
    def other(
        self, request: pytest.FixtureRequest, node: Node, share: Share, client: PlainClient
    ) -> Gpu:
        """The second GPU, whose files the container has open too."""
        if request.param:
            node.maps.set_limit(share.box.stat().st_ino, node.keys[1], request.param)
        client.open(node.gpus[1])
        node.maps.events()
        return node.gpus[1]

    def switch(self, node: Node, other: Gpu, by: str) -> str:
        before, after = (
            kfd_arguments_shorter(number, SHARE) for number in (node.kfd_id, other.kfd_id)
        )
        return torn("kfd", KFD_ALLOC_SHORTER, 36, before, after, by)

    def test_what_was_made_there_is_gone_with_the_killed_process(
        self, gate: Gate, node: Node, share: Share, client: PlainClient, other: Gpu
    ) -> None:
        kill_or_refusal(gate, node, client, self.switch(node, other, "thread"))
        (event,) = node.maps.events()
        if gate.asked_by == "lsm":
            assert event.reason is Counter.SWITCHED_KILLED
            asked = share.box.stat().st_ino, node.keys[1], SHARE
            assert (event.cgroup, event.gpu, event.asked) == asked
        else:
            (share.box / "cgroup.kill").write_text("1")
        share.hold(0)
        wait_for(
            "the books to say so", lambda: all(one.empty for one in node.maps.usage().values())
        )

    def test_what_an_accomplice_keeps_there_is_booked(
        self, gate: Gate, node: Node, share: Share, client: PlainClient, other: Gpu
    ) -> None:
        kill_or_refusal(gate, node, client, self.switch(node, other, "vm"))
        if gate.asked_by == "lsm":
            usage = node.usage(share.box, node.keys[1])
            assert (usage.requested, usage.resident, usage.reserved) == (SHARE, SHARE, 0)
            assert truth.buffers(other.bdf) == SHARE
            assert node.usage(share.box).requested == 0
        (share.box / "cgroup.kill").write_text("1")
        share.hold(0)
        wait_for(
            "the books to say so", lambda: all(one.empty for one in node.maps.usage().values())
        )


def test_a_call_that_is_held_up_for_ever_holds_up_no_update(
    gate: Gate, node: Node, share: Share, client: PlainClient
) -> None:
    if gate.asked_by != "lsm":
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
    @pytest.mark.parametrize("how", ["dontneed", "mremap", "dontunmap", "punch", "dup"])
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


@pytest.mark.parametrize("call", ["kfd", "gem"])
def test_a_supervisor_that_rewrites_the_arguments_of_a_call_it_held_up_by_seccomp(
    node: Node, share: Share, client: PlainClient, call: str
) -> None:
    def notify(before: int, after: int) -> str:
        if call == "kfd":
            words = [kfd_arguments(node.kfd_id, size).hex() for size in (before, after)]
            return f"notify kfd {KFD_ALLOC:#x} {' '.join(words)}"
        words = [gem_arguments(size).hex() for size in (before, after)]
        return f"notify drm {GEM_CREATE:#x} {' '.join(words)}"

    client.gem_create(SHARE - 2 * SMALL)
    assert client.refused(notify(SMALL, BIG)) == "ENOMEM"
    assert client.refused(notify(BIG, 2 * SMALL)) == ""
    share.hold(SHARE)


@pytest.mark.parametrize("call", ["kfd", "gem"])
def test_signals_that_have_a_call_begun_anew_again_and_again(
    node: Node, share: Share, client: PlainClient, call: str
) -> None:
    """While the driver waits for something, as it does where it has to make room."""
    made = f"kfd-alloc {node.kfd_id} {SHARE}" if call == "kfd" else f"gem-create {SHARE} vram"
    before = node.counted("given_back")
    with ThreadPoolExecutor(1) as pool:
        with held_up(node.gpus[0]):
            answer = pool.submit(client.refused, f"interrupted {made}")
            wait_for("restarts", lambda: node.counted("given_back") >= before + RESTARTS, 60)
            assert node.usage(share.box).peak == SHARE
        assert answer.result(60) == ""
    assert client.refused("gem-create 1 vram") == "ENOMEM"
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
