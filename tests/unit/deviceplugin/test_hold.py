# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deviceplugin.hold import Holder, holders_of, mistaken, slices_to_hold
from enforcer.api.client import Client
from enforcer.api.errors import NotFoundError
from enforcer.api.server import Server
from enforcer.model import MIB, ContainerKind, Layer, LayerState, Protection, Share

from .given import BDF, OTHER, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deviceplugin.podresources import PodDevices
    from enforcer.model import Snapshot

ON = LayerState(Layer.GATE)
OFF = LayerState(Layer.DMEM, "no dmem region for this GPU")


def protection(bdf: str, *layers: LayerState) -> tuple[Protection, bool]:
    return Protection("kubepods.slice/pod", bdf, layers), False


class Enforcer:
    """What the local API's server asks, with answers of a test."""

    def __init__(self) -> None:
        self.answer: list[tuple[Protection, bool]] | None = None
        self.asked: list[tuple[str, str]] = []

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        self.asked.append((pod_uid, container))
        if self.answer is None:
            raise NotFoundError(f"pod {pod_uid}: no cgroup after {wait:.0f} s")
        return self.answer

    def snapshot(self) -> Snapshot | None:
        return None


@pytest.fixture
def enforcer(tmp_path: Path) -> Iterator[Enforcer]:
    one = Enforcer()
    server = Server(one, tmp_path / "enforcer.sock")
    server.start()
    yield one
    server.stop()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    with Client(tmp_path / "enforcer.sock") as client:
        yield Holder(client)


def test_a_slice_is_held_by_any_layer_the_tenant_cannot_reach(
    enforcer: Enforcer, holder: Holder
) -> None:
    enforcer.answer = [protection(BDF, OFF, ON)]
    assert holder.hold([slice_of()], 5) is None
    assert enforcer.asked == [("uid-pod", "app")]


def test_a_slice_that_nothing_holds_says_why(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = [protection(BDF, OFF)]
    why = holder.hold([slice_of()], 5)
    assert why is not None
    assert why.startswith("pod default/pod, container app: nothing holds its limit on GPU")
    assert "dmem off: no dmem region" in why


def test_a_gpu_the_enforcer_is_silent_about_is_not_held(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = [protection(BDF, ON)]
    both = slice_of("app", Share(BDF, MIB), Share(OTHER, MIB))
    assert f"said nothing of its limit on GPU {OTHER}" in (holder.hold([both], 5) or "")


def test_a_whole_gpu_needs_no_layer(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = []
    assert holder.hold([slice_of("app", Share(BDF, None))], 5) is None


def test_a_pod_the_enforcer_does_not_find_is_not_waited_for_twice(
    enforcer: Enforcer, holder: Holder
) -> None:
    assert "no cgroup" in (holder.hold([slice_of()], 5) or "")
    assert len(enforcer.asked) == 1


def test_every_slice_must_be_held(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = [protection(BDF, ON)]
    other = slice_of("other", Share(OTHER, MIB))
    assert "container other" in (holder.hold([slice_of(), other], 5) or "")


def test_an_enforcer_that_is_away_ends_the_wait_in_time(holder: Holder) -> None:
    started = time.monotonic()
    why = holder.hold([slice_of()], 1.0)
    assert why is not None
    assert "ringfence enforcer" in why
    assert time.monotonic() - started < 3


def test_an_enforcer_that_comes_back_holds(holder: Holder, tmp_path: Path) -> None:
    one = Enforcer()
    one.answer = [protection(BDF, ON)]
    server = Server(one, tmp_path / "enforcer.sock")
    timer = threading.Timer(0.5, server.start)
    timer.start()
    assert holder.hold([slice_of()], 10) is None
    server.stop()


def test_kubelets_ids_mean_every_slice_of_the_last_pod_that_has_them() -> None:
    ids = (f"{BDF}#0",)
    before = slice_of(name="before", device_ids=ids)
    init = slice_of("init", kind=ContainerKind.INIT, device_ids=ids)
    app = slice_of("app", device_ids=ids)
    other = replace(app, container="other", device_ids=(f"{BDF}#1",))
    assert slices_to_hold([before, init, app, other], ids) == [init, app]
    assert slices_to_hold([other], ids) == []
    assert slices_to_hold([], []) == []


def test_the_order_of_the_ids_does_not_matter() -> None:
    app = slice_of(device_ids=("a#0", "b#0"))
    assert slices_to_hold([app], ["b#0", "a#0"]) == [app]


IDS = (f"{BDF}#0",)


@pytest.mark.parametrize(
    "held",
    [
        None,
        {},
        {("default", "pod"): {"app": IDS}},
        {("default", "other"): {"app": (f"{OTHER}#0",)}},
        # Older kubelets list pods that are over.
        {("default", "old"): {"app": IDS}, ("default", "pod"): {"app": IDS}},
        {("default", "pod"): {"app": (f"{BDF}#1", *IDS)}},
    ],
)
def test_a_slice_is_held_for_its_pod_or_where_kubelets_record_says_nothing(
    held: PodDevices | None,
) -> None:
    assert mistaken([slice_of(device_ids=IDS)], holders_of(IDS, held)) is None


def test_a_slice_is_not_held_for_another_pod() -> None:
    holders = holders_of(IDS, {("other", "thief"): {"app": IDS}})
    why = mistaken([slice_of(device_ids=IDS)], holders)
    assert why is not None
    assert why.startswith("kubelet starts pod other/thief with the devices that were given for pod")
