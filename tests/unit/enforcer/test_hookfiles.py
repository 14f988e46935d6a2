# SPDX-License-Identifier: Apache-2.0
import fcntl
import os
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from audit_hook.ledger import LEDGER_BYTES, MAGIC, LedgerError
from enforcer.hookfiles import HookFiles, held_by_kernel, hooked, slice_file
from enforcer.model import (
    Container,
    ContainerKind,
    Gpu,
    Layer,
    LayerState,
    Limit,
    PodCgroup,
    Protection,
    Share,
    Slice,
    pci_key,
)
from enforcer.slices import hook_directory

A = Gpu("0000:03:00.0", 51124, 0, 128, "gpu", 1 << 34, 104, 90010)
B = Gpu("0000:83:00.0", 7, 1, 129, "gpu", 1 << 34, 104, 90010)
SLICE = Slice(
    "uid-a", "ns", "p", "train", ContainerKind.APP, (), (Share(A.bdf, 4096, "0-15"),),
    "2026-11-29T13:00:00Z",
)  # fmt: skip
OTHER = replace(SLICE, container="infer")
POD = PodCgroup("uid-a", "poda", 100)
TRAIN = Container("c" * 64, POD, "poda/c", 101, "train")
ON = (LayerState(Layer.GATE),)
OFF = (LayerState(Layer.GATE, "gate not loaded"), LayerState(Layer.DMEM, "no"))


def _text(base: Path, one: Slice = SLICE) -> str:
    return (hook_directory(base, *one.key) / "slice").read_text()


class TestSliceFile:
    def test_it_names_what_the_hook_counts_by(self, tmp_path: Path) -> None:
        assert HookFiles(tmp_path).write([SLICE], [A, B], frozenset()) == []
        assert _text(tmp_path) == (
            "ringfence-slice 1\n"
            "refuse hook\n"
            "gpu 0000:03:00.0 vram=4096 cus=0-15 kfd=51124 render=128 card=0\n"
            "end\n"
        )

    def test_its_gpus_are_in_the_order_of_the_shares(self) -> None:
        two = replace(SLICE, shares=(Share(B.bdf, None), Share(A.bdf, 4096)))
        content = slice_file(two, [A, B], kernel_refuses=True)
        assert [(gpu.bdf, gpu.render) for gpu in content.gpus] == [(B.bdf, 129), (A.bdf, 128)]

    def test_a_gpu_that_is_away_keeps_its_share(self) -> None:
        (gpu,) = slice_file(SLICE, [B], kernel_refuses=False).gpus
        assert (gpu.bdf, gpu.vram_bytes, gpu.cus, gpu.kfd_id) == (A.bdf, 4096, "0-15", None)

    def test_oversubscription_is_passed_on(self) -> None:
        assert slice_file(
            replace(SLICE, oversubscribe=True), [A], kernel_refuses=False
        ).oversubscribe

    @pytest.mark.parametrize("priority", [0, 1, None])
    def test_the_priority_of_its_queues_is_passed_on(self, priority: int | None) -> None:
        one = replace(SLICE, priority=priority)
        assert slice_file(one, [A], kernel_refuses=True).priority == priority

    def test_whole_gpus_alone_need_none(self, tmp_path: Path) -> None:
        whole = replace(SLICE, shares=(Share(A.bdf, None),))
        assert not hooked(whole)
        assert HookFiles(tmp_path).write([whole], [A], frozenset()) == []
        assert list(tmp_path.iterdir()) == []


