# SPDX-License-Identifier: Apache-2.0
"""The enforcer with the capabilities that the chart gives it where it is not privileged, behind a
runtime's default filter of system calls, with a read-only root.

docs/security.md says what each capability is for; here each of them is missed when it is missing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bpf import loader
from enforcer.api.client import Client
from enforcer.host import dmem
from enforcer.model import MIB
from tests.vm.guest.confined import CAPABILITIES, Confined, seccomp
from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import CGROUP, ledger, ledger_source, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu, Usage
    from tests.vm.guest.conftest import Switch
    from tests.vm.guest.node import Pods, Tenant

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.timeout(900)]
_SOCKET = Path("/run/ringfence/enforcer.sock")


@pytest.fixture
def alone(switch: Switch) -> Iterator[None]:
    """No other enforcer runs, and nothing of this one stays in the kernel."""
    switch.end()
    yield
    loader.unload()


@contextlib.contextmanager
def running(confined: Confined) -> Iterator[Confined]:
    confined.give([])
    try:
        confined.start()
        yield confined
    finally:
        status = confined.stop()
    assert status == 0


def only_pass(confined: Confined) -> str:
    """What it logs in one pass."""
    confined.log.write_text("")
    confined.give([])
    confined.spawn()
    assert confined.wait() == 0, confined.log.read_text()
    return confined.log.read_text()


def observed(one: Tenant, requested: int) -> Usage | None:
    """The usage of a container from a pass in which its books said so already."""
    with Client(_SOCKET) as client:
        rows = client.snapshot(30).containers
    found = [row.usage for row in rows if row.pod_uid == one.pod.uid and row.container == "main"]
    whole = [usage for usage in found if usage.observed and usage.requested == requested]
    return whole[0] if whole else None


def with_a_privileged_process(one: Tenant, gpu: Gpu, binary: Path) -> PlainClient:
    """A process with every capability in the container, as a pod with some has one."""
    client = PlainClient(binary)
    (one.container.path / "cgroup.procs").write_text(str(client.process.pid))
    client.ask(f"open render {gpu.render}")
    client.gem_create(8 * MIB)
    return client


def test_it_holds_and_observes_with_no_more(
    tmp_path: Path, logs: Path, pods: Pods, gpu: Gpu, client_binary: Path
) -> None:
    with running(Confined(tmp_path, logs)) as confined:
        one = tenant(pods, confined, gpu, 64)
        one.client.kfd_alloc(gpu, 40 * MIB)
        other = with_a_privileged_process(one, gpu, client_binary)
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {17 * MIB}") == "ENOMEM"

        def both_processes_seen() -> bool:
            usage = observed(one, 48 * MIB)
            # KFD's own buffer is in no address space yet, so fdinfo has the other process's alone.
            return usage is not None and (usage.kfd, usage.drm) == (
                40 * MIB,
                8 * MIB + (usage.page_tables or 0),
            )

        wait_for("its processes looked at", both_processes_seen, 60)
        with Client(_SOCKET) as client:
            support = client.snapshot(30).support
        assert support.gate.on
        assert support.ledger == ledger_source()
        assert support.dmem.on == any(name.startswith("drm/") for name in dmem.capacity(CGROUP))
        other.finish()
        wait_for(
            "the other's memory given back",
            lambda: ledger(one.container.cgroup_id, gpu.bdf).resident == 40 * MIB,
            60,
        )


def test_what_removes_it_needs_one_of_them(tmp_path: Path, logs: Path) -> None:
    with running(Confined(tmp_path, logs)):
        pass
    with loader.open_maps() as maps:
        assert maps.ledger_acts()
        said = only_pass(Confined(tmp_path, logs, {"CAP_SYS_ADMIN"}, more=["--unload"]))
        # Programs are told to stop before their pins go: that takes a right to the maps.
        assert not maps.ledger_acts()
    assert "nothing of the gate or the ledger is left" in said
    assert not loader.PIN_ROOT.exists()


@pytest.mark.dmem
@pytest.mark.parametrize(
    ("lacking", "instead", "lost"),
    [
        # These two are what BPF needs where no type information of modules has to be read.
        ("CAP_SYS_ADMIN", {"CAP_BPF", "CAP_PERFMON"}, "gate off"),
        ("CAP_DAC_OVERRIDE", set(), "dmem off: permission denied"),
    ],
    ids=["SYS_ADMIN", "DAC_OVERRIDE"],
)
def test_without_one_of_them_a_kernel_layer_is_lost(
    tmp_path: Path, logs: Path, lacking: str, instead: set[str], lost: str
) -> None:
    capabilities = {*CAPABILITIES} - {lacking} | instead
    said = only_pass(Confined(tmp_path, logs, capabilities, more=["--once"]))
    assert lost in next(line for line in said.splitlines() if " INFO gate " in line)


@pytest.mark.probes
def test_without_real_time_a_ledger_of_probes_says_what_it_may_miss(
    tmp_path: Path, logs: Path
) -> None:
    capabilities = {*CAPABILITIES} - {"CAP_SYS_NICE"}
    said = only_pass(Confined(tmp_path, logs, capabilities, more=["--once"]))
    assert "without CAP_SYS_NICE it may miss a buffer" in said
    assert "gate on" in said


@pytest.mark.probes
def test_without_perfmon_it_has_probes_only_as_the_runtimes_profile_has_it(
    tmp_path: Path, logs: Path
) -> None:
    capabilities = {*CAPABILITIES} - {"CAP_PERFMON"}
    lets = [
        rule["action"] == "SCMP_ACT_ALLOW"
        for rule in seccomp(capabilities)["syscalls"]
        if "perf_event_open" in rule["names"]
    ]
    said = only_pass(Confined(tmp_path, logs, capabilities, more=["--once"]))
    assert ("gate on" in said) == any(lets)
    assert ("cannot attach" in said) != any(lets)


@pytest.mark.dmem
def test_without_ptrace_processes_with_capabilities_are_not_seen(
    tmp_path: Path, logs: Path, pods: Pods, gpu: Gpu, client_binary: Path
) -> None:
    with running(Confined(tmp_path, logs, {*CAPABILITIES} - {"CAP_SYS_PTRACE"})) as confined:
        one = tenant(pods, confined, gpu, 64)
        other = with_a_privileged_process(one, gpu, client_binary)
        one.client.gem_create(4 * MIB)

        def one_process_seen() -> bool:
            usage = observed(one, 12 * MIB)
            return usage is not None and usage.drm == 4 * MIB + 4096

        # A look that has the 4 MiB is later than the other's 8.
        wait_for("its processes looked at", one_process_seen, 60)
        other.finish()
