# SPDX-License-Identifier: Apache-2.0
"""Every combination of the three layers {dmem, gate, hook}: who refuses, and at how many bytes.

Two tenants ask: unmodified ROCr, whose calls for VRAM a stand-in thunk leads to the node's KFD, and
the static client, of which no hook knows. ROCr alone: HIP takes half a minute to start here.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.api.client import Client
from enforcer.model import MIB, Layer
from enforcer.plan import headroom
from enforcer.slices import hook_directory
from tests.hook.container import HOOK, PROGRAMS, THUNK, Container
from tests.vm.guest import truth
from tests.vm.guest.node import slice_of
from tests.vm.guest.services import ledger, wait_for
from tests.vm.guest.test_enforcer_sources import series
from tests.vm.guest.test_limit import has_region
from tests.vm.guest.test_views import ringfence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.conftest import Switch
    from tests.vm.guest.node import Pods, Tenant

SLICE: Final = 2048 * MIB
CHUNK: Final = 64 * MIB
ASKED: Final = SLICE + 8 * CHUNK
"""What the ROCr program wants, in chunks: well above slice and headroom."""
RUNTIME: Final = 2 * CHUNK
"""More than ROCr takes for itself."""
_SOCKET: Final = Path("/run/ringfence/enforcer.sock")
ENTER: Final = 'echo $$ > "$1" && shift && exec "$@"'


def rocr_gets(
    one: Tenant, gpu: Gpu, place: Path, built: Path, *, hook: bool
) -> tuple[int, bool, str]:
    """Bytes that a ROCr program in the container had, whether the hook refused more, its errors."""
    container = rocr_container(one, gpu, place, built)
    if not hook:
        for name in ("LD_AUDIT", "HSA_TOOLS_LIB"):
            assert container.env.pop(name).startswith(str(HOOK))
    orders = [f"malloc={CHUNK // MIB}"] * (ASKED // CHUNK)
    result = container.run(*rocr(one, *orders), timeout=200)
    had = result.lines.count("malloc 0") * CHUNK
    # All others are refused as out of memory.
    assert result.lines.count("malloc 2") == (ASKED - had) // CHUNK, (result.out, result.err)
    # What KFD had for it goes by kernel threads, after the process.
    wait_for("its VRAM to be given back", lambda: truth.buffers(gpu.bdf) == 0, 60)
    return had, f"ringfence: GPU {gpu.bdf}: refused" in result.err, result.err


def rocr_container(one: Tenant, gpu: Gpu, place: Path, built: Path) -> Container:
    """What the plugin gives a container, its ledger apart; and a thunk that leads to KFD."""
    container = Container(place, built)
    container.slice_path.write_text(slice_file(one).read_text())
    bus, device, function = (int(part, 16) for part in re.split("[:.]", gpu.bdf)[1:])
    container.env |= {
        "THUNK_IOCTL": "1",
        "THUNK_LOCATION": f"{bus << 8 | device << 3 | function:x}",
        "BRIDGE_GPU": str(gpu.kfd_id),
        "BRIDGE_RENDER": f"/dev/dri/renderD{gpu.render}",
        "LD_PRELOAD": str(THUNK / "libbridge.so"),
    }
    return container


@contextmanager
def books(container: Container, one: Tenant) -> Iterator[None]:
    """Its ledger is the one that the enforcer reads, as the plugin mounts it."""
    subprocess.run(
        ["mount", "--bind", slice_file(one).parent / "ledger", container.ledger], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", container.ledger], check=True)


def rocr(one: Tenant, *orders: str) -> list[str | Path]:
    """A command that runs a ROCr program in the tenant's cgroup."""
    procs = one.container.path / "cgroup.procs"
    return ["/bin/sh", "-c", ENTER, "sh", procs, PROGRAMS / "hip-hsa", *orders]


def slice_file(one: Tenant) -> Path:
    return hook_directory(Path("/run/ringfence"), one.pod.uid, one.slice.container) / "slice"


def said(one: Tenant) -> dict[Layer, str] | None:
    """What the snapshot says of the kernel's layers, once it says the same of the container."""
    with Client(_SOCKET) as client:
        snapshot = client.snapshot(60)
    support = {state.layer: str(state) for state in (snapshot.support.gate, snapshot.support.dmem)}
    for row in snapshot.containers:
        if row.pod_uid == one.pod.uid and row.container == one.slice.container:
            states = {state.layer: state.on for state in row.layers if state.layer in support}
            if states == {layer: text == "on" for layer, text in support.items()}:
                return support
    return None


