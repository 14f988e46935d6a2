# SPDX-License-Identifier: Apache-2.0
"""The plugin is killed between any two side effects: afterwards everything is in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.contract.conftest import eventually
from tests.contract.peers.faulty import Point
from tests.contract.peers.kubelet import AdmissionError

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


def next_pod_is_served(bench: Bench) -> str:
    """The mask of another pod, which must find node, lock and CUs usable."""
    got = bench.admit(bench.bind("next", f"{bench.gpu_ids()[0]},T,4096,76:;"))["app"]
    bench.wait_phase("next", "success")
    bench.wait_unlocked()
    return got.response.envs["HSA_CU_MASK"]


@pytest.mark.parametrize("point", [Point.BEFORE_CHECKPOINT, Point.AFTER_CHECKPOINT])
def test_a_pod_whose_answer_never_came_has_failed_and_holds_nothing(
    bench: Bench, point: Point
) -> None:
    process = bench.start(dies=point)
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    with pytest.raises(AdmissionError):
        bench.admit(pod)
    assert process.wait(timeout=10) == 9
    bench.end(pod, "Failed")

    bench.start()

    bench.wait_unlocked()
    eventually(lambda: bench.annotation("one", "bind-phase") != "allocating")
    eventually(lambda: bench.slices == [], timeout=30)
    assert next_pod_is_served(bench) == "0:0-75"


@pytest.mark.parametrize(
    "point",
    [Point.BEFORE_POD_PATCH, Point.AFTER_POD_PATCH, Point.BEFORE_UNLOCK, Point.AFTER_UNLOCK],
)
def test_a_served_pod_is_settled_by_the_next_start(bench: Bench, point: Point) -> None:
    process = bench.start(dies=point)
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    assert bench.admit(pod)["app"].response.envs["HSA_CU_MASK"] == "0:0-75"
    assert process.wait(timeout=10) == 9

    bench.start()

    bench.wait_phase("one", "success")
    bench.wait_unlocked()
    assert bench.annotation("one", "amd-devices-to-allocate") == ";"
    assert next_pod_is_served(bench) == "0:76-151"
    assert [item.pod for item in bench.slices] == ["one", "next"]


@pytest.mark.parametrize(
    "point", [Point.BEFORE_POD_PATCH, Point.AFTER_POD_PATCH, Point.BEFORE_UNLOCK]
)
def test_a_refused_pod_is_settled_by_the_next_start(bench: Bench, point: Point) -> None:
    process = bench.start(dies=point)
    pod = bench.bind("bad", "garbage;")
    with pytest.raises(AdmissionError):
        bench.admit(pod)
    assert process.wait(timeout=10) == 9
    bench.end(pod, "Failed")

    bench.start()

    bench.wait_phase("bad", "failed")
    bench.wait_unlocked()
    assert next_pod_is_served(bench) == "0:0-75"


@pytest.mark.parametrize("content", [b"{", b'{"schema": 99, "slices": []}'])
def test_a_bad_checkpoint_is_kept_aside_and_the_plugin_serves(bench: Bench, content: bytes) -> None:
    state = bench.root / "state"
    state.mkdir()
    (state / "slices.json").write_bytes(content)
    bench.start()
    assert next_pod_is_served(bench) == "0:0-75"
    (aside,) = state.glob("slices.json.bad-*")
    assert aside.read_bytes() == content
    eventually(lambda: bench.api.store.list("events", "")["items"] != [])
    (event,) = bench.api.store.list("events", "")["items"]
    assert (event["reason"], event["type"]) == ("AMDGPUCheckpointDamaged", "Warning")
    assert str(aside) in event["message"]


def test_slices_of_running_pods_are_made_out_after_the_checkpoint_was_lost(bench: Bench) -> None:
    process = bench.start()
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    bench.admit(pod)
    bench.wait_phase("one", "success")
    bench.wait_unlocked()
    (before,) = bench.slices
    bench.kill(process)
    (bench.root / "state/slices.json").write_bytes(b"\0" * 100)

    bench.start()

    eventually(lambda: len(bench.slices) == 1)
    assert replace(bench.slices[0], created=before.created) == before
    assert next_pod_is_served(bench) == "0:76-151"


def test_a_checkpoint_that_cannot_be_written_refuses_the_pod_and_frees_the_node(
    bench: Bench,
) -> None:
    bench.start()
    blocker = bench.root / "state/slices.json.new"
    blocker.mkdir()
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    with pytest.raises(AdmissionError, match="checkpoint cannot be written"):
        bench.admit(pod)
    bench.wait_phase("one", "failed")
    bench.wait_unlocked()
    blocker.rmdir()
    assert next_pod_is_served(bench) == "0:0-75"
