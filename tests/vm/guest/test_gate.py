# SPDX-License-Identifier: Apache-2.0
"""The gate and the ledger by themselves: no enforcer, limits written straight into the maps."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import time
from pathlib import Path
from typing import Final

import pytest

from bpf import loader
from bpf.decode import Policy
from bpf.libbpf import BpfError
from enforcer.layers import never_possible
from enforcer.model import MIB
from tests.vm.guest.caller import (
    ALLOC_AQL,
    ALLOC_GTT,
    ALLOC_VRAM,
    DOMAIN_GTT,
    DOMAIN_VRAM,
    GEM_CREATE,
    KFD_ALLOC,
)
from tests.vm.guest.gatenode import CGROUPS, OBJECTS, PINS, Node, settled
from tests.vm.guest.services import is_module

PAGE: Final = 4096


class TestTheByte:
    def test_kfd_is_refused_at_the_exact_byte_and_admitted_again_after_a_free(
        self, node: Node
    ) -> None:
        box = node.cgroup("box", 64 * MIB)
        caller = node.caller(box)
        handles = [caller.do("kfd_alloc", node.kfd_id, 16 * MIB) for _ in range(4)]
        assert caller.refused("kfd_alloc", node.kfd_id, 1) == "ENOMEM"
        usage = node.usage(box)
        assert (usage.requested, usage.reserved) == (64 * MIB, 0)
        assert (usage.resident, usage.peak) == (64 * MIB, 64 * MIB)
        assert (usage.refusals, usage.refused_bytes) == (1, PAGE)
        caller.do("kfd_free", handles[0])
        assert settled(lambda: node.usage(box).requested == 48 * MIB)
        caller.do("kfd_alloc", node.kfd_id, 16 * MIB)
        assert caller.refused("kfd_alloc", node.kfd_id, PAGE) == "ENOMEM"

    @pytest.mark.parametrize("spare", [0, 1, PAGE - 1])
    def test_gem_is_held_to_a_limit_that_is_no_whole_page(self, node: Node, spare: int) -> None:
        box = node.cgroup("box", 16 * MIB + spare)
        caller = node.caller(box)
        handle = caller.do("gem_create", node.render, 16 * MIB - PAGE + 1)
        assert node.usage(box).requested == 16 * MIB
        assert caller.refused("gem_create", node.render, 1) == "ENOMEM"
        caller.do("gem_close", node.render, handle)
        assert settled(lambda: node.usage(box).requested == 0)

    def test_sizes_near_the_end_of_the_range_are_refused_and_change_nothing(
        self, node: Node
    ) -> None:
        for name, limit in (("box", 16 * MIB), ("whole", None)):
            box = node.cgroup(name, limit, whole=True)
            caller = node.caller(box)
            for size in ((1 << 64) - 1, (1 << 64) - PAGE, 1 << 63, (1 << 62) + PAGE):
                assert caller.refused("kfd_alloc", node.kfd_id, size)
                assert caller.refused("gem_create", node.render, size)
            usage = node.usage(box)
            assert (usage.requested, usage.reserved) == (0, 0)

    def test_an_aql_buffer_costs_half_its_size(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 16 * MIB, ALLOC_VRAM | ALLOC_AQL)
        assert node.usage(box).requested == 8 * MIB
        assert caller.refused("kfd_alloc", node.kfd_id, 2 * PAGE, ALLOC_VRAM | ALLOC_AQL)

    def test_a_dumb_buffer_costs_what_the_driver_makes_of_it(self, node: Node) -> None:
        assert node.gpus[0].card is not None
        card = f"/dev/dri/card{node.gpus[0].card}"
        box = node.cgroup("box", 2 * MIB)
        caller = node.caller(box)
        caller.do("open", card)
        caller.do("dumb_create", card, 65, 100, 32)  # rows of 128 pixels
        assert node.usage(box).requested == 13 * PAGE
        assert caller.refused("dumb_create", card, 1024, 1024, 32) == "ENOMEM"

    def test_system_memory_costs_nothing(self, node: Node) -> None:
        box = node.cgroup("box", 0)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, MIB, ALLOC_GTT)
        caller.do("gem_create", node.render, MIB, DOMAIN_GTT)
        assert caller.refused("gem_create", node.render, 1, DOMAIN_VRAM | DOMAIN_GTT) == "ENOMEM"
        assert node.usage(box).requested == 0

    def test_of_threads_that_race_for_the_last_buffer_one_gets_it(self, node: Node) -> None:
        box = node.cgroup("box", 17 * MIB)
        caller = node.caller(box)
        caller.do("gem_create", node.render, 16 * MIB)
        assert caller.do("race", node.render, MIB, 16) == 1
        usage = node.usage(box)
        assert (usage.requested, usage.reserved, usage.refusals) == (17 * MIB, 0, 15)


class TestWhoIsHeld:
    def test_a_pod_is_held_across_its_containers(self, node: Node) -> None:
        pod = node.cgroup("pod", 24 * MIB)
        first, second = node.cgroup("pod/a", 16 * MIB), node.cgroup("pod/b", 16 * MIB)
        one, two = node.caller(first), node.caller(second)
        one.do("kfd_alloc", node.kfd_id, 16 * MIB)
        two.do("gem_create", node.render, 8 * MIB)
        assert two.refused("gem_create", node.render, PAGE) == "ENOMEM"
        assert node.usage(pod).requested == 24 * MIB
        # Refused by the pod after the container had been charged: nothing stays there.
        assert node.usage(second).requested == 8 * MIB
        assert node.usage(pod).refusals == 1

    def test_where_both_are_full_the_container_is_told_of(self, node: Node) -> None:
        pod, box = node.cgroup("pod", 8 * MIB), node.cgroup("pod/box", 8 * MIB)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 8 * MIB)
        assert caller.refused("gem_create", node.render, PAGE) == "ENOMEM"
        assert (node.usage(box).refusals, node.usage(pod).refusals) == (1, 0)

    def test_cgroups_made_below_the_container_are_held_with_it(self, node: Node) -> None:
        box = node.cgroup("box", 16 * MIB)
        inner = node.cgroup("box/a")
        innermost = node.cgroup("box/a/b")
        caller = node.caller(innermost)
        caller.do("kfd_alloc", node.kfd_id, 16 * MIB)
        assert node.caller(inner).refused("kfd_alloc", node.kfd_id, PAGE) == "ENOMEM"
        assert node.usage(box).requested == 16 * MIB

    def test_a_process_in_no_limited_cgroup_is_not_touched(self, node: Node) -> None:
        node.cgroup("box", PAGE)
        caller = node.caller(node.cgroup("other"))
        caller.do("kfd_alloc", node.kfd_id, 256 * MIB)
        caller.do("gem_create", node.render, 256 * MIB)
        assert node.maps.usage() == {}

    def test_a_whole_gpu_is_counted_and_not_limited(self, node: Node) -> None:
        box = node.cgroup("box", whole=True)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 1 << 30)
        assert node.usage(box).requested == 1 << 30

    def test_a_tenant_has_nothing_of_a_gpu_without_a_share(self, node: Node) -> None:
        other = f"/dev/dri/renderD{node.gpus[1].render}"
        caller = node.caller(node.cgroup("box", MIB))
        caller.do("open", other)
        before = node.counted("refused_no_share")
        assert caller.refused("gem_create", other, PAGE) == "ENOMEM"
        assert node.counted("refused_no_share") == before + 1

    def test_a_gpu_nobody_has_named_is_refused_to_tenants_only(self, node: Node) -> None:
        caller = node.caller(node.cgroup("box", MIB))
        free = node.caller(node.cgroup("other"))
        node.maps.set_gpus({}, {})
        before = node.counted("refused_unknown_gpu")
        assert caller.refused("gem_create", node.render, PAGE) == "ENOMEM"
        assert caller.refused("kfd_alloc", node.kfd_id, PAGE) == "ENOMEM"
        assert node.counted("refused_unknown_gpu") == before + 2
        free.do("gem_create", node.render, PAGE)

    def test_a_limit_raised_or_lowered_holds_from_the_next_call(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 8 * MIB)
        node.maps.set_limit(box.stat().st_ino, node.gpu, 9 * MIB)
        caller.do("kfd_alloc", node.kfd_id, MIB)
        node.maps.set_limit(box.stat().st_ino, node.gpu, 4 * MIB)
        assert caller.refused("kfd_alloc", node.kfd_id, PAGE) == "ENOMEM"
        assert node.usage(box).requested == 9 * MIB


class TestWordsNoLibraryWrites:
    @pytest.mark.parametrize(
        "command",
        [
            pytest.param(0x16, id="no direction, type or size"),
            pytest.param(0xC0280016, id="another type"),
            pytest.param(0x40284B16, id="write only"),
            pytest.param(0xC0404B16, id="larger"),
        ],
    )
    def test_kfd_takes_what_the_driver_would_read(self, node: Node, command: int) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        caller.refused("kfd_alloc", node.kfd_id, 8 * MIB, command=command)
        held = node.usage(box) if node.maps.usage() else None
        if held is not None:
            assert held.requested in (0, 8 * MIB)
            assert held.requested == held.resident
            assert held.reserved == 0
        assert caller.refused("kfd_alloc", node.kfd_id, 9 * MIB, command=command)

    @pytest.mark.parametrize(
        "command",
        [
            pytest.param(0x80206440, id="read only: the driver sees zeros"),
            pytest.param(0xC0086440, id="size only: no domain"),
            pytest.param(0xC0406440, id="larger"),
            pytest.param(0xC0200040, id="another type"),
        ],
    )
    def test_gem_takes_what_the_driver_would_read(self, node: Node, command: int) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        caller.refused("gem_create", node.render, 8 * MIB, command=command)
        assert caller.refused("gem_create", node.render, 9 * MIB, DOMAIN_VRAM, GEM_CREATE)
        usage = node.usage(box)
        assert usage.requested == usage.resident
        assert usage.reserved == 0
        assert usage.requested <= 8 * MIB

    def test_a_32_bit_call_is_held_like_any_other(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        fits = struct.pack("=QQQQ", 8 * MIB, 0, DOMAIN_VRAM, 0)
        page = struct.pack("=QQQQ", PAGE, 0, DOMAIN_VRAM, 0)
        caller.do("call32", node.render, GEM_CREATE, fits)
        assert node.usage(box).requested == 8 * MIB
        assert caller.refused("call32", node.render, GEM_CREATE, page) == "ENOMEM"
        page = caller.do("kfd_arguments", node.kfd_id, PAGE)
        assert caller.refused("call32", "/dev/kfd", KFD_ALLOC, page) == "ENOMEM"
        assert node.usage(box).reserved == 0

    def test_a_size_switched_behind_the_gates_back_is_charged_as_the_driver_took_it(
        self, node: Node
    ) -> None:
        box = node.cgroup("box", 64 * MIB)
        caller = node.caller(box)
        node.maps.set_policy(Policy(kill_switchers=False))
        made = caller.do("switch", node.render, (PAGE, MIB), 400)
        usage = node.usage(box)
        print(made, usage, {name: node.counted(name) for name in ("settled_up", "settled_down")})
        assert made > 0
        assert usage.requested == usage.resident
        assert usage.reserved == 0

    def test_arguments_that_are_not_in_memory_are_waited_for_or_refused_and_counted(
        self, gate: loader.Gate, node: Node
    ) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        before = node.counted("refused_arguments")
        fits = caller.do("kfd_arguments", node.kfd_id, 8 * MIB)
        if gate.asked_by == "lsm":
            caller.do("call_unread", "/dev/kfd", KFD_ALLOC, fits)
            assert node.usage(box).requested == 8 * MIB
        else:
            assert caller.refused("call_unread", "/dev/kfd", KFD_ALLOC, fits) == "ENOMEM"
            assert node.counted("refused_arguments") == before + 1
        page = caller.do("kfd_arguments", node.kfd_id, 9 * MIB)
        assert caller.refused("call_unread", "/dev/kfd", KFD_ALLOC, page) == "ENOMEM"

    def test_arguments_that_are_nowhere_are_refused_and_counted(self, node: Node) -> None:
        caller = node.caller(node.cgroup("box", 8 * MIB))
        before = node.counted("refused_arguments")
        assert caller.refused("call_nowhere", "/dev/kfd", KFD_ALLOC) == "ENOMEM"
        assert caller.refused("call_nowhere", node.render, GEM_CREATE) == "ENOMEM"
        assert node.counted("refused_arguments") == before + 2

    def test_a_call_the_driver_rejects_costs_nothing(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        before = node.counted("given_back")
        flags = 1 << 63
        bad = (8 * MIB).to_bytes(8, "little") + bytes(8)
        bad += DOMAIN_VRAM.to_bytes(8, "little") + flags.to_bytes(8, "little")
        assert caller.refused("call", node.render, GEM_CREATE, bad) == "EINVAL"
        usage = node.usage(box)
        assert (usage.requested, usage.reserved) == (0, 0)
        assert node.counted("given_back") == before + 1


class TestEverythingComesBack:
    @pytest.mark.parametrize("kill", [False, True], ids=["exit", "SIGKILL"])
    def test_when_a_process_ends(self, node: Node, kill: bool) -> None:
        box = node.cgroup("box", 64 * MIB)
        caller = node.caller(box)
        for _ in range(8):
            caller.do("kfd_alloc", node.kfd_id, 4 * MIB)
            caller.do("gem_create", node.render, 4 * MIB)
        assert node.usage(box).requested == 64 * MIB
        if kill:
            caller.kill()
        else:
            caller.end()
        assert settled(lambda: node.usage(box).empty), node.usage(box)

    def test_resident_and_page_tables_are_what_dmem_counts(self, node: Node) -> None:
        current = CGROUPS / "box/dmem.current"
        with contextlib.suppress(OSError):  # a kernel without it has its own case below
            (CGROUPS / "cgroup.subtree_control").write_text("+dmem")
        box = node.cgroup("box", 64 * MIB)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 16 * MIB)
        caller.do("gem_create", node.render, 16 * MIB)
        usage = node.usage(box)
        assert usage.resident == 32 * MIB
        assert usage.page_tables > 0
        if current.exists():
            region = f"drm/{node.gpus[0].bdf}/vram"
            dmem = dict(line.split() for line in current.read_text().splitlines())
            assert int(dmem[region]) == usage.resident + usage.page_tables
        else:
            used = Path(f"/sys/bus/pci/devices/{node.gpus[0].bdf}/mem_info_vram_used")
            assert int(used.read_text()) >= usage.resident + usage.page_tables


class TestTheRecord:
    def test_a_refusal_is_an_event_with_its_numbers(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 6 * MIB)
        assert caller.refused("kfd_alloc", node.kfd_id, 4 * MIB) == "ENOMEM"
        (event,) = node.maps.events()
        assert (event.pid, event.cgroup, event.gpu) == (caller.pid, box.stat().st_ino, node.gpu)
        assert (event.asked, event.used, event.limit) == (4 * MIB, 6 * MIB, 8 * MIB)
        assert event.nr == KFD_ALLOC & 0xFF

    def test_a_storm_of_refusals_drops_events_and_says_so(self, node: Node) -> None:
        caller = node.caller(node.cgroup("box", 0))
        dropped = node.counted("events_dropped")
        assert caller.do("storm", node.render, 4000) == 4000
        events = len(node.maps.events())
        assert 0 < events < 4000
        assert events + node.counted("events_dropped") - dropped == 4000


class TestWhoIsAsked:
    def test_it_is_the_security_module_where_bpf_is_an_active_one(self, gate: loader.Gate) -> None:
        assert gate.asked_by == ("lsm" if is_module() else "fmod_ret")
        left_out = {name: why for name, why in gate.attached.items() if why is not None}
        assert set(left_out) == (set() if is_module() else {"file_ioctl_lsm"})
        assert all("bpf is not among" in why for why in left_out.values())
        assert gate.self_test()

    def test_one_call_reserves_once(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        given_back = node.counted("given_back")
        for _ in range(8):
            caller.do("gem_create", node.render, MIB)
        assert (node.usage(box).requested, node.usage(box).peak) == (8 * MIB, 8 * MIB)
        assert node.counted("given_back") == given_back


class TestTakingOver:
    def test_a_second_load_takes_over_what_is_held(self, node: Node) -> None:
        box = node.cgroup("box", 8 * MIB)
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 4 * MIB)
        handle = caller.do("gem_create", node.render, 4 * MIB)
        gate = loader.load_gate(OBJECTS / "gate.bpf.o", PINS)
        ledger = loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
        assert gate.self_test()
        assert set(gate.missed()) == {name for name, why in gate.attached.items() if why is None}
        assert set(ledger.missed().values()) == {0}
        assert {int(entry.name) for entry in PINS.iterdir() if entry.name.isdecimal()} == {
            gate.generation,
            ledger.generation,
        }
        assert node.usage(box).requested == 8 * MIB
        assert caller.refused("kfd_alloc", node.kfd_id, PAGE) == "ENOMEM"
        caller.do("gem_close", node.render, handle)
        assert settled(lambda: node.usage(box).requested == 4 * MIB)

    def test_a_load_that_fails_leaves_the_old_one_acting(self, node: Node, tmp_path: Path) -> None:
        box = node.cgroup("box", 4 * MIB)
        caller = node.caller(box)
        before = {entry.name for entry in PINS.iterdir()}
        broken = tmp_path / "gate.bpf.o"
        broken.write_bytes((OBJECTS / "gate.bpf.o").read_bytes()[:20000])
        with pytest.raises(BpfError, match=str(broken)):
            loader.load_gate(broken, PINS)
        assert {entry.name for entry in PINS.iterdir()} == before
        caller.do("kfd_alloc", node.kfd_id, 4 * MIB)
        assert caller.refused("kfd_alloc", node.kfd_id, PAGE) == "ENOMEM"

    def test_no_allocation_passes_while_it_is_taken_over_again_and_again(self, node: Node) -> None:
        box = node.cgroup("box", MIB)
        caller = node.caller(box)
        caller.do("gem_create", node.render, MIB)
        child = os.fork()
        if child == 0:
            for _ in range(2):
                loader.load_gate(OBJECTS / "gate.bpf.o", PINS)
                loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
            os._exit(0)
        admitted = tried = 0
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            tried += 1
            admitted += not caller.refused("gem_create", node.render, PAGE)
            time.sleep(0.001)
        assert tried > 20
        assert admitted == 0
        assert node.usage(box).requested == MIB

    def test_a_loader_killed_at_any_point_leaves_the_limit_in_force(self, node: Node) -> None:
        box = node.cgroup("box", MIB)
        caller = node.caller(box)
        caller.do("gem_create", node.render, MIB)
        for delay in range(8):
            child = os.fork()
            if child == 0:
                loader.load_gate(OBJECTS / "gate.bpf.o", PINS)
                loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
                os._exit(0)
            time.sleep(0.3 * delay)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert caller.refused("gem_create", node.render, PAGE) == "ENOMEM"
        loader.load_gate(OBJECTS / "gate.bpf.o", PINS)
        loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
        assert sum(entry.name.isdecimal() for entry in PINS.iterdir()) == 2
        assert node.usage(box).requested == MIB

    def test_without_a_ledger_tenants_are_refused_and_nobody_else(self, node: Node) -> None:
        caller = node.caller(node.cgroup("box", MIB))
        free = node.caller(node.cgroup("other"))
        loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS).detach()
        try:
            before = node.counted("refused_no_ledger")
            assert caller.refused("gem_create", node.render, PAGE) == "ENOMEM"
            assert node.counted("refused_no_ledger") == before + 1
            handle = free.do("gem_create", node.render, PAGE)
            free.do("gem_close", node.render, handle)
        finally:
            loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
        caller.do("gem_create", node.render, PAGE)


class TestMaps:
    def test_a_full_map_is_an_error_that_names_it(self, node: Node) -> None:
        room = node.maps.fill()["tenants"][1]
        try:
            for number in range(room):
                node.maps.set_limit(1 << 40 | number, node.gpu, 1)
            with pytest.raises(BpfError, match="tenants: the map is full") as full:
                node.maps.set_limit(1 << 41, node.gpu, 1)
            assert full.value.errno == errno.E2BIG
            assert node.maps.fill()["tenants"] == (room, room)
        finally:
            _empty(node)

    def test_usage_that_holds_something_or_has_a_limit_stays(self, node: Node) -> None:
        box = node.cgroup("box", MIB)
        number = box.stat().st_ino
        caller = node.caller(box)
        handle = caller.do("gem_create", node.render, MIB)
        assert not node.maps.delete_usage(number, node.gpu)
        assert node.maps.delete_limit(number, node.gpu)
        assert not node.maps.delete_limit(number, node.gpu)
        assert not node.maps.delete_usage(number, node.gpu)
        caller.do("gem_close", node.render, handle)
        caller.end()
        assert settled(lambda: node.maps.delete_usage(number, node.gpu))


class TestACgroupThatIsMade:
    def test_has_its_pods_pending_limits_when_mkdir_returns(self, node: Node) -> None:
        pod = node.cgroup("pod", 24 * MIB)
        number = pod.stat().st_ino
        node.maps.set_pending(number, node.gpu, 8 * MIB)
        entered = node.counted("entered")
        box = node.cgroup("pod/box")
        assert node.maps.limits()[box.stat().st_ino, node.gpu] == 8 * MIB
        assert node.counted("entered") == entered + 1
        caller = node.caller(box)
        caller.do("kfd_alloc", node.kfd_id, 8 * MIB)
        assert caller.refused("gem_create", node.render, PAGE) == "ENOMEM"
        assert node.usage(pod).requested == node.usage(box).requested == 8 * MIB
        node.maps.set_limit(box.stat().st_ino, node.gpu, 9 * MIB)
        caller.do("gem_create", node.render, MIB)

    def test_on_every_gpu_of_the_pod_and_not_limited_where_the_share_is_whole(
        self, node: Node
    ) -> None:
        pod = node.cgroup("pod", MIB)
        for gpu in node.keys:
            node.maps.set_limit(pod.stat().st_ino, gpu, None)
            node.maps.set_pending(pod.stat().st_ino, gpu, None)
        box = node.cgroup("pod/box")
        limits = node.maps.limits()
        assert {limits[box.stat().st_ino, gpu] for gpu in node.keys} == {None}
        for gpu in node.keys:
            assert node.maps.delete_pending(pod.stat().st_ino, gpu)
            assert not node.maps.delete_pending(pod.stat().st_ino, gpu)
        later = node.cgroup("pod/later")
        assert later.stat().st_ino not in {cgroup for cgroup, _ in node.maps.limits()}

    def test_only_directly_below_the_pod(self, node: Node) -> None:
        pod = node.cgroup("pod", MIB)
        node.maps.set_pending(pod.stat().st_ino, node.gpu, MIB)
        below = node.cgroup("pod/box").stat().st_ino
        inner = node.cgroup("pod/box/inner").stat().st_ino
        holders = {cgroup for cgroup, _ in node.maps.limits()}
        assert below in holders
        assert inner not in holders

    def test_loses_its_entries_when_it_goes_whether_or_not_a_daemon_runs(self, node: Node) -> None:
        pod = node.cgroup("pod", MIB)
        node.maps.set_pending(pod.stat().st_ino, node.gpu, MIB)
        for number in range(200):
            (CGROUPS / f"pod/box{number}").mkdir()
        assert node.maps.fill()["limits"][0] == 201
        for number in range(200):
            (CGROUPS / f"pod/box{number}").rmdir()
        assert node.maps.fill()["limits"][0] == node.maps.fill()["tenants"][0] == 1

    def test_with_the_map_full_is_held_by_its_pod_alone_and_counted(self, node: Node) -> None:
        pod = node.cgroup("pod", MIB)
        node.maps.set_pending(pod.stat().st_ino, node.gpu, MIB)
        room = node.maps.fill()["tenants"][1]
        before = node.counted("not_entered")
        try:
            for number in range(room - 1):
                node.maps.set_limit(1 << 40 | number, node.gpu, 1)
            box = node.cgroup("pod/box")
            assert node.counted("not_entered") > before
            assert (box.stat().st_ino, node.gpu) not in node.maps.limits()
            assert node.caller(box).refused("gem_create", node.render, 2 * MIB) == "ENOMEM"
        finally:
            _empty(node, keep=pod.stat().st_ino)


def _empty(node: Node, keep: int | None = None) -> None:
    """As many ``delete_limit`` would take minutes: each looks through all."""
    for cgroup, gpu in list(node.maps.limits()):
        if cgroup != keep:
            node.maps._lib.delete(node.maps._maps["limits"].fd, _key(cgroup, gpu))
            node.maps._lib.delete(node.maps._maps["tenants"].fd, cgroup.to_bytes(8, "little"))


def _key(cgroup: int, gpu: int) -> bytes:
    return cgroup.to_bytes(8, "little") + gpu.to_bytes(8, "little")


def test_a_kernel_that_runs_the_gate_is_not_taken_for_one_that_cannot() -> None:
    assert not never_possible(Path("/sys"))