class TestWhoRefuses:
    LIMITS = (Limit("poda", 100, A.bdf, 4096), Limit("poda/c", 101, A.bdf, 4096))
    OWNERS = {100: POD, 101: TRAIN}  # noqa: RUF012

    def _ask(self, pod: tuple[LayerState, ...], own: tuple[LayerState, ...] | None) -> bool:
        limits = self.LIMITS if own is not None else self.LIMITS[:1]
        proven = {self.LIMITS[0].key: Protection("poda", A.bdf, pod)}
        if own is not None:
            proven[self.LIMITS[1].key] = Protection("poda/c", A.bdf, own)
        found = held_by_kernel([SLICE], limits, self.OWNERS, proven)
        return SLICE.key in found

    def test_the_pods_limit_speaks_for_a_container_to_come(self) -> None:
        assert self._ask(ON, None)
        assert not self._ask(OFF, None)

    def test_the_containers_own_limit_decides_once_it_is_there(self) -> None:
        assert self._ask(ON, ON)
        assert self._ask(OFF, ON)
        assert not self._ask(ON, OFF)

    def test_a_limit_nothing_was_read_back_of_is_the_hooks(self) -> None:
        assert held_by_kernel([SLICE], self.LIMITS, self.OWNERS, {}) == frozenset()

    def test_without_a_pods_cgroup_it_is_the_hook(self) -> None:
        assert held_by_kernel([SLICE], [], {}, {}) == frozenset()

    def test_one_gpu_that_is_not_held_is_enough_for_the_hook(self) -> None:
        two = replace(SLICE, shares=(Share(A.bdf, 4096), Share(B.bdf, 4096)))
        limits = [Limit("poda", 100, gpu.bdf, 4096) for gpu in (A, B)]
        proven = {
            limits[0].key: Protection("poda", A.bdf, ON),
            limits[1].key: Protection("poda", B.bdf, OFF),
        }
        assert held_by_kernel([two], limits, self.OWNERS, proven) == frozenset()
        proven[limits[1].key] = Protection("poda", B.bdf, ON)
        assert held_by_kernel([two], limits, self.OWNERS, proven) == {two.key}

    def test_the_limit_of_a_pod_with_a_whole_gpu_holds_no_container(self) -> None:
        limits = [Limit("poda", 100, A.bdf, None)]
        proven = {limits[0].key: Protection("poda", A.bdf, ON)}
        assert held_by_kernel([SLICE], limits, self.OWNERS, proven) == frozenset()


class TestFiles:
    def test_only_root_writes_the_slice_and_everyone_the_ledger(self, tmp_path: Path) -> None:
        HookFiles(tmp_path).write([SLICE], [A], frozenset())
        directory = hook_directory(tmp_path, *SLICE.key)
        modes = {
            str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
            for path in tmp_path.rglob("*")
        }
        assert modes == {
            "slices": 0o711,
            "slices/uid-a": 0o755,
            "slices/uid-a/train": 0o755,
            "slices/uid-a/train/slice": 0o444,
            "slices/uid-a/train/ledger": 0o755,
            "slices/uid-a/train/ledger/usage.v1": 0o666,
        }
        assert (directory / "ledger/usage.v1").stat().st_size == LEDGER_BYTES

    def test_a_slice_is_written_again_only_when_it_changed(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        path = hook_directory(tmp_path, *SLICE.key) / "slice"
        files.write([SLICE], [A], frozenset())
        first = path.stat().st_ino
        files.write([SLICE], [A], frozenset())
        assert path.stat().st_ino == first
        files.write([SLICE], [A], frozenset({SLICE.key}))
        assert "refuse kernel" in path.read_text()

    def test_what_somebody_removed_comes_back(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE], [A], frozenset())
        for path in (_ledger(tmp_path), hook_directory(tmp_path, *SLICE.key) / "slice"):
            path.unlink()
            files.write([SLICE], [A], frozenset())
            assert path.is_file()

    def test_a_new_enforcer_takes_nothing_from_a_ledger_in_use(self, tmp_path: Path) -> None:
        HookFiles(tmp_path).write([SLICE], [A], frozenset())
        content = _books({pci_key(A.bdf): 4096})
        _ledger(tmp_path).write_bytes(content)
        HookFiles(tmp_path).write([SLICE], [A], frozenset())
        assert _ledger(tmp_path).read_bytes() == content

    @pytest.mark.parametrize("bad", [0, 1, 2])
    def test_a_slice_that_cannot_be_written_costs_only_itself(
        self, tmp_path: Path, bad: int
    ) -> None:
        slices = [replace(SLICE, container=name) for name in ("a", "b", "c")]
        slices[bad] = replace(slices[bad], container="../../etc")
        (problem,) = HookFiles(tmp_path).write(slices, [A], frozenset())
        assert "container ../../etc of ns/p" in problem
        assert len(list(tmp_path.rglob("slice"))) == 2

    def test_a_place_that_takes_no_files_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "slices").write_text("")
        (problem,) = HookFiles(tmp_path).write([SLICE], [A], frozenset())
        assert str(tmp_path / "slices") in problem
        assert "container train of ns/p" in problem


