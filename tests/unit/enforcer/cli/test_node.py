# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from enforcer.cli import node
from enforcer.model import MIB, ContainerKind, Share, Slice, Why
from enforcer.slices import FILE, write_checkpoint
from tests.testbed.trees import (
    ContainerSpec,
    GpuSpec,
    NodeSpec,
    write_bundle,
    write_cgroup,
    write_pod,
    write_process,
    write_sys,
)

if TYPE_CHECKING:
    from pathlib import Path

GPU = GpuSpec("0000:03:00.0", 5, 1, 128, product_name="GPU", vram_used=7 * MIB)
REGION = f"drm/{GPU.bdf}/vram"
UID = "11111111-2222-3333-4444-555555555555"
POD = f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
ID = "c" * 64


@pytest.fixture
def place(short_path: Path) -> node.Place:
    """One container ``main`` that holds 5 MiB of its 64, on a node without an enforcer."""
    parser = argparse.ArgumentParser()
    node.add_options(parser)
    names = ("sys", "proc", "run", "dev", "cgroup-root", "state-dir", "bpffs", "socket")
    where = node.place(parser.parse_args([f"--{name}={short_path / name}" for name in names]))
    write_sys(where.roots.sys, NodeSpec((GPU,)))
    write_cgroup(where.roots.cgroup, controllers="dmem")
    (where.roots.cgroup / "dmem.capacity").write_text(f"{REGION} {64 << 30}\n")
    write_cgroup(where.roots.cgroup, "kubepods.slice")
    container = ContainerSpec(
        ID, "main", dmem={"current": f"{REGION} {5 * MIB}\n", "max": f"{REGION} {64 * MIB}\n"}
    )
    write_pod(where.roots.cgroup, POD, [container])
    write_bundle(where.roots.run, container)
    (where.roots.cgroup / POD / f"cri-containerd-{ID}.scope/cgroup.procs").write_text("7\n")
    write_process(where.roots.sys, 7, {GPU.kfd_id: 4 * MIB})
    where.state.mkdir()
    share = Share(GPU.bdf, 64 * MIB, "0-3")
    write_checkpoint(
        where.state / FILE,
        [
            Slice(
                UID, "ns", "p", "main", ContainerKind.APP, ("a",), (share,), "2026-11-29T13:00:00Z"
            )
        ],
    )
    return where


def test_without_an_enforcer_the_node_is_read(place: node.Place) -> None:
    seen = node.look(place)
    assert (seen.by, seen.why) == ("this command", f"no socket at {place.socket}")
    (row,) = [row for row in seen.snapshot.containers if row.container]
    assert (row.namespace, row.pod, row.container, row.limit) == ("ns", "p", "main", 64 * MIB)
    assert (row.usage.dmem_current, row.usage.kfd, row.usage.requested) == (5 * MIB, 4 * MIB, None)
    assert row.cus == "0-3"
    assert row.activity is not None
    assert seen.snapshot.loads[0].vram_used == 7 * MIB
    assert seen.snapshot.support.ledger == "sysfs"
    assert [problem.split(":")[0] for problem in seen.snapshot.problems] == [
        "the gate's maps cannot be read"
    ]


def test_a_limit_of_dmem_counts_as_in_place_only_at_its_value(place: node.Place) -> None:
    (row,) = [row for row in node.read_node(place).containers if row.container]
    assert [str(state) for state in row.layers] == [
        "off: gate not loaded",
        "off: limit not read back",
    ]


def test_a_capacity_that_cannot_be_read_is_not_one_without_regions(place: node.Place) -> None:
    (place.roots.cgroup / "dmem.capacity").write_text("nonsense\n")
    seen = node.read_node(place)
    (row,) = [row for row in seen.containers if row.container]
    assert (row.layers[1].reason, seen.support.dmem.reason) == (Why.UNREAD, Why.UNREAD)


def test_a_socket_that_nobody_answers_is_said(place: node.Place) -> None:
    place.socket.touch()
    seen = node.look(place)
    assert seen.by == "this command"
    assert "unavailable" in seen.why


@pytest.mark.parametrize(
    ("broken", "word"),
    [("cgroup-root/cgroup.controllers", "expected a cgroup2 mount"), (f"state-dir/{FILE}", FILE)],
)
def test_what_cannot_be_read_is_a_problem_and_the_rest_is_shown(
    place: node.Place, short_path: Path, broken: str, word: str
) -> None:
    if broken.endswith(FILE):
        (short_path / broken).write_text("{ torn")
    else:
        (short_path / broken).unlink()
    snapshot = node.read_node(place)
    assert any(word in problem for problem in snapshot.problems)
    assert [gpu.bdf for gpu in snapshot.gpus] == [GPU.bdf]


def test_a_garbled_dmem_file_is_a_problem(place: node.Place) -> None:
    (place.roots.cgroup / "dmem.capacity").write_text("?\n")
    snapshot = node.read_node(place)
    assert any("dmem.capacity" in problem for problem in snapshot.problems)
    assert snapshot.support.dmem_regions == ()


def test_a_garbled_record_leaves_its_container_nameless(place: node.Place) -> None:
    (path,) = place.roots.run.glob("containerd/*/k8s.io/*/config.json")
    path.write_text("{")
    snapshot = node.read_node(place)
    assert any(str(path) in problem for problem in snapshot.problems)
    assert [row.container for row in snapshot.containers if row.container] == [ID]
