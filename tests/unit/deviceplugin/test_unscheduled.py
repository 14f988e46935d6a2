# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from deviceplugin.devices import devices_of
from deviceplugin.health import Offer
from deviceplugin.refusal import RefusalError
from deviceplugin.terms import RESOURCE, Terms
from deviceplugin.unscheduled import Unscheduled

from .given import BDF, OTHER, gpu


@pytest.fixture
def gpus() -> list[object]:
    return [gpu(), gpu(OTHER)]


@pytest.fixture
def offer(gpus: list[object]) -> Offer:
    one = Offer(lambda: (list(gpus), []), lambda: (Terms(whole=True), ()), 3600, lambda: None)  # type: ignore[arg-type]
    one.look()
    return one


def test_the_gpus_of_kubelets_ids_are_given_whole_and_in_their_order(offer: Offer) -> None:
    given = Unscheduled(offer).allocate(RESOURCE, [f"{OTHER}#0", f"{BDF}#0"], 1.0)
    assert given.envs == {
        "ROCR_VISIBLE_DEVICES": "GPU-1122334455667788,GPU-8eff74b5801bb564",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    assert given.mounts == ()
    assert given.devices[0] == "/dev/kfd"
    assert "/dev/dri/renderD129" in given.devices
    assert len(devices_of([gpu()], Terms(whole=True))[0][0].slots) == 1


@pytest.mark.parametrize("device_id", ["0000:99:00.0#0", f"{BDF}#1", BDF, ""])
def test_an_id_nobody_offered_is_refused(offer: Offer, device_id: str) -> None:
    with pytest.raises(RefusalError, match=f"expected a device of this node .{BDF}, {OTHER}"):
        Unscheduled(offer).allocate(RESOURCE, [device_id], 1.0)


def test_an_id_of_another_resource_is_refused(offer: Offer) -> None:
    with pytest.raises(RefusalError, match="none"):
        Unscheduled(offer).allocate("amd.com/cpx_nps4", [f"{BDF}#0"], 1.0)


def test_a_gpu_that_is_gone_is_refused(offer: Offer, gpus: list[object]) -> None:
    gpus.pop(0)
    offer.look()
    with pytest.raises(RefusalError, match=f"GPU {BDF} is unhealthy"):
        Unscheduled(offer).allocate(RESOURCE, [f"{BDF}#0"], 1.0)


def test_no_gpu_is_booked_for_anybody(offer: Offer) -> None:
    assert Unscheduled(offer).booked(RESOURCE, 2) == []
