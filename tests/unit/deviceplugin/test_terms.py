# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from deviceplugin.terms import Terms, is_gpu_resource, overridden, partition_resource

from .given import BDF, gpu

MODE, PARTITION = "hami.io/amd-operating-mode", "hami.io/amd-compute-partition"


def test_the_nodes_annotations_win() -> None:
    terms = Terms(split_count=3, operating_mode="cu", compute_partition="spx")
    assert overridden(terms, {MODE: "partition", PARTITION: "cpx"}) == (
        Terms(split_count=3, operating_mode="partition", compute_partition="cpx"),
        (),
    )
    assert overridden(Terms(operating_mode="partition"), {MODE: "cu"})[0] == Terms()
    assert overridden(terms, {"hami.io/other": "x"}) == (terms, ())


@pytest.mark.parametrize("value", ["CU", "", "partitions", "cpx"])
def test_an_annotation_that_says_nothing_is_reported_and_ignored(value: str) -> None:
    terms, (problem,) = overridden(Terms(), {MODE: value})
    assert terms == Terms()
    assert f"node annotation {MODE}: expected cu or partition, found {value!r}" in problem


def test_a_gpu_is_excluded_by_address_or_card() -> None:
    assert Terms(exclude=frozenset({BDF})).excludes(gpu())
    assert Terms(exclude=frozenset({"card0"})).excludes(gpu())
    assert not Terms(exclude=frozenset({"card1"})).excludes(gpu())
    assert not Terms(exclude=frozenset({"cardNone"})).excludes(gpu(card=1))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("amd.com/gpu", True),
        ("amd.com/cpx_nps4", True),
        ("amd.com/spx_nps1", True),
        ("amd.com/gpumem", False),
        ("amd.com/gpucores", False),
        ("amd.com/cpx", False),
        ("amd.com/gpu ", False),
        ("nvidia.com/gpu", False),
    ],
)
def test_gpus_are_asked_for_under_these_names(name: str, known: bool) -> None:
    assert is_gpu_resource(name) is known


def test_a_partition_without_a_memory_mode_has_the_common_name() -> None:
    cpx = gpu(compute_partition="cpx", memory_partition="nps4")
    assert partition_resource(cpx) == "amd.com/cpx_nps4"
    assert partition_resource(gpu(compute_partition="cpx")) == "amd.com/gpu"