class TestRemoval:
    def test_the_files_go_with_slice_and_pod(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE, OTHER], [A], frozenset())
        assert files.remove([SLICE.key, OTHER.key], []) == []
        assert files.remove([SLICE.key], ["uid-a"]) == []
        assert len(list(tmp_path.rglob("slice"))) == 2
        assert files.remove([SLICE.key], []) == []
        assert [path.parent.name for path in tmp_path.rglob("slice")] == ["train"]
        assert files.present
        assert files.remove([], []) == []
        assert list((tmp_path / "slices").iterdir()) == []
        assert not files.present

    def test_a_new_enforcer_removes_what_its_predecessor_left(self, tmp_path: Path) -> None:
        HookFiles(tmp_path).write([SLICE, OTHER], [A], frozenset())
        files = HookFiles(tmp_path)
        assert files.present
        files.write([OTHER], [A], frozenset())
        assert files.remove([OTHER.key], []) == []
        assert [path.parent.name for path in tmp_path.rglob("slice")] == ["infer"]

    def test_what_it_did_not_make_stays_and_is_told_until_it_is_gone(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE], [A], frozenset())
        strange = hook_directory(tmp_path, *SLICE.key) / "ledger/strange"
        strange.mkdir()
        for _ in range(2):
            (problem,) = files.remove([], [])
            assert str(strange.parent) in problem
        strange.rmdir()
        assert files.remove([], []) == []
        assert not files.present

    def test_nothing_is_removed_through_a_link(self, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        (victim / "train/ledger").mkdir(parents=True)
        (victim / "train/slice").write_text("")
        (tmp_path / "run/slices").mkdir(parents=True)
        (tmp_path / "run/slices/uid-a").symlink_to(victim)
        assert HookFiles(tmp_path / "run").remove([], []) == []
        assert (victim / "train/slice").exists()

    def test_what_no_slice_can_be_named_is_not_ours(self, tmp_path: Path) -> None:
        stray = tmp_path / "slices" / "lost+found" / "deep down"
        stray.mkdir(parents=True)
        files = HookFiles(tmp_path)
        assert files.remove([], []) == []
        assert stray.is_dir()
        assert not files.present


def _ledger(base: Path, one: Slice = SLICE) -> Path:
    return hook_directory(base, *one.key) / "ledger/usage.v1"


def _books(held: dict[int, int]) -> bytes:
    """A ledger in which one process, in slot 0, holds so many bytes of each GPU."""
    content = bytearray(LEDGER_BYTES)
    struct.pack_into("<QIIII", content, 0, MAGIC, 1024, 64, 1, 0)
    struct.pack_into("<QQQQ16s", content, 4096, 1 << 32 | 7, 1, 1, 0, b"python")
    for column, (gpu, size) in enumerate(held.items()):
        struct.pack_into("<Q", content, 64 + 8 * column, 1 << 63 | gpu)
        struct.pack_into("<QQ", content, 69632 + column * 1024 * 16, size // 2, size)
    return bytes(content)


class TestUse:
    def test_a_ledger_nobody_used_is_zero(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        assert files.used(SLICE) is None
        files.write([SLICE], [A], frozenset())
        assert files.used(SLICE) == {pci_key(A.bdf): 0}

    def test_what_running_processes_say_is_added_up(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE], [A], frozenset())
        _ledger(tmp_path).write_bytes(_books({pci_key(B.bdf): 64, pci_key(A.bdf): 4096}))
        # The owner's lock on its slot is what says that it runs.
        assert files.used(SLICE) == {pci_key(A.bdf): 0}
        lock = struct.pack("hhqqi4x", 1, os.SEEK_SET, 4096, 1, 0)
        with _ledger(tmp_path).open("r+b") as owner:
            fcntl.fcntl(owner, 37, lock)
            assert files.used(SLICE) == {pci_key(A.bdf): 4096}

    def test_a_garbled_ledger_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE], [A], frozenset())
        _ledger(tmp_path).write_bytes(b"?" * LEDGER_BYTES)
        with pytest.raises(LedgerError, match=r"usage\.v1"):
            files.used(SLICE)

    def test_a_ledger_that_was_made_larger_is_cut_back_and_told_of(self, tmp_path: Path) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE], [A], frozenset())
        path = hook_directory(tmp_path, *SLICE.key) / "ledger" / "usage.v1"
        with path.open("r+b") as file:
            file.seek(LEDGER_BYTES)
            file.write(b"x" * 4096)
        with pytest.raises(
            LedgerError, match=f"made it {LEDGER_BYTES + 4096} bytes long; cut back"
        ):
            files.used(SLICE)
        assert path.stat().st_size == LEDGER_BYTES
        assert files.used(SLICE) == {pci_key(A.bdf): 0}

    def test_a_container_that_says_it_holds_more_than_there_is_is_told_of(
        self, tmp_path: Path
    ) -> None:
        files = HookFiles(tmp_path)
        files.write([SLICE], [A], frozenset())
        _ledger(tmp_path).write_bytes(_books({pci_key(A.bdf): (1 << 64) - 1}))
        lock = struct.pack("hhqqi4x", 1, os.SEEK_SET, 4096, 1, 0)
        with _ledger(tmp_path).open("r+b") as owner:
            fcntl.fcntl(owner, 37, lock)
            with pytest.raises(LedgerError, match="wrote what it does not hold"):
                files.used(SLICE)
