# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from bpf.decode import LedgerUsage
from enforcer.accounting import (
    DRIFT_BOUND,
    Checked,
    Observed,
    Processes,
    Readings,
    compare,
    container_usage,
    observe,
)
from enforcer.host.drm import DrmClient
from enforcer.model import (
    Activity,
    Container,
    ContainerKind,
    ContainerUsage,
    Layer,
    LayerState,
    Limit,
    PodCgroup,
    Protection,
    Share,
    Slice,
    Usage,
    Why,
)

GPU = "0000:03:00.0"
POD = PodCgroup("uid-a", "poda", 100)
NAMED = Container("c" * 64, POD, "poda/c", 101, "train")
UNNAMED = Container("d" * 64, POD, "poda/d", 102)
SLICE = Slice(
    "uid-a", "ns", "p", "train", ContainerKind.APP, (), (Share(GPU, 4096),), "2026-11-29T13:00:00Z"
)
POD_LIMIT = Limit("poda", 100, GPU, 4096)
LIMIT = Limit("poda/c", 101, GPU, 4096)
OWNERS = {100: POD, 101: NAMED, 102: UNNAMED}


def _row(usage: Usage, layers: tuple[LayerState, ...] = ()) -> ContainerUsage:
    return ContainerUsage("ns", "p", "uid-a", "train", "poda/c", GPU, 4096, usage, layers)


def test_a_row_has_every_source_side_by_side() -> None:
    ledger = {
        LIMIT.key: LedgerUsage(
            3000,
            0,
            2000,
            64,
            2,
            peak=3500,
            refusals=7,
            queues=5,
            queues_masked=3,
            masks_wider=2,
            svm=500,
            svm_faulted=600,
        )
    }
    rows = container_usage(
        [LIMIT], OWNERS, [SLICE], Readings(ledger, {("poda/c", GPU): 2064}), {}, {}
    )
    assert rows == [
        _row(
            Usage(
                3000,
                2000,
                64,
                3500,
                7,
                2064,
                queues=5,
                queues_masked=3,
                masks_wider=2,
                svm=500,
                svm_faulted=600,
            )
        )
    ]


def test_an_idle_container_has_used_nothing() -> None:
    rows = container_usage([LIMIT], OWNERS, [SLICE], Readings({}, {}), {}, {})
    nothing = {"queues": 0, "queues_masked": 0, "masks_wider": 0, "svm": 0, "svm_faulted": 0}
    assert rows == [_row(Usage(0, 0, 0, 0, 0, None, **nothing))]


@pytest.mark.parametrize("ledger", [{}, {LIMIT.key: LedgerUsage(0)}])
def test_a_ledger_that_follows_no_queues_does_not_tell_of_none(
    ledger: dict[tuple[int, int], LedgerUsage],
) -> None:
    readings = Readings(ledger, {}, queues=False)
    rows = container_usage([LIMIT], OWNERS, [SLICE], readings, {}, {})
    assert rows == [_row(Usage(0, 0, 0, 0, 0, None, svm=0, svm_faulted=0))]


def test_shared_virtual_memory_is_told_and_faults_only_where_their_owner_is_known() -> None:
    ledger = {LIMIT.key: LedgerUsage(300, svm=200, svm_faulted=900)}
    for faults, faulted in ((True, 900), (False, None)):
        readings = Readings(ledger, {}, faults=faults)
        (row,) = container_usage([LIMIT], OWNERS, [SLICE], readings, {}, {})
        assert (row.usage.requested, row.usage.svm, row.usage.svm_faulted) == (300, 200, faulted)


def test_without_a_ledger_its_numbers_are_unknown() -> None:
    rows = container_usage([LIMIT], OWNERS, [SLICE], Readings(None, {("poda/c", GPU): 5}), {}, {})
    assert rows == [_row(Usage(dmem_current=5))]


def test_the_layers_are_those_proven_for_the_cgroup() -> None:
    layers = (LayerState(Layer.GATE), LayerState(Layer.DMEM, "no"))
    proven = {LIMIT.key: Protection("poda/c", GPU, layers)}
    rows = container_usage([LIMIT], OWNERS, [SLICE], Readings(None, {}), proven, {})
    assert rows == [_row(Usage(), layers)]


NO_KERNEL = (LayerState(Layer.GATE, Why.NOT_POSSIBLE), LayerState(Layer.DMEM, Why.NO_REGION))
NO_VRAM = (
    LayerState(Layer.GATE, Why.SYSTEM_MEMORY),
    LayerState(Layer.DMEM, Why.SYSTEM_MEMORY),
)
MOST = 4096 + 256 + (64 << 20)


