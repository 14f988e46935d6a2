# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.release import Release, settle
from enforcer.model import MIB, ContainerKind, Share

from .given import BDF, DEVICES, ID, OTHER, OTHER_ID, claim, junk_annotations, pod, slice_of

if TYPE_CHECKING:
    from deviceplugin.pod import Pod

BY_BDF = {device.gpu.bdf: device for device in DEVICES}
TO = "hami.io/amd-devices-to-allocate"
CU = "hami.io/amd-cu-allocated"
PHASE = "hami.io/bind-phase"
ONE = f"{ID},T,4096,76:;"
TWO = (claim("init", kind=ContainerKind.INIT), claim("app"))


def test_a_pod_that_waits_is_owed_nothing() -> None:
    owed = settle(pod(ONE), [], False, BY_BDF)
    assert owed.annotations == {}
    assert not owed.unlock


def test_a_served_pod_is_owed_all_of_it_at_once() -> None:
    owed = settle(pod(ONE), [slice_of()], False, BY_BDF)
    assert owed.annotations == {TO: ";", CU: f'{{"{ID}":"0-75"}}', PHASE: "success"}
    assert owed.unlock


def test_a_settled_pod_is_owed_nothing_but_its_lock() -> None:
    one = pod(";", bind_phase="success", amd_cu_allocated=f'{{"{ID}":"0-75"}}')
    owed = settle(one, [slice_of()], False, BY_BDF)
    assert owed.annotations == {}
    assert owed.unlock


def test_a_half_served_pod_keeps_phase_and_lock() -> None:
    one = pod(f"{ID},T,4096,76:;{OTHER_ID},T,1,1:;", *TWO)
    owed = settle(one, [slice_of("init", kind=ContainerKind.INIT)], False, BY_BDF)
    assert owed.annotations == {TO: f";{OTHER_ID},T,1,1:;", CU: f'{{"{ID}":"0-75"}}'}
    assert not owed.unlock


def test_a_refused_pod_has_failed_whatever_it_got_before() -> None:
    owed = settle(pod(ONE), [], True, BY_BDF)
    assert owed.annotations == {PHASE: "failed"}
    assert owed.unlock


def test_a_pod_that_ended_while_it_was_bound_has_failed() -> None:
    owed = settle(pod(ONE, phase="Failed"), [], False, BY_BDF)
    assert owed.annotations == {PHASE: "failed"}
    assert owed.unlock


def test_an_unreadable_annotation_is_left_as_it_is() -> None:
    owed = settle(pod("garbage;"), [], True, BY_BDF)
    assert owed.annotations == {PHASE: "failed"}


def test_whole_gpus_are_not_recorded_as_cus() -> None:
    whole = slice_of("app", Share(BDF, None))
    assert settle(pod(ONE), [whole], False, BY_BDF).annotations == {TO: ";", PHASE: "success"}


def test_the_cus_of_a_pods_containers_are_one_list_for_each_gpu() -> None:
    one = pod(";;", claim("a"), claim("b"), bind_phase="success")
    slices = [
        slice_of("a", Share(BDF, MIB, "0-3")),
        slice_of("b", Share(BDF, MIB, "8"), Share(OTHER, MIB, "1")),
    ]
    value = settle(one, slices, False, BY_BDF).annotations[CU]
    assert value == f'{{"{OTHER_ID}":"1","{ID}":"0-3,8"}}'


def test_a_forged_record_of_cus_is_written_over() -> None:
    one = pod(";", bind_phase="success", amd_cu_allocated="forged")
    assert settle(one, [slice_of()], False, BY_BDF).annotations == {CU: f'{{"{ID}":"0-75"}}'}


def test_a_gpu_that_is_gone_costs_only_its_own_record() -> None:
    one = pod(ONE, bind_phase="allocating")
    assert settle(one, [slice_of()], False, {}).annotations == {TO: ";", PHASE: "success"}


def test_a_pod_without_claims_is_somebody_elses() -> None:
    one = replace(pod(ONE), claims=())
    owed = settle(one, [], False, BY_BDF)
    assert owed.annotations == {}
    assert not owed.unlock


@given(junk_annotations(), st.booleans(), st.booleans())
def test_nothing_in_a_pods_annotations_breaks_what_it_is_owed(
    junk: dict[str, str], failed: bool, served: bool
) -> None:
    slices = [slice_of()] if served else []
    owed = settle(pod(**{"devices": ONE, **junk}), slices, failed, BY_BDF)
    json.dumps({"annotations": dict(owed.annotations)}).encode()


def test_a_refusal_of_a_pod_that_is_not_among_those_looked_at_yet_is_remembered() -> None:
    cache: Any = SimpleNamespace(wake=lambda: None)
    nobody: Any = None
    release = Release(nobody, cache, nobody, lambda: DEVICES)
    cache.pods = list
    cache.node = lambda: release.fail(pod(ONE))
    release.work()
    assert "uid-pod" in release.refused
    cache.node = lambda: None
    release.work()
    assert release.refused == set()


def test_a_pod_that_nobody_thought_of_keeps_no_other_from_what_it_is_owed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = [pod(ONE, name=name) for name in ("first", "odd", "last")]
    cache: Any = SimpleNamespace(pods=lambda: pods, node=lambda: None)
    nobody: Any = None
    release = Release(nobody, cache, nobody, lambda: DEVICES)
    settled: list[str] = []

    def settle_it(_: Release, one: Pod, *, patient: bool) -> None:
        assert patient
        if one.name == "odd":
            raise KeyError("what nobody thought of")
        settled.append(one.name)

    monkeypatch.setattr(Release, "_owed", lambda *_: True)
    monkeypatch.setattr(Release, "_settle", settle_it)
    with pytest.raises(KeyError, match="what nobody thought of"):
        release.work()
    assert settled == ["first", "last"]
