# SPDX-License-Identifier: Apache-2.0
"""What the enforcer shows of usage beside its own ledger, and what it tells the hook."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.model import MIB, Why
from enforcer.slices import hook_directory
from tests.vm.guest.node import slice_of
from tests.vm.guest.pressure import evict
from tests.vm.guest.services import dmem_current, dmem_max, ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

_RUN = Path("/run/ringfence")


def series(enforcer: Enforcer, name: str, one: Tenant) -> float | None:
    """The value of a container's series; None where there is none."""
    labels = rf'container="main",device="[^"]+",namespace="[^"]+",pod="{one.pod.name}"'
    found = re.search(rf"^{name}{{{labels}}} (\S+)$", enforcer.metrics() or "", re.MULTILINE)
    return None if found is None else float(found[1])


def hook_layer(enforcer: Enforcer, one: Tenant) -> tuple[str, str] | None:
    """Reason and value of the container's series of that layer; None where there is none."""
    labels = rf'container="main",[^}}]*pod="{one.pod.name}",layer="hook",reason="([^"]*)"'
    found = re.search(
        rf"^ringfence_layer{{{labels}}} (\S+)$", enforcer.metrics() or "", re.MULTILINE
    )
    return None if found is None else (found[1], found[2])


def slice_file(one: Tenant) -> Path:
    return hook_directory(_RUN, one.pod.uid, "main") / "slice"


def told(one: Tenant) -> str:
    """The slice file's text; empty until there is one, which is after the limits are in force."""
    path = slice_file(one)
    return path.read_text() if path.exists() else ""


def test_every_source_agrees_to_the_byte(enforcer: Enforcer, pods: Pods, gpu: Gpu) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    one.client.ask(f"map {one.client.kfd_alloc(gpu, 40 * MIB)}")
    one.client.gem_create(8 * MIB)
    row = ledger(one.container.cgroup_id, gpu.bdf)
    wait_for(
        "KFD and fdinfo in the metrics",
        lambda: (
            series(enforcer, "ringfence_vram_observed_bytes", one)
            == row.requested + row.page_tables
        ),
    )
    assert row.requested == 48 * MIB
    wait_for("the comparison", lambda: series(enforcer, "ringfence_vram_drift_bytes", one) == 0)
    charged = dmem_current(one.container.path, gpu.bdf)
    escaped = series(enforcer, "ringfence_vram_escaped_bytes", one)
    assert escaped == (None if charged is None else 0)


@pytest.mark.dmem
def test_vram_that_dmem_lost_to_the_root_is_shown(
    enforcer: Enforcer, pods: Pods, gpu: Gpu, client_binary: Path
) -> None:
    """The driver brings evicted KFD buffers back from a kernel thread, which dmem charges."""
    one = tenant(pods, enforcer, gpu, 64)
    one.client.kfd_alloc(gpu, 60 * MIB)
    evict(one, gpu, client_binary)
    wait_for(
        "the restore",
        lambda: ledger(one.container.cgroup_id, gpu.bdf).resident == 60 * MIB,
    )
    assert (dmem_current(one.container.path, gpu.bdf) or 0) < MIB
    wait_for(
        "the escape in the metrics",
        lambda: series(enforcer, "ringfence_vram_escaped_bytes", one) == 60 * MIB,
    )
    evicted = series(enforcer, "ringfence_evicted_seconds_total", one)
    assert evicted is not None
    assert evicted > 0
    assert f"main of {one.pod.namespace}/{one.pod.name}" in enforcer.log.read_text()
    assert "dmem does not charge 60 MiB" in enforcer.log.read_text()
    # The gate goes by its own books.
    assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {4 * MIB + 1}") == "ENOMEM"


@pytest.mark.dmem
@pytest.mark.parametrize("size", ["max", str(4 * MIB)])
def test_a_limit_of_dmem_that_somebody_changed_is_put_back(
    enforcer: Enforcer, pods: Pods, gpu: Gpu, size: str
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    limit = dmem_max(one.container.path, gpu.bdf)
    assert limit is not None
    (one.container.path / "dmem.max").write_text(f"drm/{gpu.bdf}/vram {size}\n")
    wait_for("dmem.max", lambda: dmem_max(one.container.path, gpu.bdf) == limit)


def test_without_bpf_there_are_series_all_the_same(switch: Switch, pods: Pods, gpu: Gpu) -> None:
    enforcer = switch.run("dmem")
    pod = pods.pod("observed")
    pods.slices.append(slice_of(pod, "main", gpu, 64))
    enforcer.give(pods.slices)
    one = pods.start(pod, pods.slices[0])
    wait_for("the container's cgroup", one.container.path.exists)
    one.client.open(gpu)
    one.client.kfd_alloc(gpu, 40 * MIB)
    wait_for(
        "KFD's count in the metrics",
        lambda: (series(enforcer, "ringfence_vram_observed_bytes", one) or 0) >= 40 * MIB,
    )
    text = enforcer.metrics() or ""
    assert 'ringfence_ledger_info{source="sysfs"} 1' in text
    assert "ringfence_vram_requested_bytes{" not in text
    kernel = dmem_max(one.container.path, gpu.bdf) is not None
    refuses = "refuse kernel\n" if kernel else "refuse hook\n"
    wait_for("who refuses", lambda: refuses in told(one))


def test_where_the_kernel_holds_nothing_what_gets_round_the_hook_is_seen(
    switch: Switch, pods: Pods, gpu: Gpu
) -> None:
    """The client loads no hook. What it may have before that shows is the slice and some more."""
    enforcer = switch.run("none")
    pod = pods.pod("round")
    pods.slices.append(replace(slice_of(pod, "main", gpu, 64), hook=True))
    enforcer.give(pods.slices)
    one = pods.start(pod, pods.slices[0])
    wait_for("the hook as its layer", lambda: hook_layer(enforcer, one) == ("", "1"))
    one.client.open(gpu)
    one.client.kfd_alloc(gpu, 64 * MIB)
    wait_for(
        "KFD's count in the metrics",
        lambda: (series(enforcer, "ringfence_vram_observed_bytes", one) or 0) >= 64 * MIB,
    )
    assert hook_layer(enforcer, one) == ("", "1")
    one.client.kfd_alloc(gpu, 128 * MIB)
    wait_for("a hook got round", lambda: hook_layer(enforcer, one) == (Why.HOOK_PASSED.value, "0"))


def test_the_hook_is_told_its_slice_and_that_the_kernel_refuses(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    path = slice_file(one)
    wait_for("who refuses", lambda: "refuse kernel\n" in told(one))
    line = f"gpu {gpu.bdf} vram={64 * MIB} cus=all kfd={gpu.kfd_id} render={gpu.render}"
    assert line in path.read_text()
    books = path.parent / "ledger/usage.v1"
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, books)] == [0o444, 0o666]
    pods.slices.clear()
    enforcer.give(pods.slices)
    one.container.kill()
    one.pod.remove()
    wait_for("its files gone", lambda: not path.parent.parent.exists())
