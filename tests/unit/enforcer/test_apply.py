# SPDX-License-Identifier: Apache-2.0
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bpf.decode import pack_limit
from bpf.libbpf import BpfError
from enforcer.apply import apply, lift_dmem, probe_dmem
from enforcer.model import Limit, Why, pci_key
from enforcer.plan import (
    DeleteGate,
    DeletePending,
    DeleteUsage,
    EnableDmem,
    KillCgroup,
    Outcome,
    SetDmem,
    SetGate,
    SetPending,
)

GPU = "0000:03:00.0"
KEY = pci_key(GPU)
REGION = "drm/0000:03:00.0/vram"
LIMIT = Limit("pod", 100, GPU, 4096)
SET = SetDmem("pod", GPU, REGION, 4096)


class MapError(BpfError):
    """What the kernel says of a map, with its number."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.errno = number


class Memory:
    """The gate's maps, in memory; ``deaf`` takes writes without keeping them."""

    def __init__(self, error: int | None = None, *, deaf: bool = False) -> None:
        self.entries: dict[tuple[int, int], int | None] = {}
        self.pending: dict[tuple[int, int], int | None] = {}
        self.forgotten: list[tuple[int, int]] = []
        self._error = error
        self._deaf = deaf

    def _check(self) -> None:
        if self._error is not None:
            raise MapError(self._error)

    def limits(self) -> dict[tuple[int, int], int | None]:
        self._check()
        return dict(self.entries)

    def set_limit(self, cgroup_id: int, gpu: int, limit: int | None, /) -> None:
        self._check()
        pack_limit(limit)
        if not self._deaf:
            self.entries[cgroup_id, gpu] = limit

    def delete_limit(self, cgroup_id: int, gpu: int, /) -> bool:
        self._check()
        return not self._deaf and self.entries.pop((cgroup_id, gpu), None) is not None

    def set_pending(self, pod: int, gpu: int, limit: int | None, /) -> None:
        self._check()
        self.pending[pod, gpu] = limit

    def delete_pending(self, pod: int, gpu: int, /) -> bool:
        return self.pending.pop((pod, gpu), None) is not None

    def delete_usage(self, cgroup_id: int, gpu: int, /) -> bool:
        self.forgotten.append((cgroup_id, gpu))
        return True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / "dmem.max").write_text(f"{REGION} max\n")
    return tmp_path


def test_a_limit_is_entered_and_read_back() -> None:
    gate = Memory()
    assert apply([SetGate(LIMIT)], gate, Path("/")) == [Outcome(SetGate(LIMIT))]
    assert gate.entries == {(100, KEY): 4096}


def test_a_gate_that_takes_a_write_without_keeping_it_is_noticed() -> None:
    (outcome,) = apply([SetGate(LIMIT)], Memory(deaf=True), Path("/"))
    assert outcome.why is Why.NOT_IN_PLACE


def test_an_entry_that_survives_its_deletion_is_noticed() -> None:
    gate = Memory(deaf=True)
    gate.entries = {(100, KEY): 1}
    (outcome,) = apply([DeleteGate(100, KEY)], gate, Path("/"))
    assert outcome.why is Why.NOT_IN_PLACE


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.E2BIG, Why.MAP_FULL),
        (errno.ENOSPC, Why.MAP_FULL),
        (errno.EPERM, Why.DENIED),
        (errno.EINVAL, Why.REFUSED),
    ],
)
def test_the_kernels_refusal_of_a_map_write_is_a_reason(number: int, why: Why) -> None:
    (outcome,) = apply([SetGate(LIMIT)], Memory(number), Path("/"))
    assert (outcome.why, outcome.detail) == (why, os.strerror(number))


def test_deleting_what_is_gone_is_done() -> None:
    gate = Memory()
    actions = [DeleteGate(7, KEY), DeleteUsage(7, KEY)]
    assert apply(actions, gate, Path("/")) == [Outcome(action) for action in actions]
    assert gate.forgotten == [(7, KEY)]


def test_what_new_containers_get_is_entered_and_taken_out() -> None:
    gate = Memory()
    assert apply([SetPending(LIMIT)], gate, Path("/")) == [Outcome(SetPending(LIMIT))]
    assert gate.pending == {(100, KEY): 4096}
    assert apply([DeletePending(100, KEY)], gate, Path("/")) == [Outcome(DeletePending(100, KEY))]
    assert gate.pending == {}
    (outcome,) = apply([SetPending(LIMIT)], Memory(errno.E2BIG), Path("/"))
    assert outcome.why is Why.MAP_FULL


def test_without_a_gate_its_actions_say_so() -> None:
    (outcome,) = apply([SetGate(LIMIT)], None, Path("/"))
    assert outcome.why is Why.NOT_LOADED