def expected(layers: str, *, region: bool) -> dict[Layer, str]:
    wanted = layers.split(",")
    gate = "on" if "gate" in wanted else "off: switched off"
    dmem = "on" if region else "off: no dmem region for this GPU"
    return {Layer.GATE: gate, Layer.DMEM: dmem if "dmem" in wanted else "off: switched off"}


@pytest.mark.hook
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layers", ["gate,dmem", "gate", "dmem", "none"])
def test_who_refuses_with_the_hook_and_without(
    switch: Switch, pods: Pods, gpu: Gpu, built: Path, tmp_path: Path, layers: str
) -> None:
    states = expected(layers, region=has_region(gpu))
    gate, dmem = (states[layer] == "on" for layer in (Layer.GATE, Layer.DMEM))
    enforcer = switch.run(layers)
    pod = pods.pod("matrix")
    pods.slices.append(slice_of(pod, "main", gpu, SLICE // MIB))
    enforcer.give(pods.slices)
    one = pods.start(pod, pods.slices[0])
    wait_for("the container's cgroup", one.container.path.exists)
    # The slice file says who refuses: the kernel if a layer of it has been read back.
    refuses = "refuse kernel\n" if gate or dmem else "refuse hook\n"
    wait_for(refuses, lambda: slice_file(one).exists() and refuses in slice_file(one).read_text())
    wait_for("the container in the snapshot", lambda: said(one) == states)
    most = SLICE if gate else SLICE + headroom(SLICE)

    for hook in (True, False):
        had, by_hook, errors = rocr_gets(one, gpu, tmp_path / str(hook), built, hook=hook)
        by_gate = gate and ledger(one.container.cgroup_id, gpu.bdf).refusals > 0
        print(f"{layers}, hook {hook}: ROCr had {had // MIB} MiB, {by_gate=} {by_hook=} {errors!r}")
        assert by_gate == gate
        assert by_hook == (hook and not gate and not dmem)
        if gate or dmem or hook:
            assert SLICE - RUNTIME <= had <= (most if gate or dmem else SLICE)
        else:
            assert had == ASKED

    one.client.open(gpu)
    if gate or dmem:
        answer = one.client.ask(f"fill kfd {gpu.kfd_id} {4 * MIB}")
        print(f"{layers}: the static client had {int(answer['bytes']) // MIB} MiB")
        assert answer["errno"] == "ENOMEM"
        assert SLICE <= int(answer["bytes"]) <= most
    else:
        one.client.kfd_alloc(gpu, ASKED)


@pytest.mark.hook
@pytest.mark.timeout(300)
def test_with_no_layer_at_all_everything_is_counted_all_the_same(
    switch: Switch, pods: Pods, gpu: Gpu, built: Path, tmp_path: Path
) -> None:
    """By KFD's sysfs, by fdinfo, and by what the hook in a ROCr program writes down."""
    enforcer = switch.run("none")
    pod = pods.pod("counted")
    pods.slices.append(slice_of(pod, "main", gpu, SLICE // MIB))
    enforcer.give(pods.slices)
    one = pods.start(pod, pods.slices[0])
    wait_for("its slice file", lambda: one.container.path.exists() and slice_file(one).exists())
    one.client.open(gpu)
    one.client.gem_create(3 * MIB)
    container = rocr_container(one, gpu, tmp_path / "rocr", built)
    orders = (f"malloc={CHUNK // MIB}", "wait")
    with (
        books(container, one),
        container.start(*rocr(one, *orders), stdin=subprocess.PIPE) as program,
    ):
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "malloc 0\n"

        def counts() -> tuple[float, float]:
            names = ("ringfence_vram_observed_bytes", "ringfence_vram_hook_bytes")
            observed, hook = (series(enforcer, name, one) or 0 for name in names)
            return observed, hook

        def agree() -> float | None:
            observed, hook = counts()
            fit = CHUNK <= hook < CHUNK + RUNTIME
            return hook if fit and 3 * MIB <= observed - hook < 3 * MIB + RUNTIME else None

        # One look reads the processes first, and what the hook wrote down a moment later.
        hook = wait_for("a look at what the hook wrote down", agree)
        table = ringfence(enforcer, "top", "--once")
        assert "gate off: switched off   dmem off: switched off" in table
        (row,) = (line for line in table.splitlines() if "/counted/" in line)
        assert row.split()[-1] == "none"
        text = ringfence(enforcer, "explain", "default/counted", status=3)
        assert f"by hook    {hook:.0f} bytes" in text
        program.communicate("\n", timeout=60)
    # What is left are the client's buffer and its page tables.
    wait_for("the end of the program", lambda: counts()[1] == 0 and counts()[0] < 4 * MIB)
    assert "ringfence_vram_requested_bytes{" not in (enforcer.metrics() or "")