@pytest.mark.parametrize(
    ("layers", "by_hook"), [(NO_KERNEL, True), (NO_VRAM, False), (NO_VRAM, True)]
)
@pytest.mark.parametrize(
    ("given", "least", "why"),
    [
        (True, None, None),
        (True, MOST, None),
        (True, MOST + 1, Why.HOOK_PASSED),
        (False, None, Why.NO_HOOK),
        (None, None, Why.HOOK_UNKNOWN),
    ],
)
def test_where_the_kernel_can_hold_nothing_the_hook_is_a_layer(
    layers: tuple[LayerState, ...],
    by_hook: bool,
    given: bool | None,
    least: int | None,
    why: Why | None,
) -> None:
    checked = (
        {}
        if least is None
        else {LIMIT.key: Checked(None, Observed(least, 0, least, least), None, None)}
    )
    (row,) = container_usage(
        [LIMIT],
        OWNERS,
        [replace(SLICE, hook=given)],
        Readings(None, {}),
        {LIMIT.key: Protection("poda/c", GPU, layers)},
        checked,
        by_hook=by_hook,
    )
    assert row.layers == (*layers, LayerState(Layer.HOOK, why))


def test_the_hook_is_no_layer_of_pods_whole_gpus_and_where_the_kernel_may_hold() -> None:
    mine = replace(SLICE, hook=True)
    whole = Limit("poda/c", 101, GPU, None)
    unknown = Limit("poda/d", 102, GPU, 4096)
    failed = (LayerState(Layer.GATE, Why.NOT_LOADED), LayerState(Layer.DMEM, Why.SYSTEM_MEMORY))
    for limit, layers, by_hook in (
        (POD_LIMIT, NO_KERNEL, True),
        (whole, NO_KERNEL, True),
        (unknown, NO_KERNEL, True),
        (LIMIT, NO_KERNEL, False),
        (LIMIT, failed, False),
        (LIMIT, (), False),
    ):
        proven = {limit.key: Protection(limit.path, GPU, layers)} if layers else {}
        (row,) = container_usage(
            [limit], OWNERS, [mine], Readings(None, {}), proven, {}, by_hook=by_hook
        )
        assert row.layers == layers


def test_the_pods_own_row_has_no_container_and_an_unnamed_one_its_id() -> None:
    limits = [POD_LIMIT, Limit("poda/d", 102, GPU, 4096)]
    rows = container_usage(limits, OWNERS, [SLICE], Readings(None, {}), {}, {})
    assert [row.container for row in rows] == ["", "d" * 64]
    assert {row.pod for row in rows} == {"p"}


def test_orphans_are_the_pods_and_unknown_where_nobody_looked() -> None:
    limits = [POD_LIMIT, LIMIT, Limit("poda", 100, "0000:43:00.0", 4096)]
    for orphans, told in (({POD_LIMIT.key: 300}, [300, None, 0]), (None, [None, None, None])):
        readings = Readings({}, {}, orphans=orphans)
        rows = container_usage(limits, OWNERS, [SLICE], readings, {}, {})
        assert [row.usage.orphaned for row in rows] == told


def test_usage_of_another_gpu_or_cgroup_is_not_mixed_in() -> None:
    ledger = {(101, 1): LedgerUsage(9), (999, LIMIT.key[1]): LedgerUsage(9)}
    (row,) = container_usage([LIMIT], OWNERS, [SLICE], Readings(ledger, {("poda", GPU): 9}), {}, {})
    assert (row.usage.requested, row.usage.dmem_current) == (0, None)


def test_a_row_shows_what_the_last_comparison_found() -> None:
    checked = {LIMIT.key: Checked(11, Observed(12, 13, 14, 10), 15, None)}
    (row,) = container_usage([LIMIT], OWNERS, [SLICE], Readings(None, {}), {}, checked)
    assert row.usage == Usage(hook=11, kfd=12, drm=13, observed=14, escaped=15, drift=None)


def _client(number: int, size: int, shared: int = 0, bdf: str = GPU) -> DrmClient:
    return DrmClient(bdf, number, resident=None, total=size, shared=shared)


