# SPDX-License-Identifier: Apache-2.0
from bpf.decode import LedgerUsage
from enforcer.accounting import container_usage
from enforcer.model import (
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
    ledger = {LIMIT.key: LedgerUsage(3000, 0, 2000, 64, 2, peak=3500, refusals=7)}
    rows = container_usage([LIMIT], OWNERS, [SLICE], ledger, {("poda/c", GPU): 2064}, {})
    assert rows == [_row(Usage(3000, 2000, 64, 3500, 7, 2064))]


def test_an_idle_container_has_used_nothing() -> None:
    rows = container_usage([LIMIT], OWNERS, [SLICE], {}, {}, {})
    assert rows == [_row(Usage(0, 0, 0, 0, 0, None))]


def test_without_a_ledger_its_numbers_are_unknown() -> None:
    rows = container_usage([LIMIT], OWNERS, [SLICE], None, {("poda/c", GPU): 5}, {})
    assert rows == [_row(Usage(dmem_current=5))]


def test_the_layers_are_those_proven_for_the_cgroup() -> None:
    layers = (LayerState(Layer.GATE), LayerState(Layer.DMEM, "no"))
    proven = {LIMIT.key: Protection("poda/c", GPU, layers)}
    rows = container_usage([LIMIT], OWNERS, [SLICE], None, {}, proven)
    assert rows == [_row(Usage(), layers)]


def test_the_pods_own_row_has_no_container_and_an_unnamed_one_its_id() -> None:
    limits = [POD_LIMIT, Limit("poda/d", 102, GPU, 4096)]
    rows = container_usage(limits, OWNERS, [SLICE], None, {}, {})
    assert [row.container for row in rows] == ["", "d" * 64]
    assert {row.pod for row in rows} == {"p"}


def test_usage_of_another_gpu_or_cgroup_is_not_mixed_in() -> None:
    ledger = {(101, 1): LedgerUsage(9), (999, LIMIT.key[1]): LedgerUsage(9)}
    (row,) = container_usage([LIMIT], OWNERS, [SLICE], ledger, {("poda", GPU): 9}, {})
    assert (row.usage.requested, row.usage.dmem_current) == (0, None)
