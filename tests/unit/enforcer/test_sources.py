# SPDX-License-Identifier: Apache-2.0
"""The comparison on made-up trees; the maps' content is given, everything else is read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bpf.decode import LedgerUsage
from enforcer import sources
from enforcer.accounting import DRIFT_BOUND, Checked, Readings
from enforcer.devices import Devices
from enforcer.hookfiles import HookFiles
from enforcer.host.roots import Roots
from enforcer.layers import KernelLayers
from enforcer.model import (
    Container,
    ContainerKind,
    Gpu,
    LedgerSource,
    Limit,
    PodCgroup,
    Share,
    Slice,
    about,
)
from enforcer.slices import hook_directory
from enforcer.sources import Sources, charged
from tests.testbed.trees import write_cgroup, write_process

GPU = Gpu("0000:03:00.0", 5, 1, 128, "gpu", 1 << 37, 304, 90402)
REGION = f"drm/{GPU.bdf}/vram"
POD = PodCgroup("uid-a", "poda", 100)
TRAIN = Container("c" * 64, POD, "poda/c", 101, "train")
OWNERS = {100: POD, 101: TRAIN}
LIMITS = (Limit("poda", 100, GPU.bdf, 1 << 30), Limit("poda/c", 101, GPU.bdf, 1 << 30))
SLICE = Slice(
    "uid-a", "ns", "p", "train", ContainerKind.APP, (), (Share(GPU.bdf, 1 << 30),),
    "2026-11-29T13:00:00Z",
)  # fmt: skip
MIB = 1 << 20


class Kernel(KernelLayers):
    """Kernel layers whose ledger holds what a test says: one reading after the other."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path, path)
        self.ledger = LedgerSource.BO
        self.readings: list[Mapping[tuple[int, int], LedgerUsage] | OSError] = []

    def read(
        self,
    ) -> tuple[Mapping[tuple[int, int], int | None] | None, Mapping[tuple[int, int], LedgerUsage]]:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, OSError):
            raise reading
        return {}, reading


class Node:
    """A node with one container, and the sources that look at it."""

    def __init__(self, path: Path) -> None:
        self.roots = Roots(sys=path / "sys", proc=path / "proc", cgroup=path / "cgroup")
        for cgroup in ("", "poda", "poda/c"):
            write_cgroup(self.roots.cgroup, cgroup)
        (self.roots.cgroup / "poda/c/cgroup.procs").write_text("7\n")
        self.kernel = Kernel(path)
        self.devices = Devices(self.roots, self.kernel, use_dmem=True)
        self.devices.gpus = (GPU,)
        self.devices.regions = {GPU.bdf: REGION}
        self.hook = HookFiles(path / "run")
        self.base = path / "run"
        self.sources = Sources(self.roots, self.kernel, self.devices, self.hook)
        self.now = 1000.0

    def holds(self, kfd: int, charged: int, *ledger: int) -> None:
        """The container's VRAM by KFD, by dmem, and by the ledger's readings."""
        write_process(self.roots.sys, 7, {GPU.kfd_id: kfd})
        for path in ("poda", "poda/c"):
            (self.roots.cgroup / path / "dmem.current").write_text(f"{REGION} {charged}\n")
        self.kernel.readings = [
            {limit.key: LedgerUsage(size, 0, size, 0, 1, peak=max(ledger)) for limit in LIMITS}
            for size in ledger
        ]

    def see(
        self, seconds: float = 5.0, limits: Sequence[Limit] = LIMITS
    ) -> tuple[Mapping[tuple[int, int], Checked], list[str]]:
        """What a pass so much later finds."""
        self.now += seconds
        try:
            ledger = None if self.kernel.ledger is LedgerSource.NONE else self.kernel.read()[1]
        except OSError:
            ledger = None
        problems: list[str] = []
        before = Readings(
            ledger, charged(self.roots.cgroup, limits, self.devices.regions, problems)
        )
        found, told = self.sources.look(
            self.now, self.roots.cgroup, limits, OWNERS, [SLICE], before
        )
        return found, [*problems, *told]

    def look(self, seconds: float = 5.0) -> tuple[tuple[int | None, int | None], list[str]]:
        """(escaped, drift) of the container, and the problems."""
        checked, problems = self.see(seconds)
        one = checked[LIMITS[1].key]
        return (one.escaped, one.drift), problems

    def agree(self) -> tuple[tuple[int | None, int | None], list[str]]:
        """What is told when as many looks as it takes have found the same."""
        for _ in range(2):
            self.look()
        return self.look()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_sources_that_agree_are_no_problem(node: Node) -> None:
    node.holds(64 * MIB, 64 * MIB, 64 * MIB)
    assert node.look() == ((0, 0), [])


def test_what_dmem_lost_is_told_of_container_and_pod(node: Node) -> None:
    node.holds(64 * MIB, 16 * MIB, 64 * MIB)
    found, problems = node.agree()
    assert found == (48 * MIB, 0)
    assert [problem.split(":")[0] for problem in problems] == [
        "pod ns/p on 0000",
        "container train of ns/p on 0000",
    ]
    assert all("does not charge 48 MiB" in problem for problem in problems)
    node.holds(64 * MIB, 8 * MIB, 64 * MIB)
    _, more = node.agree()
    assert all("does not charge 56 MiB" in problem for problem in more)
    assert list(map(about, more)) == list(map(about, problems)), "another size is no news"


