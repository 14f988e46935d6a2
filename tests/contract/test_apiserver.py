# SPDX-License-Identifier: Apache-2.0
"""An API server that is away, slow, silent, forgetful or busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.contract.conftest import LOCK, NODE, REGISTER, RESOURCE, eventually
from tests.contract.peers.kubelet import AdmissionError

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

BDF = "0000:05:00.0"
MINUTE = 60.0


def test_kubelet_is_served_while_the_api_server_is_away_at_the_start(bench: Bench) -> None:
    bench.api.faults.away = True
    bench.start()
    assert len(bench.kubelet.wait_devices(RESOURCE)) == 20
    bench.api.faults.away = False
    eventually(lambda: REGISTER in bench.api.node_annotations(NODE), timeout=20)
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    bench.wait_phase("one", "success")


def test_a_pod_the_cache_knows_is_served_during_an_outage_and_settled_after_it(
    bench: Bench,
) -> None:
    bench.start()
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    bench.wait_told()
    bench.api.faults.away = True
    time.sleep(0.5)
    admitted = bench.admit(pod)["app"]
    assert admitted.allocate_seconds < 3
    assert len(bench.slices) == 1
    time.sleep(2)
    assert bench.annotation("one", "bind-phase") == "allocating"
    bench.api.faults.away = False
    eventually(lambda: bench.annotation("one", "bind-phase") == "success", timeout=20)
    bench.wait_unlocked()


def test_an_api_server_away_for_a_minute_costs_no_pod_its_slice(bench: Bench) -> None:
    bench.start()
    gpu, other = bench.gpu_ids()
    running = bench.bind("running", f"{gpu},T,4096,76:;")
    bench.admit(running)
    bench.wait_unlocked()
    waiting = bench.bind("waiting", f"{gpu},T,4096,76:;")
    bench.wait_told()
    bench.api.faults.away = True
    admitted = bench.admit(waiting)["app"]
    assert admitted.response.envs["HSA_CU_MASK"] == "0:76-151"
    # Gone for kubelet, which only the API server could tell; and one that nobody could tell of.
    bench.kubelet.remove(running["metadata"]["uid"])
    bench.api.store.delete("pods", ("default", "running"))
    untold = bench.bind("untold", f"{other},T,4096,76:;", lock=False)
    for _ in range(6):
        time.sleep(MINUTE / 6)
        assert bench.kubelet.wait_devices(RESOURCE).keys() > {f"{BDF}#0"}
        assert {item.pod for item in bench.slices} == {"running", "waiting"}
    bench.api.faults.away = False

    bench.wait_phase("waiting", "success")
    bench.wait_unlocked()
    eventually(lambda: {item.pod for item in bench.slices} == {"waiting"}, timeout=40)
    assert bench.admit(untold)["app"].response.envs["HSA_CU_MASK"] == "0:0-75"
    bench.wait_phase("untold", "success")
    assert bench.processes[0].poll() is None


@pytest.mark.parametrize("fault", ["away", "slow"])
def test_a_pod_nobody_told_of_is_refused_in_time(bench: Bench, fault: str) -> None:
    bench.start()
    bench.gpu_ids()
    bench.api.faults.silent = True
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    setattr(bench.api.faults, fault, True if fault == "away" else 30.0)
    started = time.monotonic()
    with pytest.raises(AdmissionError, match="no answer"):
        bench.admit(pod)
    assert time.monotonic() - started < 10, "preferred allocation and Allocate"
    assert bench.slices == []


def test_a_watch_that_says_nothing_any_more_is_made_up_for(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    bench.api.faults.silent = True
    time.sleep(0.5)
    bench.admit(bench.bind("one", f"{gpu},T,4096,76:;"))
    bench.wait_phase("one", "success")
    bench.wait_unlocked()


def test_watches_that_end_again_and_again_lose_nothing(bench: Bench) -> None:
    bench.api.faults.end_watches = 0.3
    bench.start()
    gpu = bench.gpu_ids()[0]
    for number in range(4):
        bench.admit(bench.bind(f"pod-{number}", f"{gpu},T,4096,76:;"))
        bench.wait_phase(f"pod-{number}", "success")
        bench.wait_unlocked()


def test_a_server_that_forgot_the_version_is_listed_again(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    bench.api.faults.end_watches = 0.2
    bench.api.store.forget()
    eventually(lambda: len(bench.requests("GET", "/pods?fieldSelector")) > 1)
    bench.api.faults.end_watches = 0
    listed = len(bench.requests("GET", "/pods?fieldSelector"))
    time.sleep(1.5)
    assert len(bench.requests("GET", "/pods?fieldSelector")) - listed < 3, "not again and again"
    bench.admit(bench.bind("one", f"{gpu},T,4096,76:;"))
    bench.wait_phase("one", "success")


def test_conflicts_and_errors_are_tried_again(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    bench.api.faults.conflicts = 3
    bench.api.faults.refuse_patches = 2
    bench.admit(bench.bind("one", f"{gpu},T,4096,76:;"))
    bench.wait_phase("one", "success")
    bench.wait_unlocked()


def test_a_pod_that_may_not_be_written_keeps_no_other_off_the_node(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    bench.api.faults.denied_pod = "one"
    bench.admit(bench.bind("one", f"{gpu},T,4096,76:;"))
    bench.wait_unlocked()
    bench.admit(bench.bind("two", f"{gpu},T,4096,76:;"))
    bench.wait_phase("two", "success")
    bench.wait_unlocked()
    eventually(lambda: len(bench.requests("PATCH", "/pods/one")) > 3)
    assert bench.log.count("pod default/one: PATCH") == 1
    bench.api.faults.denied_pod = ""
    bench.wait_phase("one", "success")
    eventually(lambda: "pod default/one: settled after all" in bench.log)


@pytest.mark.parametrize("status", [401, 408, 429, 503, 504])
def test_a_pod_that_cannot_be_written_now_keeps_its_lock_until_it_is(
    bench: Bench, status: int
) -> None:
    bench.start()
    bench.api.faults.denied_pod, bench.api.faults.denied_status = "one", status
    bench.admit(bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;"))
    eventually(lambda: len(bench.requests("PATCH", "/pods/one")) > 1)
    assert bench.annotation("one", "bind-phase") == "allocating"
    assert LOCK in bench.api.node_annotations(NODE)
    bench.api.faults.denied_pod = ""
    bench.wait_phase("one", "success")
    bench.wait_unlocked()


def test_a_refused_pod_that_cannot_say_so_does_not_stand_in_for_another(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    bench.api.faults.denied_pod = "one"
    assert not bench.admits(bench.bind("one", f"{gpu},T,999999,76:;"))
    bench.wait_unlocked()
    assert bench.annotation("one", "bind-phase") == "allocating"
    # Without a lock only who waits tells whose turn it is.
    bench.admit(bench.bind("two", f"{gpu},T,4096,76:;", lock=False))
    assert [item.pod for item in bench.slices] == ["two"]


def test_a_node_annotation_the_scheduler_deleted_is_there_again_at_once(bench: Bench) -> None:
    bench.start()
    bench.gpu_ids()
    before = bench.api.node_annotations(NODE)[REGISTER]
    bench.api.store.patch("nodes", ("", NODE), {"metadata": {"annotations": {REGISTER: None}}})
    eventually(lambda: bench.api.node_annotations(NODE).get(REGISTER) == before, timeout=5)


def test_a_node_annotation_that_is_right_is_not_written_again(bench: Bench) -> None:
    bench.start()
    bench.gpu_ids()
    bench.kill(bench.processes[0])
    bench.start()
    for number in range(5):
        change = {"metadata": {"annotations": {"hami.io/other": str(number)}}}
        bench.api.store.patch("nodes", ("", NODE), change)
        time.sleep(0.2)
    assert len(bench.requests("PATCH", "/nodes/")) == 1


def test_a_quiet_node_asks_the_api_server_for_nothing(bench: Bench) -> None:
    bench.start()
    bench.gpu_ids()
    time.sleep(1)
    before = len(bench.api.store.requests)
    time.sleep(5)
    assert len(bench.api.store.requests) == before


def test_another_plugin_of_the_node_does_not_release_a_lock_it_does_not_own(bench: Bench) -> None:
    bench.start()
    gpu = bench.gpu_ids()[0]
    pod = bench.bind("one", f"{gpu},T,4096,76:;")
    bench.api.faults.refuse_patches = 3
    bench.admit(pod)
    value = "2026-01-02T03:04:05Z,default,another"
    change = {"metadata": {"annotations": {"hami.io/mutex.lock": value}}}
    bench.api.store.patch("nodes", ("", NODE), change)
    bench.wait_phase("one", "success")
    time.sleep(1)
    assert bench.api.node_annotations(NODE)["hami.io/mutex.lock"] == value
