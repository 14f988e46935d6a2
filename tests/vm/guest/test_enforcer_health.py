# SPDX-License-Identifier: Apache-2.0
"""What the driver tells of its GPUs becomes their health in the snapshot."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.api.client import Client
from enforcer.host.drm import instance
from tests.vm.guest.services import Enforcer, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enforcer.model import Gpu, GpuHealth
    from tests.vm.guest.conftest import Switch

_SOCKET = Path("/run/ringfence/enforcer.sock")
_DEBUG = Path("/sys/kernel/debug/amdgpu")
_DRIVER = Path("/sys/bus/pci/drivers/amdgpu")
_MANY_EVENTS = 10_000
"""At some hundred bytes each more than the buffer of a socket."""


@pytest.fixture(scope="module")
def listening(
    switch: Switch, tmp_path_factory: pytest.TempPathFactory, logs: Path
) -> Iterator[Enforcer]:
    """A running enforcer that hears the driver, which these GPUs' partitions would keep it from."""
    switch.end()
    running = Enforcer(tmp_path_factory.mktemp("state"), logs, more=["--kfd-events", "on"])
    running.give([])
    running.start()
    hears(running)
    yield running
    assert running.stop() == 0
    running.unload()


def hears(enforcer: Enforcer) -> None:
    lines = "listening to the KFD events of 2 GPUs", "listening to the kernel's events of devices"

    def listens() -> bool:
        text = enforcer.log.read_text()
        return all(line in text for line in lines)

    wait_for("the enforcer to listen", listens, 60)


@pytest.fixture
def failing(listening: Enforcer, gpu: Gpu) -> Iterator[Path]:
    """The knob that makes resets fail; they do."""
    knob = _DEBUG / gpu.bdf / "sim_reset_fails"
    knob.write_text("Y")
    yield knob
    if knob.exists():
        knob.write_text("N")
        line = f"GPU {gpu.bdf}: POST_RESET"
        before = listening.log.read_text().count(line)
        reset(gpu)
        # Or the next test takes this reset for its own.
        wait_for("the reset", lambda: listening.log.read_text().count(line) > before, 30)


def start_anew(enforcer: Enforcer) -> None:
    enforcer.log.write_text("")
    enforcer.start()


def reset(gpu: Gpu) -> None:
    (_DEBUG / gpu.bdf / "amdgpu_gpu_recover").read_text()


def fault_as(gpu: Gpu, name: bytes) -> None:
    """A fault of a task that calls itself so."""
    own = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    before = own.read_bytes().removesuffix(b"\n")
    own.write_bytes(name)
    try:
        (_DEBUG / gpu.bdf / "sim_vm_fault").write_text("32770")
    finally:
        own.write_bytes(before)


def health(gpu: Gpu) -> GpuHealth:
    with Client(_SOCKET) as client:
        return next(one for one in client.snapshot(60).health if one.bdf == gpu.bdf)


def become(what: str, gpu: Gpu, as_wanted: Callable[[GpuHealth], bool]) -> GpuHealth:
    def look() -> GpuHealth | None:
        found = health(gpu)
        return found if as_wanted(found) else None

    return wait_for(what, look, 30)


@pytest.mark.usefixtures("listening")
def test_a_reset_that_ends_leaves_a_healthy_gpu_and_its_time(gpu: Gpu) -> None:
    before = health(gpu)
    assert before.healthy
    reset(gpu)
    after = become("the reset", gpu, lambda one: one.last_reset not in (None, before.last_reset))
    become("the GPU to be healthy", gpu, lambda one: one.healthy)
    assert after.last_reset is not None
    assert after.last_reset > before.since


@pytest.mark.usefixtures("listening")
def test_a_fault_of_a_process_is_counted(gpu: Gpu, gpus: list[Gpu]) -> None:
    others = [health(one).vm_faults for one in gpus[1:]]
    before = health(gpu).vm_faults
    fault_as(gpu, b"python3")
    after = become("the fault", gpu, lambda one: one.vm_faults > before)
    assert (after.healthy, after.vm_faults, after.last_fault) == (
        True,
        before + 1,
        "python3[32770]",
    )
    assert [health(one).vm_faults for one in gpus[1:]] == others