def test_a_dmem_limit_is_written_and_read_back(root: Path) -> None:
    assert apply([SET], None, root) == [Outcome(SET)]
    assert (root / "pod/dmem.max").read_text() == f"{REGION} 4096"


def test_a_dmem_limit_is_lifted_with_max(root: Path) -> None:
    lift = SetDmem("pod", GPU, REGION, None)
    assert apply([SET, lift], None, root) == [Outcome(SET), Outcome(lift)]
    assert (root / "pod/dmem.max").read_text() == f"{REGION} max"


@contextmanager
def stubborn(root: Path, reads: str, *used: int) -> Iterator[None]:
    """A dmem.max that keeps what it reads where less than ``used`` is written, as before 7.3.

    One number for each write that there has to be.
    """
    path = root / "pod/dmem.max"
    path.unlink()
    os.mkfifo(path)
    done = threading.Event()

    def serve() -> None:
        now = reads
        # The look before, and after every write the read-back.
        path.write_text(f"{REGION} {now}\n")
        for least in used:
            wanted = path.read_text().split()[1]
            now = wanted if int(wanted) >= least else now
            path.write_text(f"{REGION} {now}\n")
        done.set()

    threading.Thread(target=serve, daemon=True).start()
    yield
    assert done.wait(5)


@pytest.mark.parametrize("reads", ["max", "20480"])
def test_a_limit_that_is_not_taken_is_told_and_stands_at_what_is_in_use(
    root: Path, reads: str
) -> None:
    (root / "pod/dmem.current").write_text(f"{REGION} 12288\n")
    with stubborn(root, reads, 12288, 12288):
        (outcome,) = apply([SET], None, root)
    assert outcome.why is Why.NOT_TAKEN
    assert "wrote 4096, reads 12288" in outcome.detail


def test_a_limit_that_stands_at_what_is_in_use_is_left_there(root: Path) -> None:
    (root / "pod/dmem.current").write_text(f"{REGION} 12288\n")
    with stubborn(root, "12288", 12288):
        (outcome,) = apply([SET], None, root)
    assert outcome.why is Why.NOT_TAKEN
    assert "wrote 4096, reads 12288" in outcome.detail


def test_what_grew_meanwhile_leaves_the_old_limit(root: Path) -> None:
    (root / "pod/dmem.current").write_text(f"{REGION} 12288\n")
    with stubborn(root, "max", 12288, 16384):
        (outcome,) = apply([SET], None, root)
    assert outcome.why is Why.NOT_TAKEN
    assert "wrote 4096, reads None" in outcome.detail


def test_what_was_freed_meanwhile_lets_the_limit_in(root: Path) -> None:
    (root / "pod/dmem.current").write_text(f"{REGION} 0\n")
    with stubborn(root, "max", 12288, 0):
        assert apply([SET], None, root) == [Outcome(SET)]


def test_a_vanished_cgroup_is_told_from_a_missing_controller(root: Path) -> None:
    (root / "pod/dmem.max").unlink()
    gone = SetDmem("gone", GPU, REGION, 4096)
    assert [outcome.why for outcome in apply([SET, gone], None, root)] == [
        Why.NO_CONTROLLER,
        Why.VANISHED,
    ]
    assert not (root / "pod/dmem.max").exists()


def test_a_region_that_does_not_read_back_is_none(root: Path) -> None:
    other = SetDmem("pod", GPU, "drm/0000:03:00.0/VRAM", 4096)
    path = root / "pod/dmem.max"
    path.unlink()
    os.mkfifo(path)

    def serve() -> None:
        path.write_text(f"{REGION} max\n")
        path.read_text()
        path.write_text(f"{REGION} max\n")

    threading.Thread(target=serve, daemon=True).start()
    (outcome,) = apply([other], None, root)
    assert outcome.why is Why.NO_REGION


def test_a_malformed_dmem_file_is_a_refusal_and_is_not_written(root: Path) -> None:
    (root / "pod/dmem.max").write_text("nonsense\n")
    (outcome,) = apply([SET], None, root)
    assert outcome.why is Why.REFUSED
    assert (root / "pod/dmem.max").read_text() == "nonsense\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give root up")
