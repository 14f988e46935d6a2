# SPDX-License-Identifier: Apache-2.0
"""The writer on real cgroups: what the kernel takes, what it refuses, and in which words."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from enforcer.apply import apply, probe_dmem
from enforcer.host import cgroups, dmem
from enforcer.model import MIB, Why
from enforcer.plan import EnableDmem, Outcome, SetDmem
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import CGROUP, Enforcer, dmem_max, wait_for
from tests.vm.guest.test_limit import held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from enforcer.plan import Action
    from tests.vm.guest.node import Pods

NAME = "apply-test"


@pytest.fixture
def path() -> Iterator[str]:
    """A cgroup with a child, from the root of the tree."""
    child = CGROUP / NAME / "child"
    child.mkdir(parents=True)
    yield f"{NAME}/child"
    for directory in (child, child.parent):
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()


@pytest.fixture
def region(gpu: Gpu) -> str:
    return dmem.regions(dmem.capacity(CGROUP), [gpu.bdf]).get(gpu.bdf, f"drm/{gpu.bdf}/vram")


@pytest.mark.dmem
def test_a_limit_is_set_where_dmem_was_handed_down(path: str, gpu: Gpu, region: str) -> None:
    limit = SetDmem(path, gpu.bdf, region, 64 * MIB)
    actions: list[Action] = [limit, EnableDmem(""), EnableDmem(NAME), limit]
    outcomes = apply(actions, None, CGROUP)
    assert [outcome.why for outcome in outcomes] == [Why.NO_CONTROLLER, None, None, None]
    assert dmem.maximum(CGROUP / path)[region] == 64 * MIB
    lift = SetDmem(path, gpu.bdf, region, None)
    assert apply([lift], None, CGROUP) == [Outcome(lift)]
    assert dmem.maximum(CGROUP / path)[region] is None


@pytest.mark.dmem
def test_a_cgroup_with_processes_of_its_own_hands_nothing_down(path: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        (CGROUP / NAME / "cgroup.procs").write_text(str(sleeper.pid))
        outcomes = apply([EnableDmem(""), EnableDmem(NAME)], None, CGROUP)
        sleeper.kill()
    assert [outcome.why for outcome in outcomes] == [None, Why.BUSY]
    assert path.startswith(NAME)


@pytest.mark.dmem
def test_a_region_the_kernel_does_not_have_is_none(path: str, gpu: Gpu) -> None:
    unknown = SetDmem(path, gpu.bdf, "drm/ffff:ff:1f.7/vram", MIB)
    outcomes = apply([EnableDmem(""), EnableDmem(NAME), unknown], None, CGROUP)
    assert outcomes[-1].why is Why.NO_REGION


def test_a_cgroup_that_went_is_vanished(gpu: Gpu, region: str) -> None:
    actions: list[Action] = [
        SetDmem(f"{NAME}/gone", gpu.bdf, region, MIB),
        EnableDmem(f"{NAME}/gone"),
    ]
    assert [outcome.why for outcome in apply(actions, None, CGROUP)] == [Why.VANISHED] * 2


def test_a_probe_tells_the_truth_and_leaves_nothing(gpu: Gpu, region: str) -> None:
    known = bool(dmem.capacity(CGROUP))
    before = {entry.name for entry in os.scandir(CGROUP) if entry.is_dir()}
    assert (probe_dmem(CGROUP, {gpu.bdf: region})[gpu.bdf] is None) == known
    if known:
        assert probe_dmem(CGROUP, {gpu.bdf: f"{region}x"}) == {gpu.bdf: Why.NO_REGION}
    assert {entry.name for entry in os.scandir(CGROUP) if entry.is_dir()} == before


@pytest.mark.dmem
def test_a_controller_somebody_takes_away_comes_back_with_its_limit(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    pod = pods.pod("kept")
    one = slice_of(pod, "main", gpu, 64)
    pods.slices.append(one)
    enforcer.give(pods.slices)
    tenant = pods.start(pod, one)
    held(enforcer, tenant, gpu)
    before = dmem_max(tenant.container.path, gpu.bdf)
    (pod.path / "cgroup.subtree_control").write_text("-dmem")
    wait_for("the limit again", lambda: dmem_max(tenant.container.path, gpu.bdf) == before)
    assert "dmem" in (cgroups.subtree_controllers(CGROUP, pod.cgroup) or ())
