# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from deviceplugin.devices import GONE, WITHHELD
from deviceplugin.health import GpuSource, Offer, merge
from deviceplugin.terms import Terms
from enforcer.api.client import Client, EnforcerError
from enforcer.host.roots import Roots
from enforcer.model import HostSupport, Layer, LayerState, Snapshot

from .given import BDF, OTHER, device, gpu

if TYPE_CHECKING:
    from pathlib import Path

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


class TellingClient(Client):
    """A connection to an enforcer that tells what a test says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gpus: tuple[Gpu, ...] | None = None

    def snapshot(self, timeout: float) -> Snapshot:
        if self.gpus is None:
            raise EnforcerError(f"no answer within {timeout} s")
        off = LayerState(Layer.GATE, "not tried")
        return Snapshot(0.0, HostSupport(off, off, "none"), self.gpus, ())


def test_the_enforcer_sees_gpus_that_this_process_may_not(tmp_path: Path) -> None:
    with TellingClient(tmp_path / "none") as client:
        source = GpuSource(Roots(sys=tmp_path), client)
        gpus, problems = source.read()
        assert gpus == []
        assert "no GPU in sight" in problems[-1]
        client.gpus = (gpu(), gpu(OTHER))
        assert [one.bdf for one in source.read()[0]] == [BDF, OTHER]
        client.gpus = None
        assert [one.bdf for one in source.read()[0]] == [BDF, OTHER]
        client.gpus = (gpu(OTHER),)
        assert [one.bdf for one in source.read()[0]] == [OTHER]
