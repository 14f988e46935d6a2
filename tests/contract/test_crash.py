# SPDX-License-Identifier: Apache-2.0
"""The plugin is killed between any two side effects: afterwards everything is in order."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deviceplugin.apiserver import connect
from tests.contract.conftest import NODE, eventually
from tests.contract.peers import hami
from tests.contract.peers.apiserver import kubeconfig
from tests.contract.peers.faulty import STATUS
from tests.contract.peers.kubelet import AdmissionError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.conftest import Bench

FEWEST = 9
"""Side effects that serving two containers has at least: two checkpoints, a CDI spec, patches."""


def next_pod_is_served(bench: Bench) -> str:
    """The mask of another pod, which must find node, lock and CUs usable."""
    got = bench.admit(bench.bind("next", f"{bench.gpu_ids()[0]},T,4096,76:;"))["app"]
    bench.wait_phase("next", "success")
    bench.wait_unlocked()
    return got.response.envs["HSA_CU_MASK"]


STEPS = range(1, 16)
"""More than a pod with two containers has side effects: with the last ones nothing dies."""


@pytest.mark.parametrize("number", STEPS)
def test_a_plugin_killed_before_any_side_effect_leaves_nothing_behind(
    bench: Bench, number: int
) -> None:
    process = bench.start(f"--cdi-dir={bench.root / 'cdi'}", dies=number)
    gpu = bench.gpu_ids()[0]
    two = hami.container("a", 1), hami.container("b", 1)
    pod = bench.bind("one", f"{gpu},T,1024,10:;{gpu},T,2048,20:;", *two)
    served = bench.admits(pod)
    if served:
        eventually(lambda: process.poll() is not None or bench.settled("one"))
    if process.poll() is None and served:
        assert number > FEWEST, "it was not killed"
        bench.kill(process)
    else:
        assert process.wait(timeout=10) == STATUS
    if not served:
        bench.end(pod, "Failed")

    bench.start()

    bench.wait_unlocked()
    eventually(lambda: bench.annotation("one", "bind-phase") != "allocating")
    if served:
        bench.wait_phase("one", "success")
        assert set(bench.annotation("one", "amd-devices-to-allocate") or "") == {";"}
        assert [(one.container, one.shares[0].cus) for one in bench.slices] == [
            ("a", "0-9"),
            ("b", "10-29"),
        ]
        assert next_pod_is_served(bench) == "0:30-105"
    else:
        eventually(lambda: bench.slices == [], timeout=30)
        assert next_pod_is_served(bench) == "0:0-75"
    assert {one.pod for one in bench.slices} == ({"one", "next"} if served else {"next"})


@pytest.mark.parametrize("number", [7, 8, 9, 10])
def test_a_plugin_killed_while_it_takes_a_slice_back_takes_it_back(
    bench: Bench, number: int
) -> None:
    process = bench.start(dies=number)
    pod = bench.bind("one", f"{bench.gpu_ids()[0]},T,4096,76:;")
    bench.admit(pod)
    bench.wait_unlocked()
    bench.end(pod)
    eventually(lambda: process.poll() is not None, timeout=30)
    assert [item.pod for item in bench.slices] in ([], ["one"])

    bench.start()

    eventually(lambda: bench.slices == [], timeout=30)
    assert next_pod_is_served(bench) == "0:0-75"


@pytest.mark.parametrize("number", range(1, 4))
def test_a_refused_pod_is_settled_by_the_next_start(bench: Bench, number: int) -> None:
    process = bench.start(dies=number)
    pod = bench.bind("bad", "garbage;")
    with pytest.raises(AdmissionError):
        bench.admit(pod)
    eventually(lambda: process.poll() is not None or bench.settled("bad"))
    bench.kill(process)
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
    # Whether it was given the hook nobody recorded.
    assert replace(bench.slices[0], created=before.created) == replace(before, hook=None)
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


def test_the_keys_of_a_kubeconfig_are_left_nowhere(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = bench.start()
    (keys,) = tmp_path.iterdir()
    # As the client library writes them for a server that wants them.
    whole = json.loads(kubeconfig("https://127.0.0.1:1"))
    secret = base64.b64encode(b"a key").decode()
    whole["users"][0]["user"] = {"client-certificate-data": secret, "client-key-data": secret}
    (tmp_path / "kubeconfig").write_text(json.dumps(whole))
    connect(NODE, tmp_path / "kubeconfig", keys)
    assert [one.read_bytes() for one in keys.iterdir()] == [b"a key"]
    assert bench.terminate(process) == 0
    assert not keys.exists()
