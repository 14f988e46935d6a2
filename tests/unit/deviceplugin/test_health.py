# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from deviceplugin.devices import GONE, WITHHELD
from deviceplugin.health import Offer, merge
from deviceplugin.terms import Terms

from .given import BDF, OTHER, device, gpu

if TYPE_CHECKING:
    import pytest

    from enforcer.model import Gpu


def terms() -> tuple[Terms, tuple[str, ...]]:
    return Terms(), ()


def test_a_gpu_that_is_gone_stays_on_offer_as_unhealthy() -> None:
    known = merge([], [device(), device(OTHER)])
    left = merge(known, [device(OTHER)])
    assert [(one.gpu.bdf, one.healthy) for one in left] == [(BDF, False), (OTHER, True)]
    assert merge(left, [device(), device(OTHER)]) == known


def test_a_gpu_that_is_there_and_not_offered_is_not_gone() -> None:
    known = merge([], [device(), device(OTHER)])
    (kept, gone) = merge(known, [], [BDF])
    assert (kept.why, gone.why) == (WITHHELD, GONE)
    assert not kept.healthy


def test_a_gpu_that_appears_is_offered() -> None:
    assert merge([device(OTHER)], [device(), device(OTHER)]) == (device(), device(OTHER))


def test_a_change_wakes_those_who_wait_and_no_change_does_not() -> None:
    gpus = [gpu()]
    changes: list[int] = []
    offer = Offer(lambda: (list(gpus), []), terms, 3600, lambda: changes.append(1))
    offer.look()
    version, devices = offer.snapshot()
    assert [one.gpu.bdf for one in devices] == [BDF]
    offer.look()
    assert offer.snapshot()[0] == version
    gpus.append(gpu(OTHER))
    threading.Timer(0.1, offer.look).start()
    offer.wait_change(version, 10)
    assert len(offer.devices) == 2
    assert len(changes) == 2


def test_a_problem_is_told_once_and_again_after_it_was_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problems = ["KFD node 3: broken"]
    offer = Offer(lambda: ([gpu()], list(problems)), terms, 3600, lambda: None)
    for told in (1, 1):
        offer.look()
        assert caplog.text.count("KFD node 3: broken") == told
    problems.clear()
    offer.look()
    problems.append("KFD node 3: broken")
    offer.look()
    assert caplog.text.count("KFD node 3: broken") == 2


def test_a_gpu_is_unhealthy_by_its_own_key_or_by_its_address() -> None:
    ailing: dict[str, str] = {}
    gpus = [gpu(partition=n, render=128 + n, compute_partition="dpx") for n in range(2)]
    partitions = Terms(operating_mode="partition")
    offer = Offer(
        lambda: ([*gpus, gpu(OTHER)], []),
        lambda: (partitions, ()),
        3600,
        lambda: None,
        lambda: ailing,
    )
    for key, why in (
        (f"{BDF}-1", ["", "ill", ""]),
        (BDF, ["ill", "ill", ""]),
        (OTHER, ["", "", "ill"]),
    ):
        ailing.clear()
        ailing[key] = "ill"
        offer.look()
        assert [one.why for one in offer.devices] == why
        assert [one.healthy for one in offer.devices] == [not one for one in why]


def test_an_inventory_that_cannot_be_read_is_told_once_also_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    broken = threading.Event()
    broken.set()
    looks = threading.Semaphore(0)

    def read() -> tuple[list[Gpu], list[str]]:
        looks.release()
        if broken.is_set():
            raise PermissionError(13, "Permission denied", "/sys")
        return [gpu()], []

    offer = Offer(read, terms, 0.01, lambda: None)
    offer.start()
    for _ in range(4):
        looks.acquire()
    broken.clear()
    for _ in range(3):
        looks.acquire()
    offer.stop()
    assert [one.gpu.bdf for one in offer.devices] == [BDF]
    assert caplog.text.count("the last one stays") == 1
    assert caplog.text.count("it can be read again") == 1
