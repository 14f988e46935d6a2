# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bpf.decode import LedgerUsage
from enforcer.model import Gpu, Limit, pci_key
from enforcer.orphans import Orphans, of_no_pod

if TYPE_CHECKING:
    from collections.abc import Iterable

BDF = "0000:03:00.0"
GPU = pci_key(BDF)
POD, BOX, SIDE = 100, 101, 102
LIVE = {POD: POD, BOX: POD, SIDE: POD}
BOTH = {(POD, GPU): LedgerUsage(96), (BOX, GPU): LedgerUsage(64), (SIDE, GPU): LedgerUsage(32)}


class Owners:
    """The cgroups charged for each buffer; counts how often they were asked for."""

    def __init__(self, *chains: tuple[int, ...]) -> None:
        self.chains = chains
        self.asked = 0

    def __call__(self) -> Iterable[tuple[int, ...]]:
        self.asked += 1
        return self.chains


@pytest.fixture
def owners() -> Owners:
    return Owners((POD, BOX), (POD, SIDE))


def test_what_live_containers_have_is_no_orphan(owners: Owners) -> None:
    assert Orphans().find(BOTH, LIVE, owners) == {}


@pytest.mark.parametrize("seen", [True, False], ids=["seen while it lived", "unseen"])
def test_what_a_container_leaves_behind_is_its_pods(owners: Owners, seen: bool) -> None:
    orphans = Orphans()
    if seen:
        orphans.find(BOTH, LIVE, owners)
    left = {POD: POD, SIDE: POD}
    for _ in range(3):
        assert orphans.find(BOTH, left, owners) == {(POD, GPU): 64}
    assert owners.asked == (0 if seen else 1), "there can be a quarter of a million buffers"


@pytest.mark.parametrize("seen", [True, False], ids=["seen while it lived", "unseen"])
def test_what_a_pod_leaves_behind_is_told_once(owners: Owners, seen: bool) -> None:
    orphans = Orphans()
    if seen:
        orphans.find(BOTH, LIVE, owners)
    assert orphans.find(BOTH, {200: 200}, owners) == {(POD, GPU): 96}


def test_a_container_without_a_slice_of_its_own_lives_and_is_no_orphan(owners: Owners) -> None:
    # It is charged to the pod alone.
    ledger = {(POD, GPU): LedgerUsage(64)}
    assert Orphans().find(ledger, LIVE, owners) == {}


def test_rows_that_hold_nothing_are_none(owners: Owners) -> None:
    ledger = {(POD, GPU): LedgerUsage(0), (7, GPU): LedgerUsage(0, refusals=3)}
    assert Orphans().find(ledger, {POD: POD}, owners) == {}
    assert owners.asked == 0


def test_a_row_that_no_buffer_explains_is_told_as_nobodys(owners: Owners) -> None:
    assert Orphans().find({(7, GPU): LedgerUsage(9)}, LIVE, owners) == {(7, GPU): 9}


def test_two_gpus_are_two_charges(owners: Owners) -> None:
    other = GPU + 8
    ledger = {(one, gpu): LedgerUsage(gpu) for one in (POD, BOX) for gpu in (GPU, other)}
    found = Orphans().find(ledger, {POD: POD}, owners)
    assert found == {(POD, GPU): GPU, (POD, other): other}


def test_a_cgroup_whose_row_is_gone_is_forgotten_as_its_id_may_come_again(owners: Owners) -> None:
    orphans = Orphans()
    orphans.find(BOTH, LIVE, owners)
    orphans.find({}, {}, owners)
    ledger = {(300, GPU): LedgerUsage(64), (BOX, GPU): LedgerUsage(64)}
    assert orphans.find(ledger, {300: 300}, Owners((300, BOX))) == {(300, GPU): 64}


def test_the_nodes_share_is_what_no_pod_with_a_limit_shows() -> None:
    gpus = [Gpu(bdf, 5, 1, 128, "gpu", 1 << 37, 304, 90402) for bdf in (BDF, "0000:43:00.0")]
    orphans = {(POD, GPU): 64, (7, GPU): 5, (8, GPU): 6, (7, pci_key("0000:ff:00.0")): 1}
    assert of_no_pod(orphans, [Limit("poda", POD, BDF, 4096)], gpus) == (
        (BDF, 11),
        ("0000:43:00.0", 0),
        ("0000:ff:00.0", 1),
    )
    assert of_no_pod(None, [], gpus) == ()
