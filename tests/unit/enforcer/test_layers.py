# SPDX-License-Identifier: Apache-2.0
"""The kernel layers where they cannot be had. Where they can: tests/vm."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpf import loader
from bpf.decode import CuMask, Holding, Policy, pack_cu_mask
from bpf.libbpf import BpfError
from enforcer import layers
from enforcer.devices import Devices
from enforcer.host.roots import Roots
from enforcer.layers import KernelLayers, never_possible
from enforcer.model import Layer, LayerState, LedgerSource, Why
from tests.testbed.trees import GpuSpec, NodeSpec, write_sys


@pytest.fixture
def kernel(tmp_path: Path) -> KernelLayers:
    return KernelLayers(tmp_path / "objects", tmp_path / "bpf", tmp_path / "sys")


def test_a_gate_that_was_not_asked_for_yet_is_not_loaded(kernel: KernelLayers) -> None:
    assert kernel.gate == LayerState(Layer.GATE, Why.NOT_LOADED)
    assert (kernel.ledger, kernel.problems) == ("none", {})


def test_a_missing_object_is_a_reason_and_not_the_end(kernel: KernelLayers) -> None:
    kernel.load_gate()
    kernel.attach()
    assert kernel.gate.reason is Why.NOT_LOADED
    assert "gate.bpf.o: no such BPF object" in kernel.problems["gate"]
    assert kernel.ledger == "none"


def test_a_place_that_takes_no_pins_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kernel = KernelLayers(tmp_path, tmp_path / "file" / "bpf", tmp_path)
    kernel.load_gate()
    assert "file/bpf" in kernel.problems["gate"]


def test_without_maps_there_is_nothing_to_read_and_nothing_fails(kernel: KernelLayers) -> None:
    assert kernel.read() == (None, {})
    assert kernel.counters() == ()
    kernel.count_entries()
    kernel.set_gpus({5: 1}, {128: 1})
    kernel.close()
    assert (kernel.map_fill, kernel.problems) == ((), {})


class LedgerMaps(loader.Maps):
    """Pinned maps that say whether a ledger acts."""

    def __init__(self, acts: bool | BpfError) -> None:
        self._acts = acts

    def ledger_acts(self) -> bool:
        if isinstance(self._acts, BpfError):
            raise self._acts
        return self._acts


@pytest.mark.parametrize(
    ("acts", "ledger"),
    [
        (True, LedgerSource.BO),
        (BpfError("unreadable"), LedgerSource.BO),
        (False, LedgerSource.NONE),
    ],
)
def test_a_ledger_is_attached_again_only_when_its_driver_went_from_under_it(
    kernel: KernelLayers, acts: bool | BpfError, ledger: LedgerSource
) -> None:
    kernel.maps = LedgerMaps(acts)
    kernel.ledger = LedgerSource.BO
    kernel.attach()  # there is no object to attach here
    assert kernel.ledger == ledger
    assert ("ledger" in kernel.problems) == (ledger is LedgerSource.NONE)


def test_a_switched_off_gate_says_so(kernel: KernelLayers) -> None:
    kernel.switch_off()
    assert kernel.gate.reason is Why.SWITCHED_OFF
    assert kernel.problems == {}


def test_unloading_nothing_is_harmless(tmp_path: Path) -> None:
    layers.unload(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("upgrade", [False, True])
def test_a_predecessor_s_ledger_is_replaced_before_its_gate(
    kernel: KernelLayers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrade: bool
) -> None:
    order: list[str] = []

    def load(part: str) -> None:
        order.append(part)
        raise BpfError(part)

    monkeypatch.setattr(loader, "load_gate", lambda *_, **__: load("gate"))
    monkeypatch.setattr(loader, "load_ledger", lambda *_, **__: load("ledger"))
    if upgrade:
        link = tmp_path / "bpf/1/7/ledger_bo_create"
        link.parent.mkdir(parents=True)
        link.touch()
    kernel.load_gate()
    assert order == (["ledger", "gate"] if upgrade else ["gate"])


@pytest.mark.parametrize("by_probes", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_ledger_of_probes_says_so_where_it_has_no_right_to_real_time(
    kernel: KernelLayers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    by_probes: bool,
    allowed: bool,
) -> None:
    @contextmanager
    def unpreempted() -> Iterator[bool]:
        yield allowed

    attached = {"bo_init": None} if by_probes else {"bo_created": None}
    made = loader.Ledger(Path("/nowhere"), 1, attached)
    monkeypatch.setattr(loader, "load_ledger", lambda *_, **__: made)
    monkeypatch.setattr(layers, "unpreempted", unpreempted)
    kernel.maps = LedgerMaps(True)
    kernel.attach()
    assert kernel.ledger == ("bo-probes" if by_probes else "bo")
    assert ("CAP_SYS_NICE" in caplog.text) == (by_probes and not allowed)


@pytest.mark.parametrize("program", ["bo_init", "bo_init_dkms", "bo_created"])
def test_a_predecessor_s_ledger_that_goes_on_is_named_for_what_it_is(
    kernel: KernelLayers, tmp_path: Path, program: str
) -> None:
    link = tmp_path / f"bpf/1/7/ledger_{program}"
    link.parent.mkdir(parents=True)
    link.touch()
    kernel.maps = LedgerMaps(True)
    kernel.attach()  # there is no object to attach here
    assert kernel.ledger == ("bo" if program == "bo_created" else "bo-probes")


class CuMaps(loader.Maps):
    """Compute units as the maps would keep them; ``full``: no room for another."""

    def __init__(self, masks: dict[tuple[int, int], CuMask], *, full: bool = False) -> None:
        self.masks = masks
        self.full = full

    def cu_masks(self) -> dict[tuple[int, int], CuMask]:
        return dict(self.masks)

    def set_cu_mask(self, cgroup: int, gpu: int, mask: CuMask) -> None:
        if self.full:
            raise BpfError("cu_masks: the map is full")
        pack_cu_mask(mask)
        self.masks[cgroup, gpu] = mask

    def delete_cu_mask(self, cgroup: int, gpu: int) -> bool:
        return self.masks.pop((cgroup, gpu), None) is not None


def test_a_cu_mask_ends_with_its_cgroup_and_not_with_its_slice(kernel: KernelLayers) -> None:
    kernel.maps = maps = CuMaps({(1, 9): CuMask(1), (2, 9): CuMask(3), (3, 9): CuMask(7)})
    kernel.keep_cu_masks({(1, 9): 1, (2, 9): 2, (4, 9): 8}, {1, 2, 4}, enforced=False)
    assert maps.masks == {(1, 9): CuMask(1), (2, 9): CuMask(2), (4, 9): CuMask(8)}
    kernel.keep_cu_masks({(1, 9): 1}, {1, 2}, enforced=True)
    assert maps.masks == {(1, 9): CuMask(1, enforced=True), (2, 9): CuMask(2)}
    kernel.keep_cu_masks({}, None, enforced=True)
    assert maps.masks.keys() == {(1, 9), (2, 9)}
    assert kernel.problems == {}


def test_a_cu_mask_that_is_too_wide_costs_only_itself(kernel: KernelLayers) -> None:
    kernel.maps = maps = CuMaps({})
    kernel.keep_cu_masks({(1, 9): 1 << 1024, (2, 9): 2}, {1, 2}, enforced=True)
    assert maps.masks == {(2, 9): CuMask(2, enforced=True)}
    assert "cgroup 1 on 0000:00:01.1: " in kernel.problems["cu_masks"]


def test_compute_units_that_find_no_room_are_a_problem_until_they_do(kernel: KernelLayers) -> None:
    kernel.keep_cu_masks({(1, 9): 1}, {1}, enforced=False)  # no maps yet
    kernel.maps = maps = CuMaps({}, full=True)
    kernel.keep_cu_masks({(1, 9): 1}, {1}, enforced=False)
    assert "cu_masks: the map is full" in kernel.problems["cu_masks"]
    maps.full = False
    kernel.keep_cu_masks({(1, 9): 1}, {1}, enforced=False)
    assert kernel.problems == {}


@pytest.mark.parametrize(
    ("types", "impossible"),
    [
        (None, True),
        (b"\0BPF_FUNC_map_lookup_elem\0BPF_FUNC_loop\0", True),
        (b"\0BPF_FUNC_map_lookup_elem\0BPF_FUNC_get_func_ret\0", False),
        (b"", False),
    ],
)
def test_a_kernel_that_lacks_what_the_gate_needs_is_told_from_a_gate_that_failed(
    kernel: KernelLayers, tmp_path: Path, types: bytes | None, impossible: bool
) -> None:
    (tmp_path / "sys/kernel/btf").mkdir(parents=True)
    if types is not None:
        (tmp_path / "sys/kernel/btf/vmlinux").write_bytes(types)
    kernel.load_gate()
    assert kernel.gate.reason is (Why.NOT_POSSIBLE if impossible else Why.NOT_LOADED)


def test_a_kernel_that_cannot_be_asked_may_have_what_the_gate_needs(tmp_path: Path) -> None:
    assert not never_possible(tmp_path)
    (tmp_path / "kernel/btf/vmlinux").mkdir(parents=True)
    assert not never_possible(tmp_path)


class Marked(loader.Maps):
    """Pinned maps with a cgroup that has overrun, and so many events that found no room."""

    def __init__(self) -> None:
        self.dropped = 7

    def counters(self) -> dict[str, int]:
        return {"events_dropped": self.dropped}

    def overran(self) -> frozenset[int]:
        return frozenset({101})


def test_overruns_are_untold_at_first_and_for_a_while_after_an_event_found_no_room(
    tmp_path: Path,
) -> None:
    now = 1000.0
    kernel = KernelLayers(tmp_path, tmp_path, tmp_path, clock=lambda: now)
    assert kernel.untold() == frozenset()
    kernel.maps = maps = Marked()
    assert kernel.untold() == {101}
    now += 60
    assert kernel.untold() == frozenset()
    maps.dropped += 1
    for _ in range(3):
        assert kernel.untold() == {101}
        now += 20
    assert kernel.untold() == frozenset()


class Buffers(loader.Maps):
    """Pinned maps with these buffers."""

    def __init__(self, *buffers: Holding) -> None:
        self._buffers = buffers

    def buffers(self) -> Iterator[tuple[int, Holding]]:
        return enumerate(self._buffers)


class Attached(loader.Ledger):
    """A ledger until it is let go."""

    __slots__ = ()

    def detach(self) -> None:
        pass


@pytest.mark.parametrize(("followed", "ledger"), [(True, "bo"), (False, "none")])
def test_the_driver_is_let_go_beside_calls_without_an_end_but_not_beside_buffers(
    kernel: KernelLayers, tmp_path: Path, followed: bool, ledger: str
) -> None:
    kernel.maps = Buffers(Holding(768, (100, 101), 4096, False, followed))
    kernel.ledger = LedgerSource.BO
    kernel._ledger = Attached(tmp_path, 1, {})
    kernel.let_go()
    assert kernel.ledger == ledger


class Told(loader.Maps):
    """Pinned maps that know what they were told."""

    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.gpus: dict[int, int] = {}
        self.closed = False

    def set_policy(self, wanted: Policy) -> None:
        self.policies.append(wanted)

    def set_builtin_majors(self, majors: frozenset[int]) -> None:
        pass

    def set_gpus(self, by_kfd_id: Mapping[int, int], by_minor: Mapping[int, int]) -> None:
        self.gpus = dict(by_kfd_id)

    def fill(self) -> dict[str, tuple[int, int]]:
        return {}

    def close(self) -> None:
        self.closed = True


class Proven(loader.Gate):
    """A gate that is asked."""

    __slots__ = ()

    def self_test(self) -> bool:
        return True


class Mended:
    """A node whose gate does not load until ``mended``; a try takes ``seconds`` of a CPU."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mended = False
        self.seconds = 0.0
        self.now = 1000.0
        self.tries = 0
        self.trouble = "no BPF file system"
        self.loading: list[int] = []
        """Tries of the gate before each load that was told of."""
        self.maps: list[Told] = []
        self.kernel = KernelLayers(
            path / "objects",
            path / "bpf",
            path / "sys",
            lambda: self.now,
            lambda: self.tries * self.seconds,
            lambda: self.loading.append(self.tries),
        )
        monkeypatch.setattr(loader, "load_gate", lambda *_, **__: self._load())
        monkeypatch.setattr(loader, "open_maps", lambda *_: self._open())

    def _load(self) -> loader.Gate:
        self.tries += 1
        if not self.mended:
            raise BpfError(self.trouble)
        return Proven(Path("/nowhere"), 1, {})

    def _open(self) -> Told:
        if not self.mended:
            raise BpfError("no maps")
        self.maps.append(Told())
        return self.maps[-1]

    def pass_by(self, seconds: float) -> int:
        """How often it was tried in this time, of which a pass every 2 s is told."""
        before = self.tries
        end = self.now + seconds
        while self.now < end:
            self.kernel.retry_gate()
            self.now += 2
        return self.tries - before


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mended:
    return Mended(tmp_path, monkeypatch)