def test_a_little_that_dmem_lost_is_a_number_and_no_problem(node: Node) -> None:
    node.holds(64 * MIB, 64 * MIB - DRIFT_BOUND, 64 * MIB)
    assert node.agree() == ((DRIFT_BOUND, 0), [])


def test_what_the_ledger_missed_is_told_until_it_is_gone(node: Node) -> None:
    node.holds(64 * MIB, 64 * MIB, 32 * MIB)
    node.agree()
    for seconds in (5.0, 0.1):
        found, problems = node.look(seconds)
        assert found == (0, 32 * MIB)
        assert "counts 32 MiB of VRAM more than the ledger" in problems[-1]
    node.holds(64 * MIB, 64 * MIB, 31 * MIB)
    _, more = node.agree()
    assert "counts 33 MiB" in more[-1]
    assert list(map(about, more)) == list(map(about, problems)), "another size is no news"
    node.holds(32 * MIB, 32 * MIB, 32 * MIB)
    assert node.look() == ((0, 0), [])


def test_a_reading_while_the_ledger_moves_changes_nothing(node: Node) -> None:
    node.holds(64 * MIB, 16 * MIB, 64 * MIB)
    node.agree()
    node.holds(8 * MIB, 8 * MIB, 8 * MIB, 64 * MIB)
    assert node.look()[0] == (48 * MIB, 0)


def test_between_comparisons_nothing_is_read(node: Node) -> None:
    node.holds(64 * MIB, 0, 64 * MIB)
    node.agree()
    node.holds(64 * MIB, 64 * MIB, 64 * MIB)
    assert node.look(1.0)[0] == (64 * MIB, 0)
    assert node.look(4.0)[0] == (0, 0)


def test_a_difference_that_not_all_looks_find_is_none(node: Node) -> None:
    """While a tenant allocates steadily two readings of different moments look like one."""
    for mib in (32, 64, 0, 64, 0, 0):
        node.holds(64 * MIB, mib * MIB, 64 * MIB)
        (escaped, drift), problems = node.look()
        assert (escaped or 0, drift, problems) == (0, 0, [])
    assert node.look()[0] == (64 * MIB, 0)


def test_until_enough_looks_have_found_a_difference_it_is_open(node: Node) -> None:
    node.holds(64 * MIB, 0, 64 * MIB)
    assert [node.look()[0] for _ in range(3)] == [(None, 0), (None, 0), (64 * MIB, 0)]


def test_a_pod_with_a_new_container_is_looked_at_at_once(node: Node) -> None:
    node.holds(64 * MIB, 0, 64 * MIB)
    assert node.see(limits=LIMITS[:1])[0].keys() == {LIMITS[0].key}
    assert node.see(0.1)[0].keys() == {limit.key for limit in LIMITS}


def test_a_pod_that_went_is_forgotten(node: Node) -> None:
    node.holds(64 * MIB, 0, 64 * MIB)
    node.agree()
    assert node.see(limits=()) == ({}, [])
    node.holds(64 * MIB, 64 * MIB, 64 * MIB)
    assert node.look(0.1)[0] == (0, 0)


def test_every_pod_has_its_turn_when_there_is_no_time_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.holds(0, 0, 0)
    monkeypatch.setattr(sources, "_BUDGET", 0.0)
    owners = {number: PodCgroup(f"uid-{number}", f"pod{number}", number) for number in range(3)}
    limits = [Limit(owner.path, number, GPU.bdf, 1) for number, owner in owners.items()]
    slices = [replace(SLICE, pod_uid=owner.uid) for owner in owners.values()]
    turns = []
    for second in range(6):
        found, _ = node.sources.look(
            1000.0 + second, node.roots.cgroup, limits, owners, slices, Readings({}, {})
        )
        turns.append(len(found))
    assert turns == [1, 2, 3, 3, 3, 3]
    looks = node.sources._looks
    assert sorted(look.at for look in looks.values()) == [1001.0, 1002.0, 1005.0]


@pytest.mark.parametrize("broken", [0, 1])
def test_maps_that_cannot_be_read_leave_it_unknown(node: Node, broken: int) -> None:
    node.holds(64 * MIB, 0, 64 * MIB, 64 * MIB)
    node.kernel.readings[broken] = OSError("gone")
    assert node.look()[0] == (None, None)


def test_without_a_ledger_the_processes_are_all_there_is(node: Node) -> None:
    node.holds(64 * MIB, 0, 0)
    node.kernel.ledger = LedgerSource.NONE
    assert node.look() == ((None, None), [])


def test_the_hooks_books_stand_beside_the_others(node: Node) -> None:
    node.holds(0, 0, 0)
    node.hook.write([SLICE], [GPU], frozenset())
    checked, problems = node.see()
    assert problems == []
    assert {key: one.hook for key, one in checked.items()} == {
        LIMITS[0].key: 0,
        LIMITS[1].key: 0,
    }


def test_books_that_a_container_garbled_are_unknown_and_told(node: Node) -> None:
    node.holds(0, 0, 0)
    node.hook.write([SLICE], [GPU], frozenset())
    (hook_directory(node.base, *SLICE.key) / "ledger/usage.v1").write_bytes(b"?")
    checked, (problem,) = node.see()
    assert checked[LIMITS[1].key].hook is None
    assert about(problem) == "hook of container train of ns/p"
    assert "usage.v1" in problem