class TestObserve:
    def test_what_a_process_has_in_both_counts_once(self) -> None:
        processes = Processes({"c": {1, 2}}, {1: {GPU: 100}}, {1: [_client(5, 120)]})
        assert observe(processes, "c", GPU) == Observed(100, 120, 120, 120)

    def test_processes_add_up(self) -> None:
        processes = Processes({"c": {1, 2}}, {1: {GPU: 100}}, {2: [_client(5, 30)]})
        assert observe(processes, "c", GPU) == Observed(100, 30, 130, 130)

    def test_a_client_of_several_processes_counts_once(self) -> None:
        client = _client(5, 30)
        processes = Processes({"c": {1, 2}}, {}, {1: [client], 2: [client]})
        assert observe(processes, "c", GPU) == Observed(0, 30, 30, 30)

    def test_shared_buffers_may_be_in_anothers_books(self) -> None:
        processes = Processes({"c": {1}}, {}, {1: [_client(5, 30, shared=20)]})
        assert observe(processes, "c", GPU) == Observed(0, 30, 30, 10)

    def test_a_descriptor_passed_from_elsewhere_may_be_in_anothers_books(self) -> None:
        client = _client(5, 30)
        processes = Processes(
            {"pod": {1, 2}, "pod/a": {1}, "pod/b": {2}}, {}, {1: [client], 2: [client]}
        )
        assert observe(processes, "pod/a", GPU) == Observed(0, 30, 30, 0)
        assert observe(processes, "pod", GPU) == Observed(0, 30, 30, 30)

    def test_so_may_one_that_another_pod_has_too(self) -> None:
        processes = Processes({"c": {1}}, {}, {1: [_client(5, 30), _client(6, 7)]})
        assert observe(processes, "c", GPU, {(GPU, 5)}) == Observed(0, 37, 37, 7)

    def test_another_gpu_another_cgroup_and_no_process_are_nothing(self) -> None:
        other = "0000:83:00.0"
        processes = Processes(
            {"c": {1}, "d": set()}, {1: {other: 9}}, {1: [_client(5, 30, bdf=other)]}
        )
        for path in ("c", "d", "e"):
            assert observe(processes, path, GPU) == Observed()

    def test_the_kernels_older_keys_are_used_where_there_are_no_others(self) -> None:
        clients = [DrmClient(GPU, 1, resident=7), DrmClient(GPU, 2, 7, requested=9)]
        assert observe(Processes({"c": {1}}, {}, {1: clients}), "c", GPU).drm == 16


class TestCompare:
    ROW = LedgerUsage(4096 * 4096, 0, 2048 * 4096, 4096, 2, peak=8192 * 4096)

    def _ask(
        self, least: int, charged: int | None, after: LedgerUsage = ROW
    ) -> tuple[int | None, int | None]:
        return compare(self.ROW, after, Observed(least=least), charged)

    def test_sources_that_agree_differ_by_nothing(self) -> None:
        assert self._ask(4096 * 4096, 2049 * 4096) == (0, 0)
        assert self._ask(0, None) == (None, 0)

    def test_page_tables_in_fdinfo_are_no_drift(self) -> None:
        assert self._ask(4097 * 4096 + DRIFT_BOUND, None) == (None, 0)

    def test_drift_is_what_the_kernel_counts_beyond_the_bound(self) -> None:
        least = 4097 * 4096 + DRIFT_BOUND + 1
        assert self._ask(least, None) == (None, DRIFT_BOUND + 1)

    def test_dmem_counting_more_than_is_resident_is_drift(self) -> None:
        assert self._ask(0, 2049 * 4096 + DRIFT_BOUND + 4096) == (0, DRIFT_BOUND + 4096)

    def test_what_dmem_does_not_charge_has_escaped_to_the_byte(self) -> None:
        assert self._ask(0, 2049 * 4096 - 1) == (1, 0)
        assert self._ask(0, 0) == (2049 * 4096, 0)

    def test_the_kernel_counting_less_is_no_drift(self) -> None:
        assert self._ask(0, None) == (None, 0)

    @pytest.mark.parametrize("change", ["requested", "resident", "page_tables"])
    def test_a_ledger_that_moves_meanwhile_proves_little(self, change: str) -> None:
        after = LedgerUsage(
            **{
                "requested": self.ROW.requested,
                "resident": self.ROW.resident,
                "page_tables": self.ROW.page_tables,
                "peak": self.ROW.peak,
                change: 0,
            }
        )
        assert self._ask(4097 * 4096 + DRIFT_BOUND + 1, 0, after) == (None, None)

    def test_what_a_moving_ledger_never_held_is_drift_all_the_same(self) -> None:
        after = LedgerUsage(0, 0, 0, 0, 0, peak=self.ROW.peak)
        most = self.ROW.peak + self.ROW.page_tables
        assert self._ask(most + DRIFT_BOUND, None, after) == (None, None)
        assert self._ask(most + DRIFT_BOUND + 1, None, after) == (None, DRIFT_BOUND + 1)


def test_a_row_names_the_compute_units_of_its_slice_and_what_it_does() -> None:
    activity = Activity(3, 1, 0.0, 0.0)
    share = Share(GPU, 4096, cus="0-3,8")
    checked = {LIMIT.key: Checked(None, Observed(), None, None, activity)}
    limits = [POD_LIMIT, LIMIT]
    one = replace(SLICE, shares=(Share("0000:43:00.0", 1, cus="9"), share))
    pod, row = container_usage(limits, OWNERS, [one], Readings(None, {}), {}, checked)
    assert (pod.cus, row.cus) == (None, "0-3,8")
    assert (pod.activity, row.activity) == (None, activity)
