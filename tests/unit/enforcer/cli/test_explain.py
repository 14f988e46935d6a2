# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from enforcer.cli import explain
from enforcer.cli.node import Seen
from enforcer.model import MIB, ContainerKind, Layer, LayerState, Share, Slice, Usage, Why
from enforcer.slices import FILE, write_checkpoint
from tests.testbed.trees import write_cgroup
from tests.unit.enforcer.sample import GPUS, ILL, NO_DMEM, ORPHANED, ROWS, SNAPSHOT

if TYPE_CHECKING:
    from pathlib import Path

    from enforcer.model import Snapshot

SLICES = tuple(
    Slice(
        f"uid-{pod}", "team-a", pod, container, ContainerKind.APP, (f"{GPUS[0].bdf}#0",),
        (Share(GPUS[0].bdf, 4096 * MIB, "0-3"),), "2026-11-29T13:00:00Z",
    )
    for pod, container in (("infer", "main"), ("infer", "helper"), ("train", "main"))
)  # fmt: skip


class Node:
    """A node whose enforcer has taken the snapshot, and whose containers have a process each."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.snapshot = SNAPSHOT
        write_checkpoint(path / FILE, SLICES)
        monkeypatch.setattr(explain, "look", lambda _: Seen(self.snapshot, "enforcer"))
        write_cgroup(path / "cgroup")
        for pid, row in enumerate(ROWS, 100):
            parts = row.cgroup.split("/")
            for depth in range(1, len(parts) + 1):
                write_cgroup(path / "cgroup", "/".join(parts[:depth]))
            (path / "cgroup" / row.cgroup / "cgroup.procs").write_text(f"{pid}\n")
            (path / "proc" / str(pid)).mkdir(parents=True)
            (path / "proc" / str(pid) / "environ").write_bytes(
                b"PATH=/bin\0HSA_CU_MASK=0:0-3\0HIP_DEVICE_MEMORY_LIMIT_0=4096m\0SECRET=x\0"
                b"LD_AUDIT=\x1b[2J\0AMD_\x1b[2J\nnot held=1\0"
            )

    def run(self, *argv: str) -> int:
        return explain.main(
            [
                *argv,
                "--state-dir", str(self.path),
                "--proc", str(self.path / "proc"),
                "--cgroup-root", str(self.path / "cgroup"),
            ]
        )  # fmt: skip


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_pod_is_told_container_by_container(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.run("team-a/infer") == 0
    text = capsys.readouterr().out
    for words in (
        "pod team-a/infer, as seen by enforcer",
        "container helper (app): not running; slice 4096 MiB of 0000:03:00.0",
        "is held to its slice by gate and dmem",
        "may hold   32768 MiB; compute units: 152-227 (76 of 304)",
        f"by ledger  {31 * 1024 * MIB} bytes asked for",
        f"by dmem    {31 * 1024 * MIB * 7 // 8} bytes",
        "by hook",
        f"spilled    {31 * 1024 * MIB // 8} bytes",
        "does       4 queues, 12 CUs busy, compute 1.2 s, evicted 1.5 s",
        "refused    7 times",
        "refused_limit (7 times), last at 11:05:40 UTC: python[4711] refused 4294967296 bytes",
        "-> ask for more amd.com/gpumem",
        "process 101 has devices none",
        "HSA_CU_MASK=0:0-3",
        "HIP_DEVICE_MEMORY_LIMIT_0=4096m",
    ):
        assert words in text, words
    assert "SECRET" not in text
    assert "train" not in text


def test_the_environment_cannot_move_the_readers_cursor(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.run("team-a/infer")
    text = capsys.readouterr().out
    assert "LD_AUDIT=?[2J" in text
    assert "    AMD_?[2J?not held=1" in text
    assert "\x1b" not in text


def test_a_device_of_the_tenants_own_cannot_either(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    dri = node.path / "proc/101/root/dev/dri"
    dri.mkdir(parents=True)
    for name in (b"\x1b[2J", b"a\nb", b"\xff"):
        os.mknod(dri / os.fsdecode(name), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert node.run("team-a/infer") == 0
    text = capsys.readouterr().out
    assert "has devices /dev/dri/?[2J /dev/dri/a?b /dev/dri/?" in text
    assert text.encode().isascii()


def with_row(**changes: object) -> Snapshot:
    return replace(SNAPSHOT, containers=(replace(ROWS[1], **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize("why", list(Why))
def test_every_layer_that_is_off_comes_with_advice(
    node: Node, capsys: pytest.CaptureFixture[str], why: Why
) -> None:
    node.snapshot = with_row(layers=(LayerState(Layer.GATE), LayerState(Layer.DMEM, why)))
    assert node.run("team-a/infer") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    where = next(n for n, line in enumerate(lines) if line.endswith(f"off: {why}"))
    assert lines[where + 1] == f"-> {explain.ADVICE[why]}"


def test_a_slice_that_nothing_holds_is_an_exit_status(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    off = (LayerState(Layer.GATE, Why.NOT_LOADED), LayerState(Layer.DMEM, Why.NO_REGION))
    node.snapshot = with_row(layers=off)
    assert node.run("team-a/infer") == 3
    assert "is NOT held: no layer" in capsys.readouterr().out


def test_a_slice_that_the_hook_alone_holds_is_an_exit_status_and_told_apart(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    off = (LayerState(Layer.GATE, Why.NOT_POSSIBLE), LayerState(Layer.DMEM, Why.NO_REGION))
    node.snapshot = with_row(layers=(*off, LayerState(Layer.HOOK)))
    assert node.run("team-a/infer") == 3
    text = capsys.readouterr().out
    assert "is NOT held by the kernel, which cannot: the hook alone does" in text
    assert "hook       on" in text


def test_a_whole_gpu_is_not_limited_and_no_fault(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.run("team-a/whole") == 0
    text = capsys.readouterr().out
    assert "is not limited: it has the whole GPU" in text
    assert "compute units: all" in text


def test_sources_that_differ_are_pointed_at(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.snapshot = with_row(usage=Usage(1, 1, 0, 1, 0, drift=3 * MIB, escaped=5 * MIB))
    node.run("team-a/infer")
    text = capsys.readouterr().out
    assert f"the kernel counts {3 * MIB} bytes more than the ledger" in text
    assert f"dmem does not charge {5 * MIB} bytes" in text


def test_what_outlived_its_container_is_told_with_the_pod(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.snapshot = ORPHANED
    node.run("team-a/train")
    assert f"orphaned   {3072 * MIB} bytes charged for containers" in capsys.readouterr().out


@pytest.mark.parametrize(("faulted", "brought"), [(7, "7 bytes"), (None, "an unknown number of")])
def test_shared_virtual_memory_is_told_where_there_is_some(
    node: Node, capsys: pytest.CaptureFixture[str], faulted: int | None, brought: str
) -> None:
    node.snapshot = with_row(usage=Usage(9, 9, 0, 9, 0, svm=5, svm_faulted=faulted))
    node.run("team-a/infer")
    text = capsys.readouterr().out
    assert "of it SVM  5 bytes of shared virtual memory" in text
    assert f"have brought in {brought}" in text
    node.snapshot = SNAPSHOT
    node.run("team-a/infer")
    assert "SVM" not in capsys.readouterr().out


def test_a_gpu_that_is_ill_is_pointed_at(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.snapshot = replace(SNAPSHOT, health=(ILL,))
    node.run("team-a/infer")
    assert "! the GPU is unhealthy: wedged" in capsys.readouterr().out


def test_usage_that_nothing_tells_is_unknown(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.snapshot = with_row(usage=Usage(), activity=None, layers=NO_DMEM, cus="nonsense")
    assert node.run("team-a/infer") == 0
    text = capsys.readouterr().out
    assert "unknown: no source tells" in text
    assert "compute units: nonsense" in text


@pytest.mark.parametrize("content", ["{ torn", "", None])
def test_an_unknown_pod_is_an_error_that_names_those_there_are(
    node: Node, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        (node.path / FILE).write_text(content)
    assert node.run("team-a/nobody") == 1
    message = capsys.readouterr().err
    assert "pod team-a/nobody has no slice on this node" in message
    assert ("team-a/infer, team-a/train" in message) == (content is None)
    assert (FILE in message) == (content is not None)


def test_a_container_without_a_process_to_look_into_is_told_all_the_same(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    (node.path / "proc/101/environ").unlink()
    assert node.run("team-a/infer") == 0
    assert "no process of it could be looked into" in capsys.readouterr().out


def test_json_has_the_facts(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("team-a/infer", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["container"] for one in told["slices"]] == ["main", "helper"]
    (row,) = told["containers"]
    assert (row["held"], row["usage"]["requested"]) == (True, 31 * 1024 * MIB)
    assert row["process"]["environment"]["HSA_CU_MASK"] == "0:0-3"
    assert told["incidents"][0]["count"] == 7


@pytest.mark.parametrize("text", ["pod", "a/b/c", "/b", "a/", ""])
def test_what_is_no_pod_is_a_usage_error(text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        explain.main([text])
    assert caught.value.code == 2