def test_who_faults_begins_and_ends_no_reset_by_its_name(
    listening: Enforcer, gpu: Gpu, failing: Path
) -> None:
    before = health(gpu).vm_faults
    fault_as(gpu, b"a\n3 1 x")
    fault_as(gpu, b"after")
    after = become("the faults", gpu, lambda one: one.last_fault == "after[32770]")
    assert (after.healthy, after.vm_faults) == (True, before + 2)
    reset(gpu)
    become("the failed reset", gpu, lambda one: not one.healthy)
    fault_as(gpu, b"a\n4 1")
    fault_as(gpu, b"last")
    after = become("the faults", gpu, lambda one: one.last_fault == "last[32770]")
    assert after.reason == "being reset: user trigger"
    failing.write_text("N")
    reset(gpu)
    become("the GPU to be healthy again", gpu, lambda one: one.healthy)
    assert "\n3 1 x" not in listening.log.read_text()


def test_a_reset_that_fails_leaves_a_gpu_unhealthy_for_a_new_enforcer_too(
    listening: Enforcer, gpu: Gpu, gpus: list[Gpu], failing: Path
) -> None:
    reset(gpu)
    ill = become("the failed reset", gpu, lambda one: not one.healthy)
    assert ill.reason == "being reset: user trigger"
    assert all(health(other).healthy for other in gpus[1:])
    listening.kill()
    start_anew(listening)
    assert (health(gpu).reason, health(gpu).since) == (ill.reason, ill.since)
    # KFD is locked, so what could have been missed was not.
    with Client(_SOCKET) as client:
        assert "cannot open" in client.test_devices(timeout=30)[0].error
    time.sleep(15)
    assert not health(gpu).healthy
    failing.write_text("N")
    reset(gpu)
    become("the GPU to be healthy again", gpu, lambda one: one.healthy)
    hears(listening)


def test_an_end_of_a_reset_that_was_missed_is_found_out(
    listening: Enforcer, gpu: Gpu, failing: Path
) -> None:
    reset(gpu)
    become("the failed reset", gpu, lambda one: not one.healthy)
    listening.kill()
    failing.write_text("N")
    reset(gpu)
    start_anew(listening)
    become("the GPU to be healthy", gpu, lambda one: one.healthy)
    hears(listening)


@pytest.mark.dmem  # the event came with the same kernel as the region
def test_the_kernels_word_of_a_gpu_that_hung_is_heard(listening: Enforcer, gpu: Gpu) -> None:
    reset(gpu)
    line = f"GPU {gpu.bdf}: WEDGED=none"
    wait_for("the uevent", lambda: line in listening.log.read_text(), 30)


def test_more_events_than_the_kernel_keeps_end_no_listening(
    listening: Enforcer, gpus: list[Gpu]
) -> None:
    gpu = gpus[0]
    card = Path(f"/sys/class/drm/card{gpu.card}/uevent")
    listens = "listening to the kernel's events of devices"
    before = listening.log.read_text().count(listens)
    os.kill(listening.pid, signal.SIGSTOP)
    try:
        for _ in range(_MANY_EVENTS):
            card.write_text("change")
    finally:
        os.kill(listening.pid, signal.SIGCONT)
    wait_for("it to listen anew", lambda: listening.log.read_text().count(listens) > before, 120)
    assert "uevents were lost, listening anew" in listening.log.read_text()
    heard = listening.log.read_text().count(f"change drm {gpu.bdf}")
    card.write_text("change")
    line = f"change drm {gpu.bdf}"
    wait_for("the event", lambda: listening.log.read_text().count(line) > heard, 60)


@pytest.mark.usefixtures("listening")
def test_every_device_file_a_container_gets_can_be_tested(gpu: Gpu, gpus: list[Gpu]) -> None:
    with Client(_SOCKET) as client:
        kfd, *renders = client.test_devices(timeout=30)
        assert kfd.path == "/dev/kfd"
        assert [one.path for one in renders] == [f"/dev/dri/renderD{one.render}" for one in gpus]
        assert all(one.usable for one in (kfd, *renders))
        node = Path(f"/dev/dri/renderD{gpu.render}")
        aside = node.with_name("aside")
        node.rename(aside)
        try:
            _, missing = client.test_devices([gpu.bdf], timeout=30)
        finally:
            aside.rename(node)
        assert missing.error == "cannot open: No such file or directory"


@pytest.mark.usefixtures("listening")
def test_a_gpu_that_its_driver_lets_go_of_is_gone_until_it_is_bound_again(gpus: list[Gpu]) -> None:
    gpu = gpus[-1]
    before = instance(Path("/sys/bus/pci/devices") / gpu.bdf)
    (_DRIVER / "unbind").write_text(gpu.bdf)
    try:
        gone = become("it to be gone", gpu, lambda one: not one.healthy)
        assert gone.reason == "not there any more"
    finally:
        (_DRIVER / "bind").write_text(gpu.bdf)
    become("it to be back", gpu, lambda one: one.healthy)
    assert instance(Path("/sys/bus/pci/devices") / gpu.bdf) not in (None, before)
