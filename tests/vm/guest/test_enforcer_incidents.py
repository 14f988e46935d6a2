# SPDX-License-Identifier: Apache-2.0
"""Who was refused, by whom it was asked for: in the log and over the local API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.api.client import Client
from enforcer.apply import apply
from enforcer.model import MIB
from enforcer.plan import KillCgroup, Outcome
from tests.vm.guest.services import CGROUP, ledger, wait_for
from tests.vm.guest.test_limit import fill, tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu, Incident
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer

_SOCKET = Path("/run/ringfence/enforcer.sock")


def test_a_refusal_is_told_with_asked_used_and_limit(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    # Other tests' pods have the same names.
    told_before = len(enforcer.log.read_text())
    assert fill(one, f"kfd {gpu.kfd_id}", 48 * MIB) == 48 * MIB
    assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {20 * MIB}") == "ENOMEM"

    def told() -> Incident | None:
        with Client(_SOCKET) as client:
            found = [
                incident
                for incident in client.snapshot(60).incidents
                if incident.pod_uid == one.pod.uid and incident.count == 2
            ]
        return found[0] if found else None

    incident = wait_for("the refusals in the snapshot", told)
    assert (incident.bdf, incident.reason) == (gpu.bdf, "refused_limit")
    assert (incident.asked, incident.used, incident.limit) == (20 * MIB, 48 * MIB, 64 * MIB)
    # The first alone, or both if they came in one pass.
    who = f"{one.pod.namespace}/{one.pod.name} on {gpu.bdf}: gpuclient["
    told_of = f"bytes: over its share ({48 * MIB} of {64 * MIB} used)"
    text = enforcer.log.read_text()[told_before:]
    lines = [line for line in text.splitlines() if who in line]
    assert [told_of in line for line in lines] == [True]


def test_a_container_to_be_ended_is_ended_with_all_it_forked(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one, other = (tenant(pods, enforcer, gpu, 64, name) for name in ("main", "beside"))
    one.client.kfd_alloc(gpu, 48 * MIB)
    path = str(one.container.path.relative_to(CGROUP))
    action = KillCgroup(path, one.container.cgroup_id)
    assert apply([action], None, CGROUP) == [Outcome(action)]
    assert one.container.process.wait(timeout=60) != 0
    wait_for("its memory given back", lambda: ledger(one.pod.cgroup_id, gpu.bdf).requested == 0)
    other.client.kfd_alloc(gpu, 64 * MIB)