def test_a_gate_that_lacked_something_is_loaded_when_that_is_there_and_told_its_policy(
    node: Mended, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.kernel.load_gate()
    node.kernel.set_policy(Policy(refuse_imports=True))
    assert node.pass_by(62) == 2
    assert (node.kernel.gate.reason, "gate" in node.kernel.problems) == (Why.NOT_LOADED, True)
    node.mended = True
    assert node.pass_by(90) == 1
    assert (node.kernel.gate.on, node.kernel.problems) == (True, {})
    assert [told.policies for told in node.maps] == [[Policy(refuse_imports=True)]]
    assert "gate on: what it lacked is there" in caplog.text
    assert node.pass_by(3600) == 0


def test_a_try_that_takes_long_is_made_seldom(node: Mended) -> None:
    node.seconds = 3.0
    node.kernel.load_gate()
    assert node.pass_by(290) == 0
    assert node.pass_by(20) == 1
    node.seconds = 100.0
    assert node.pass_by(700) == 1
    assert node.pass_by(7300) == 2


def test_what_fails_the_same_way_each_time_is_tried_less_and_less_and_what_changed_soon(
    node: Mended,
) -> None:
    node.kernel.load_gate()
    assert [node.pass_by(600) for _ in range(3)] == [4, 1, 1]
    node.pass_by(3 * 3600)
    assert node.pass_by(4 * 3600) == 4
    node.trouble = "no memory for the programs"
    assert node.pass_by(3700) == 5


def test_a_load_is_told_before_it_begins(node: Mended) -> None:
    node.kernel.load_gate()
    node.kernel.maps = Told()
    node.kernel.attach()
    assert node.loading == [0, 1]


def test_a_gate_that_is_not_wanted_or_never_possible_is_not_tried_again(node: Mended) -> None:
    node.kernel.switch_off()
    assert node.pass_by(3600) == 0
    (node.kernel._sys / "kernel").mkdir(parents=True)  # without type information
    node.kernel.load_gate()
    assert node.kernel.gate.reason is Why.NOT_POSSIBLE
    assert node.pass_by(3600) == 0


def test_a_gate_that_fails_when_its_ledger_comes_is_tried_again(
    node: Mended, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = loader.Ledger(Path("/nowhere"), 1, {"bo_created": None})
    monkeypatch.setattr(loader, "load_ledger", lambda *_, **__: ledger)
    node.kernel.gate_off = Why.NO_LEDGER
    node.kernel.maps = Told()
    node.kernel.attach()
    assert (node.kernel.ledger, node.kernel.gate.reason) == (LedgerSource.BO, Why.NOT_LOADED)
    node.mended = True
    assert node.pass_by(30) == 1
    assert node.kernel.gate.on


def test_a_gate_loaded_late_replaces_the_maps_its_predecessor_had(node: Mended) -> None:
    node.kernel.load_gate()
    node.kernel.maps = old = Told()  # as of a predecessor that goes on acting
    node.mended = True
    node.pass_by(30)
    assert old.closed
    assert node.kernel.maps is node.maps[0]


def test_a_gate_loaded_late_knows_the_gpus_at_once(node: Mended, tmp_path: Path) -> None:
    write_sys(tmp_path / "sys", NodeSpec((GpuSpec("0000:03:00.0", 5, 1, 128),)))
    roots = Roots(sys=tmp_path / "sys", cgroup=tmp_path / "cgroup", share=tmp_path)
    devices = Devices(roots, node.kernel, use_dmem=False)
    node.kernel.load_gate()
    devices.look(0)
    devices.attach()
    node.mended = True
    node.now += 30
    devices.look(30)
    devices.attach()
    assert node.kernel.gate.on
    assert node.maps[0].gpus == {5: 768}
