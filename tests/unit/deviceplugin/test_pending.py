# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.codec import NodeLock
from deviceplugin.pending import Turn, choose, owners, strangers, turns
from deviceplugin.refusal import RefusalError
from deviceplugin.terms import RESOURCE
from enforcer.model import ContainerKind

from .given import (
    BDF,
    DEVICES,
    ID,
    NODE,
    OTHER,
    OTHER_ID,
    claim,
    junk_annotations,
    pod,
    slice_of,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
A = pod(f"{ID},T,1,1:;", name="a")
B = pod(f"{OTHER_ID},T,1,1:;", name="b")


def lock(name: str) -> NodeLock:
    return NodeLock(NOW, ("default", name))


@pytest.mark.parametrize(
    "one",
    [
        replace(A, node="elsewhere"),
        replace(A, phase="Failed"),
        replace(A, phase="Running"),
        replace(A, phase="Succeeded"),
        replace(A, deleted=True),
        replace(A, claims=()),
        pod(f"{ID},T,1,1:;", bind_phase="success"),
        pod(f"{ID},T,1,1:;", bind_phase="failed"),
        pod(f"{ID},T,1,1:;", vgpu_node="elsewhere"),
    ],
)
def test_a_pod_that_is_not_being_bound_here_is_not_meant(one: object) -> None:
    assert turns([one], NODE, []) == []  # type: ignore[list-item]


def test_a_pod_whose_containers_all_have_their_slice_is_not_meant() -> None:
    assert turns([A], NODE, [slice_of(name="a")]) == []


def test_the_slice_of_an_older_pod_of_the_same_name_does_not_count() -> None:
    old = replace(slice_of(name="a"), pod_uid="uid-of-before")
    assert turns([A], NODE, [old]) == [Turn(A, 0)]


THREE = (
    claim("init", kind=ContainerKind.INIT),
    claim("side", kind=ContainerKind.SIDECAR),
    claim("app"),
)


@pytest.mark.parametrize(
    "text",
    [
        "u0,T,1,1:;u1,T,1,1:;u2,T,1,1:;",
        "u0,T,1,1:;;u1,T,1,1:;;u2,T,1,1:;;",
        ";;u0,T,1,1:;u1,T,1,1:;u2,T,1,1:;",
    ],
)
@pytest.mark.parametrize("served", [0, 1, 2])
def test_the_kth_container_takes_the_kth_entry_wherever_the_empty_ones_are(
    text: str, served: int
) -> None:
    one = pod(text, *THREE)
    slices = [slice_of(name) for name in ("init", "side", "app")[:served]]
    (turn,) = turns([one], NODE, slices)
    assert turn.claim == THREE[served]
    assert turn.entry()[0].id == f"u{served}"


@pytest.mark.parametrize(
    ("text", "served"),
    [
        (";u1,T,1,1:;u2,T,1,1:;", 1),
        ("u0,T,1,1:;u1,T,1,1:;u2,T,1,1:;", 1),
        (";;u2,T,1,1:;", 2),
        (";u1,T,1,1:;u2,T,1,1:;", 2),
    ],
)
def test_entries_may_be_blanked_already_or_not_yet(text: str, served: int) -> None:
    assert Turn(pod(text, *THREE), served).entry()[0].id == f"u{served}"


@pytest.mark.parametrize(
    ("text", "served"),
    [
        (";u1,T,1,1:;u2,T,1,1:;", 0),
        (";;u2,T,1,1:;", 1),
        (";;;", 2),
        ("u0,T,1,1:;u1,T,1,1:;u2,T,1,1:;u3,T,1,1:;", 0),
    ],
)
def test_another_number_of_entries_than_containers_is_refused(text: str, served: int) -> None:
    with pytest.raises(RefusalError, match="expected an entry for each of the 3 containers"):
        Turn(pod(text, *THREE), served).entry()


def test_the_lock_decides_between_two_pods() -> None:
    both = turns([A, B], NODE, [])
    assert choose(both, lock("b"), [f"{BDF}#0"], DEVICES).pod is B
    assert choose(both, lock("a"), [f"{OTHER}#0"], DEVICES).pod is A


@pytest.mark.parametrize("stale", [None, lock("long-gone"), NodeLock(NOW, None)])
def test_without_a_lock_of_theirs_the_gpus_decide_between_two_pods(stale: NodeLock | None) -> None:
    both = turns([A, B], NODE, [])
    assert choose(both, stale, [f"{OTHER}#4"], DEVICES).pod is B
    assert choose(both, stale, [f"{BDF}#4"], DEVICES).pod is A


def test_a_pod_that_asks_for_another_count_is_not_meant() -> None:
    two = pod(f"{ID},T,1,1:{OTHER_ID},T,1,1:;", claim(count=2), name="two")
    both = turns([A, two], NODE, [])
    assert choose(both, lock("a"), [f"{BDF}#0", f"{OTHER}#0"], DEVICES).pod is two
    assert choose(both, None, [f"{BDF}#0"], DEVICES).pod is A


def test_two_pods_that_cannot_be_told_apart_are_refused_and_neither_is_failed() -> None:
    twin = pod(f"{ID},T,1,1:;", name="twin")
    with pytest.raises(RefusalError, match="default/a, default/twin wait") as caught:
        choose(turns([A, twin], NODE, []), None, [f"{BDF}#0"], DEVICES)
    assert caught.value.pod is None


def test_nobody_waiting_is_refused_with_who_waits_for_what() -> None:
    with pytest.raises(RefusalError, match="placed by another scheduler"):
        choose([], lock("a"), [f"{BDF}#0"], DEVICES)
    with pytest.raises(RefusalError, match="default/a waits for 1 for container app") as caught:
        choose(turns([A], NODE, []), lock("a"), [f"{BDF}#0", f"{BDF}#1"], DEVICES)
    assert caught.value.pod is None


STRANGER = replace(A, name="stranger", annotations={})


def test_a_pod_bound_by_somebody_else_is_a_stranger_until_kubelet_has_it() -> None:
    assert strangers([A, STRANGER], NODE, RESOURCE, 1) == [STRANGER]
    assert strangers([STRANGER], NODE, RESOURCE, 2) == []
    assert strangers([STRANGER], "elsewhere", RESOURCE, 1) == []
    assert strangers([STRANGER], NODE, "amd.com/cpx_nps4", 1) == []
    for known in ({"acknowledged": True}, {"phase": "Failed"}, {"deleted": True}, {"claims": ()}):
        assert strangers([replace(STRANGER, **known)], NODE, RESOURCE, 1) == []


def test_an_unreadable_annotation_does_not_hide_the_pod_the_lock_names() -> None:
    bad = pod("garbage;", name="bad")
    assert choose(turns([A, bad], NODE, []), lock("bad"), [f"{BDF}#0"], DEVICES).pod is bad
    assert choose(turns([A, bad], NODE, []), None, [f"{BDF}#0"], DEVICES).pod is A


def test_the_owner_of_the_lock_must_ask_for_this_count() -> None:
    both = turns([A, B], NODE, [])
    assert [turn.pod for turn in owners(both, lock("a"), 1)] == [A]
    assert owners(both, lock("a"), 2) == []
    assert owners(both, None, 1) == []


def test_a_pod_that_was_refused_has_no_turn_whatever_it_still_says() -> None:
    assert turns([A, B], NODE, [], {"uid-a"}) == [Turn(B, 0)]


@given(junk_annotations(), st.sampled_from(["bad", "b"]))
def test_nothing_in_a_pods_annotations_costs_another_its_turn(
    junk: dict[str, str], locked: str
) -> None:
    bad = pod(name="bad", **junk)
    candidates = turns([bad, B], NODE, [])
    assert Turn(B, 0) in candidates
    told = []
    for turn in candidates:
        try:
            turn.entry()
        except RefusalError as error:
            told.append(str(error))
    try:
        chosen = choose(candidates, lock(locked), [f"{OTHER}#0"], DEVICES)
    except RefusalError as error:
        told.append(str(error))
    else:
        assert chosen.pod is B or (chosen.pod is bad and locked == "bad")
    assert all(len(one) < 1000 for one in told), "gRPC carries no long one to kubelet"