def test_a_file_that_may_not_be_written_is_denied(root: Path) -> None:
    for path in (root, *root.parents):
        if path.owner() == "root" and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o555)
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        (outcome,) = apply([SET], None, root)
        os._exit(0 if outcome.why is Why.DENIED else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (root / "pod/dmem.max").read_text() == f"{REGION} max\n"


def test_one_failing_action_does_not_stop_the_others(root: Path) -> None:
    gone = SetDmem("gone", GPU, REGION, 4096)
    for actions in ([gone, SET, SET], [SET, gone, SET], [SET, SET, gone]):
        outcomes = apply(actions, None, root)
        assert [outcome.why is None for outcome in outcomes] == [one is SET for one in actions]


def test_enabling_dmem_writes_the_controller_and_judges_by_reading(root: Path) -> None:
    # A plain file keeps the "+dmem" itself, which is not the controller's name.
    (root / "pod/cgroup.subtree_control").write_text("cpu\n")
    (outcome,) = apply([EnableDmem("pod")], None, root)
    assert (root / "pod/cgroup.subtree_control").read_text() == "+dmem"
    assert outcome.why is Why.NOT_IN_PLACE


def test_enabling_dmem_in_a_vanished_cgroup_is_vanished(root: Path) -> None:
    (outcome,) = apply([EnableDmem("gone")], None, root)
    assert outcome.why is Why.VANISHED


def test_without_regions_nothing_is_probed(tmp_path: Path) -> None:
    assert probe_dmem(tmp_path, {}) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_probe_that_fails_claims_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    assert probe_dmem(tmp_path, {GPU: REGION}) == {GPU: Why.NOT_IN_PLACE}
    assert [entry.name for entry in tmp_path.iterdir()] == ["cgroup.subtree_control"]


def test_a_scratch_cgroup_left_by_a_killed_enforcer_is_used_and_removed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("dmem")
    scratch = tmp_path / "ringfence-probe"
    scratch.mkdir()
    assert probe_dmem(tmp_path, {GPU: REGION}) == {GPU: Why.NO_CONTROLLER}
    assert not scratch.exists()


def test_a_scratch_cgroup_that_cannot_be_removed_spoils_no_probe(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("dmem")
    (tmp_path / "ringfence-probe/of-somebody").mkdir(parents=True)
    for _ in range(2):
        assert probe_dmem(tmp_path, {GPU: REGION}) == {GPU: Why.NO_CONTROLLER}


def test_every_pods_and_containers_limit_is_lifted_and_no_one_elses(tmp_path: Path) -> None:
    other = "drm/0000:44:00.0/vram"
    pod = tmp_path / f"kubepods.slice/pod{'a' * 32}"
    container, stranger = pod / ("b" * 64), tmp_path / "system.slice"
    for path in (pod, container, stranger):
        path.mkdir(parents=True)
        (path / "dmem.max").write_text(f"{REGION} 4096\n")
    assert lift_dmem(tmp_path, {GPU: REGION}) == []
    assert (pod / "dmem.max").read_text() == f"{REGION} max"
    assert (container / "dmem.max").read_text() == f"{REGION} max"
    assert (stranger / "dmem.max").read_text() == f"{REGION} 4096\n"
    (container / "dmem.max").unlink()
    (pod / "dmem.max").write_text("nonsense\n")
    (problem,) = lift_dmem(tmp_path, {GPU: REGION, "0000:44:00.0": other})[:1]
    assert "dmem.max" in problem
    assert "nonsense" in problem


class TestKill:
    def _cgroup(self, root: Path) -> KillCgroup:
        (root / "poda/c").mkdir(parents=True)
        (root / "poda/c/cgroup.kill").write_text("")
        return KillCgroup("poda/c", (root / "poda/c").stat().st_ino)

    def test_it_ends_the_cgroup(self, tmp_path: Path) -> None:
        action = self._cgroup(tmp_path)
        assert apply([action], None, tmp_path) == [Outcome(action)]
        assert (tmp_path / "poda/c/cgroup.kill").read_text() == "1"

    def test_another_cgroup_of_the_same_path_is_left_alone(self, tmp_path: Path) -> None:
        action = replace(self._cgroup(tmp_path), cgroup_id=1)
        (outcome,) = apply([action], None, tmp_path)
        assert outcome.why is Why.VANISHED
        assert (tmp_path / "poda/c/cgroup.kill").read_text() == ""

    def test_a_cgroup_that_went_or_a_kernel_without_the_file_is_an_outcome(
        self, tmp_path: Path
    ) -> None:
        action = self._cgroup(tmp_path)
        (tmp_path / "poda/c/cgroup.kill").unlink()
        (outcome,) = apply([action], None, tmp_path)
        assert outcome.why is Why.REFUSED
        assert "cgroup.kill: needs Linux 5.14" in outcome.detail
        assert not (tmp_path / "poda/c/cgroup.kill").exists()
        (outcome,) = apply([replace(action, path="gone")], None, tmp_path)
        assert outcome.why is Why.VANISHED


def test_a_limit_that_no_map_can_hold_costs_only_itself() -> None:
    gate, huge = Memory(), replace(LIMIT, cgroup_id=LIMIT.cgroup_id + 1, vram_bytes=1 << 64)
    refused, done = apply([SetGate(huge), SetGate(LIMIT)], gate, Path("/"))
    assert (refused.why, done.why) == (Why.REFUSED, None)
    assert gate.entries == {LIMIT.key: LIMIT.vram_bytes}
