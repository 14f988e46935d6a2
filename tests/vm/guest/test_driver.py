# SPDX-License-Identifier: Apache-2.0
"""The simulation driver by itself: it must behave as the real one does, or nothing else counts."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.host import dmem
from enforcer.host.cgroups import populated
from enforcer.model import MIB
from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import CGROUP, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch

PAGE = 4096
DEBUG = Path("/sys/kernel/debug/amdgpu")
DRIVER = Path("/sys/bus/pci/drivers/amdgpu")
KFD_PROC = Path("/sys/class/kfd/kfd/proc")
_HAS_DMEM = any(name.startswith("drm/") for name in dmem.capacity(CGROUP))
_NUMBERS = itertools.count()


class Group:
    """A cgroup for clients of one test."""

    def __init__(self, binary: Path) -> None:
        self.path = CGROUP / f"driver-{next(_NUMBERS)}"
        self.path.mkdir()
        self._binary = binary
        self.clients: list[PlainClient] = []

    def client(self, gpu: Gpu, *, kfd: bool = True) -> PlainClient:
        """A client in this cgroup that has the GPU open."""
        started = PlainClient(self._binary)
        self.clients.append(started)
        (self.path / "cgroup.procs").write_text(str(started.process.pid))
        started.ask(f"open render {gpu.render}")
        if kfd:
            started.ask("open kfd")
            started.ask(f"acquire {gpu.kfd_id}")
        return started

    def limit(self, gpu: Gpu, size: int | str) -> None:
        (self.path / "dmem.max").write_text(f"{region(gpu)} {size}")

    def current(self, gpu: Gpu) -> int:
        return charge(self.path, gpu)

    def end(self) -> None:
        for one in self.clients:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
        # Killed processes leave a little later.
        wait_for("an empty cgroup", lambda: not populated(self.path))
        self.path.rmdir()


@pytest.fixture
def groups(client_binary: Path, gpus: list[Gpu]) -> Iterator[Callable[[], Group]]:
    if _HAS_DMEM:
        (CGROUP / "cgroup.subtree_control").write_text("+dmem")
    with contextlib.ExitStack() as stack:

        def make() -> Group:
            group = Group(client_binary)
            stack.callback(group.end)
            return group

        yield make
    # What KFD had for a process goes later than the process.
    wait_for("empty cards", lambda: not any(map(used, gpus)), 60)


@pytest.fixture
def group(groups: Callable[[], Group]) -> Group:
    return groups()


def region(gpu: Gpu) -> str:
    return f"drm/{gpu.bdf}/vram"


def charge(path: Path, gpu: Gpu) -> int:
    return dmem.current(path)[region(gpu)] or 0


def device(gpu: Gpu, name: str) -> int:
    return int(Path(f"/sys/bus/pci/devices/{gpu.bdf}/{name}").read_text())


def used(gpu: Gpu) -> int:
    return device(gpu, "mem_info_vram_used")


def tables(gpu: Gpu) -> int:
    """Bytes of page tables of everyone who has the GPU open."""
    text = (DEBUG / gpu.bdf / "sim_page_tables").read_text()
    return sum(map(int, re.findall(r"bytes (\d+)", text)))


def knob(gpu: Gpu, name: str, value: int) -> None:
    (DEBUG / gpu.bdf / name).write_text(str(value))


def fdinfo(client: PlainClient, fd: int = 3) -> dict[str, str]:
    text = Path(f"/proc/{client.process.pid}/fdinfo/{fd}").read_text()
    return {key: value.strip() for key, _, value in (s.partition(":") for s in text.splitlines())}


def nothing_left(gpu: Gpu) -> None:
    wait_for("the card's VRAM to be free", lambda: used(gpu) == 0)


class TestPageTables:
    def test_the_root_comes_with_the_file_and_goes_with_it(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu, kfd=False)
        assert used(gpu) == tables(gpu) == PAGE
        one.finish()
        nothing_left(gpu)

    def test_whole_2_mib_ranges_of_vram_need_no_table(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        handle = one.kfd_alloc(gpu, 8 * MIB)
        one.ask(f"map {handle}")
        assert tables(gpu) == 3 * PAGE  # root, PDB1, PDB0
        one.ask(f"unmap {handle}")
        one.ask(f"map {handle}")
        assert tables(gpu) == 3 * PAGE

    def test_odd_ends_and_system_memory_do(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        one.ask(f"map {one.kfd_alloc(gpu, 2 * MIB + 1)}")
        assert tables(gpu) == 4 * PAGE
        one.ask(f"gem-map {one.gem_create(4 * MIB, 'gtt')}")
        assert tables(gpu) == 6 * PAGE
        assert used(gpu) == 2 * MIB + PAGE + 6 * PAGE

    def test_a_queue_s_ring_is_mapped_twice(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        handle = one.ask(f"kfd-alloc {gpu.kfd_id} {2 * PAGE} 0x88000001")["handle"]
        assert used(gpu) == PAGE + PAGE
        assert one.refused(f"map {handle}") == ""
        assert one.refused(f"kfd-free {handle}") == "EBUSY"
        one.ask(f"unmap {handle}")
        one.ask(f"kfd-free {handle}")


class TestKfd:
    def test_sysfs_names_what_a_process_asked_for(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        proc = KFD_PROC / str(one.process.pid)
        handle = one.kfd_alloc(gpu, 3 * MIB + 1)
        assert int((proc / f"vram_{gpu.kfd_id}").read_text()) == 3 * MIB + PAGE
        one.ask(f"kfd-free {handle}")
        assert int((proc / f"vram_{gpu.kfd_id}").read_text()) == 0
        assert one.ask(f"queue-create {gpu.kfd_id}") == {"queue": "0"}
        assert (proc / "queues/0/gpuid").read_text() == str(gpu.kfd_id)
        assert (proc / "queues/0/type").read_text() == "0"
        occupancy = proc / f"stats_{gpu.kfd_id}" / "cu_occupancy"
        assert int(occupancy.read_text()) == gpu.cu_count
        one.ask("cu-mask 0 0xffffffff 0xff")
        assert int(occupancy.read_text()) == 40
        one.ask("queue-destroy 0")
        assert not (proc / "queues/0").exists()
        one.finish()
        wait_for("the end of its sysfs entry", lambda: not proc.exists())

    def test_memory_comes_back_after_kill(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        one.ask(f"map {one.kfd_alloc(gpu, 100 * MIB)}")
        one.gem_create(10 * MIB)
        one.process.kill()
        nothing_left(gpu)

    def test_only_the_number_of_a_call_counts(self, group: Group, gpu: Gpu) -> None:
        """Type, direction and size bits are not looked at; what is not sent is zero."""
        one = group.client(gpu)
        whole = (0).to_bytes(8, "little") + (MIB).to_bytes(8, "little") + bytes(16)
        whole += gpu.kfd_id.to_bytes(4, "little") + (1).to_bytes(4, "little")
        for word in (0xC0284B16, 0x00280016, 0x80284216, 0xC03F4B16):
            one.ask(f"ioctl kfd {word:#x} {whole.hex()}")
        assert used(gpu) == 4 * MIB + PAGE
        # 16 bytes only: no GPU is named.
        assert one.refused(f"ioctl kfd 0xc0104b16 {whole.hex()}") == "EINVAL"
        assert one.refused("ioctl kfd 0xc0004bff") == "ENOTTY"

    def test_the_file_is_the_opening_process_s(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        assert one.refused(f"fork kfd-alloc {gpu.kfd_id} 4096") == "EBADF"
        assert one.refused(f"fork gem-create {PAGE} vram") == ""

    def test_arguments_that_make_no_sense(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        for args in ("0", "4096 0", "1 0x88000001", "0xffffffffffffffff"):
            assert one.refused(f"kfd-alloc {gpu.kfd_id} {args}") in {"EINVAL", "ENOMEM"}
        assert one.refused(f"kfd-alloc {gpu.kfd_id ^ 1} 4096") == "EINVAL"
        assert one.refused("kfd-free 12345") == "EINVAL"
        assert used(gpu) == PAGE

    def test_shared_virtual_memory_lies_in_vram_until_its_process_ends(
        self, group: Group, gpu: Gpu
    ) -> None:
        one = group.client(gpu)
        if one.refused(f"svm {gpu.kfd_id} 65536") == "EPERM":
            return  # as the distribution builds this kernel
        assert used(gpu) == PAGE + 65536
        proc = Path(f"/sys/class/kfd/kfd/proc/{one.process.pid}")
        assert (proc / f"vram_{gpu.kfd_id}").read_text() == "65536\n"
        one.finish()
        nothing_left(gpu)

    def test_a_buffer_is_shared_with_another_process_and_gpu(
        self, groups: Callable[[], Group], gpus: list[Gpu]
    ) -> None:
        first, second = gpus[:2]
        giver, taker = groups().client(first), groups().client(second)
        taker.ask(f"open render {first.render}")
        taker.ask(f"acquire {first.kfd_id}")
        handle = giver.kfd_alloc(first, 6 * MIB)
        fd = giver.ask(f"kfd-export {handle}")["fd"]
        info = giver.ask(f"kfd-dmabuf-info {fd}")
        assert (int(info["gpu"]), int(info["bytes"])) == (first.kfd_id, 6 * MIB)
        got = pass_file(giver, fd, taker)
        giver.ask(f"kfd-free {handle}")
        giver.ask(f"close {fd}")
        near = taker.ask(f"kfd-import {first.kfd_id} {got}")["handle"]
        far = taker.ask(f"kfd-import {second.kfd_id} {got}")["handle"]
        taker.ask(f"close {got}")
        taker.ask(f"map {near} {first.kfd_id} {second.kfd_id}")
        assert used(first) - tables(first) == 6 * MIB
        assert used(second) == tables(second)
        taker.ask(f"unmap {near} {first.kfd_id} {second.kfd_id}")
        taker.ask(f"kfd-free {near}")
        assert used(first) - tables(first) == 6 * MIB
        taker.ask(f"kfd-free {far}")
        wait_for("the last reference", lambda: used(first) == tables(first))

    def test_a_further_context_has_memory_of_its_own(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        one.ask("open kfd")
        if one.refused("create-process") == "ENOTTY":
            assert not _HAS_DMEM  # 6.12 does not know the call
            return
        fd = one.ask(f"open render {gpu.render}")["fd"]
        one.ask(f"acquire {gpu.kfd_id}")
        one.kfd_alloc(gpu, MIB)
        proc = KFD_PROC / str(one.process.pid)
        assert int((proc / f"vram_{gpu.kfd_id}").read_text()) == 0
        assert int((proc / f"context_1/vram_{gpu.kfd_id}").read_text()) == MIB
        assert fd
        one.finish()
        nothing_left(gpu)


def pass_file(giver: PlainClient, fd: str, taker: PlainClient) -> str:
    """Hand an open file from one client to the other; its number there."""
    name = f"pass-{next(_NUMBERS)}"
    taker.stdin.write(f"recv {name}\n")
    giver.ask(f"send {name} {fd}")
    return taker.stdout.readline().split("fd=")[1].strip()


class TestGem:
    def test_fdinfo_counts_buffers_and_page_tables(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu, kfd=False)
        handle = one.gem_create(3 * MIB)
        one.gem_create(MIB, "gtt")
        info = fdinfo(one)
        assert info["drm-driver"] == "amdgpu"
        assert info["drm-pdev"] == gpu.bdf
        assert info["drm-memory-vram"] == f"{3 * 1024 + 4} KiB"
        assert info["drm-memory-gtt"] == "1024 KiB"
        assert info["amd-requested-vram"] == f"{3 * 1024 + 4} KiB"
        assert ("drm-resident-vram" in info) == ("amd-memory-visible-vram" not in info) == _HAS_DMEM
        one.ask(f"gem-close {handle}")
        assert fdinfo(one)["drm-memory-vram"] == "4 KiB"

    def test_a_gtt_buffer_becomes_vram_by_submission(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu, kfd=False)
        handle = one.gem_create(16 * MIB, "gtt")
        one.ask(f"gem-op-placement {handle} vram")
        assert used(gpu) == PAGE
        one.ask(f"cs {handle}")
        assert used(gpu) == PAGE + 16 * MIB
        assert one.ask(f"gem-info {handle}")["domains"] == "4"

    def test_old_memory_lives_on_in_a_ghost_until_the_copy_is_done(
        self, group: Group, gpu: Gpu
    ) -> None:
        one = group.client(gpu, kfd=False)
        handle = one.gem_create(16 * MIB)
        one.ask(f"gem-op-placement {handle} gtt")
        knob(gpu, "sim_move_delay_ms", 15000)
        one.ask(f"cs {handle}")
        knob(gpu, "sim_move_delay_ms", 0)
        assert used(gpu) == PAGE + 16 * MIB
        assert device(gpu, "mem_info_gtt_used") == 16 * MIB
        wait_for("the ghost's end", lambda: used(gpu) == PAGE)

    def test_a_dumb_buffer_is_vram_and_needs_the_card_node(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu, kfd=False)
        assert one.refused("dumb-create 1024 1024 32") == "EACCES"
        one.ask(f"open card {gpu.card}")
        assert one.ask("dumb-create 1024 1024 32")["bytes"] == str(4 * MIB)
        assert used(gpu) == 2 * PAGE + 4 * MIB

    def test_the_last_prime_reference_frees(self, groups: Callable[[], Group], gpu: Gpu) -> None:
        giver, taker = (groups().client(gpu, kfd=False) for _ in range(2))
        handle = giver.gem_create(16 * MIB)
        fd = giver.ask(f"prime-export {handle}")["fd"]
        got = pass_file(giver, fd, taker)
        taken = taker.ask(f"prime-import {got}")["handle"]
        for one in (giver, taker):
            assert fdinfo(one)["drm-shared-vram"] in {"16384 KiB", "16 MiB"}
        giver.finish()
        taker.ask(f"close {got}")
        wait_for("one table only", lambda: used(gpu) == PAGE + 16 * MIB)
        taker.ask(f"gem-close {taken}")
        wait_for("no buffer", lambda: used(gpu) == PAGE)

    def test_what_the_card_cannot_hold_goes_to_system_memory(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu, kfd=False)
        handles = [one.gem_create(100 << 30) for _ in range(2)]
        assert device(gpu, "mem_info_gtt_used") == 100 << 30
        assert used(gpu) == (100 << 30) + PAGE
        for handle in handles:
            one.ask(f"gem-close {handle}")

    def test_kfd_is_refused_when_the_card_is_full(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        available = int(one.ask(f"kfd-available {gpu.kfd_id}")["bytes"])
        one.kfd_alloc(gpu, available)
        assert one.refused(f"kfd-alloc {gpu.kfd_id} {16 * MIB}") == "ENOMEM"
        assert int(one.ask(f"kfd-available {gpu.kfd_id}")["bytes"]) == 0


@pytest.mark.dmem
class TestDmem:
    def test_the_charge_is_what_is_resident_and_the_tables(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu)
        one.ask(f"map {one.kfd_alloc(gpu, 5 * MIB)}")
        one.gem_create(3 * MIB)
        assert group.current(gpu) == 8 * MIB + tables(gpu) == used(gpu)
        one.finish()
        wait_for("nothing charged", lambda: group.current(gpu) == 0)

    def test_kfd_is_refused_at_the_byte(self, group: Group, gpu: Gpu) -> None:
        group.limit(gpu, 64 * MIB + PAGE)
        one = group.client(gpu)
        assert one.ask(f"fill kfd {gpu.kfd_id} {MIB}") == {
            "bytes": str(64 * MIB),
            "count": "64",
            "errno": "ENOMEM",
        }
        assert one.refused(f"kfd-alloc {gpu.kfd_id} 1") == "ENOMEM"
        assert group.current(gpu) == 64 * MIB + PAGE

    def test_gem_spills(self, group: Group, gpu: Gpu) -> None:
        group.limit(gpu, 64 * MIB)
        one = group.client(gpu, kfd=False)
        for _ in range(3):
            one.gem_create(48 * MIB)
        assert group.current(gpu) <= 64 * MIB
        assert device(gpu, "mem_info_gtt_used") == 96 * MIB

    def test_page_tables_push_the_process_s_own_memory_out(self, group: Group, gpu: Gpu) -> None:
        """As in the real driver: they must be contiguous, which overrides the protection."""
        group.limit(gpu, MIB + PAGE)
        one = group.client(gpu)
        one.ask(f"map {one.kfd_alloc(gpu, MIB)}")
        assert tables(gpu) == 4 * PAGE
        wait_for("its restore", lambda: used(gpu) == MIB + 4 * PAGE)
        assert group.current(gpu) == 4 * PAGE

    def test_page_tables_are_refused_too(self, group: Group, gpu: Gpu) -> None:
        group.limit(gpu, 2 * PAGE)
        one = group.client(gpu, kfd=False)
        handle = one.gem_create(MIB, "gtt")
        assert one.refused(f"gem-map {handle}") == "ENOMEM"
        assert group.current(gpu) == 2 * PAGE

    def test_a_restored_process_is_charged_to_the_root(self, group: Group, gpu: Gpu) -> None:
        """The real driver restores from a kernel thread: the cap is lost. So it must be here."""
        group.limit(gpu, 100 * MIB)
        victim, other = group.client(gpu), group.client(gpu)
        events = victim.ask(f"smi-open {gpu.kfd_id} 0x300")["fd"]
        victim.ask(f"queue-create {gpu.kfd_id}")
        victim.kfd_alloc(gpu, 60 * MIB)
        other.kfd_alloc(gpu, 60 * MIB)
        assert victim.ask(f"smi-read {events} 10")["event"].startswith("9,")
        wait_for("both in VRAM", lambda: used(gpu) == 120 * MIB + 2 * PAGE)
        assert group.current(gpu) == 60 * MIB + 2 * PAGE
        assert charge(CGROUP, gpu) == 120 * MIB + 2 * PAGE
        stats = KFD_PROC / str(victim.process.pid) / f"stats_{gpu.kfd_id}" / "evicted_ms"
        wait_for("its queues to run again", lambda: int(stats.read_text()) >= 80)
        victim.finish()
        other.finish()
        wait_for("nothing charged", lambda: charge(CGROUP, gpu) == 0)

    def test_the_importer_pays_only_for_what_it_brings_back(
        self, groups: Callable[[], Group], gpu: Gpu
    ) -> None:
        first, second = groups(), groups()
        giver, taker = (group.client(gpu, kfd=False) for group in (first, second))
        fd = giver.ask(f"prime-export {giver.gem_create(16 * MIB)}")["fd"]
        taken = taker.ask(f"prime-import {pass_file(giver, fd, taker)}")["handle"]
        assert (first.current(gpu), second.current(gpu)) == (16 * MIB + PAGE, PAGE)
        taker.ask(f"gem-op-placement {taken} gtt")
        taker.ask(f"cs {taken}")
        wait_for("the move", lambda: first.current(gpu) == PAGE)
        taker.ask(f"gem-op-placement {taken} vram")
        taker.ask(f"cs {taken}")
        assert (first.current(gpu), second.current(gpu)) == (PAGE, 16 * MIB + PAGE)

    def test_a_lowered_limit_evicts(self, group: Group, gpu: Gpu) -> None:
        one = group.client(gpu, kfd=False)
        for _ in range(2):
            one.gem_create(48 * MIB)
        group.limit(gpu, 64 * MIB)
        if os.uname().release >= "7.3":
            assert group.current(gpu) == 48 * MIB + PAGE
        else:
            assert group.current(gpu) == 96 * MIB + PAGE


def test_a_reset_is_told(group: Group, gpu: Gpu) -> None:
    one = group.client(gpu)
    events = one.ask(f"smi-open {gpu.kfd_id} 0xc")["fd"]
    (DEBUG / gpu.bdf / "amdgpu_gpu_recover").read_text()
    assert one.ask(f"smi-read {events} 5")["event"].startswith("3,")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nonsense_does_no_harm(group: Group, gpu: Gpu, seed: int) -> None:
    one = group.client(gpu)
    one.ask(f"fuzz kfd {seed} 5000")
    one.ask(f"fuzz drm {seed} 5000")
    one.process.kill()
    one.process.wait()
    nothing_left(gpu)


def test_a_card_can_be_unbound_in_use_and_bound_again(group: Group, gpus: list[Gpu]) -> None:
    gone, stays = gpus[:2]
    one = group.client(gone)
    one.ask(f"open render {stays.render}")
    one.ask(f"acquire {stays.kfd_id}")
    ids = f"{gone.kfd_id} {stays.kfd_id}"
    for gpu in (gone, stays):
        one.ask(f"map {one.kfd_alloc(gpu, 4 * MIB)} {ids}")
    (DRIVER / "unbind").write_text(gone.bdf)
    try:
        assert one.refused(f"kfd-alloc {gone.kfd_id} 4096") == "EINVAL"
        one.ask(f"kfd-alloc {stays.kfd_id} 4096")
        one.finish()
        nothing_left(stays)
        if _HAS_DMEM:
            wait_for("the end of its region", lambda: region(gone) not in dmem.capacity(CGROUP))
    finally:
        (DRIVER / "bind").write_text(gone.bdf)
    assert used(gone) == 0
    if _HAS_DMEM:
        assert region(gone) in dmem.capacity(CGROUP)


def test_the_module_can_be_taken_out_and_put_back(gpu: Gpu, switch: Switch) -> None:
    # An enforcer of an earlier test holds the module, and the kernel lets go some time later.
    switch.end()
    references = Path("/sys/module/amdgpu/refcnt")
    wait_for("the module without users", lambda: references.read_text() == "0\n")
    nothing_left(gpu)
    options = {path.name: path.read_text().strip() for path in parameters()}
    del options["huge_pde"]
    module = module_file()
    subprocess.run(["rmmod", "amdgpu"], check=True)
    assert not Path("/dev/kfd").exists()
    subprocess.run(["insmod", module, *(f"{k}={v}" for k, v in options.items())], check=True)
    assert used(gpu) == 0


def test_the_kernel_has_nothing_to_complain_about() -> None:
    """Last: whatever went before."""
    log = subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout
    bad = re.compile(r"WARNING|BUG|Call Trace|refcount|unbalanced|still in use")
    assert not [line for line in log.splitlines() if bad.search(line)]


def parameters() -> list[Path]:
    return sorted(Path("/sys/module/amdgpu/parameters").iterdir())


def module_file() -> str:
    """The runner's configuration names the module it loaded."""
    text = Path("/run/testbed/run.conf").read_text()
    found = re.search(r"^DRIVER=(.*)$", text, re.M)
    assert found, text
    return found[1].strip("'\"")
