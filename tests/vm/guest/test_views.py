# SPDX-License-Identifier: Apache-2.0
"""Everything that shows the node shows the same, and what the kernel counts, to the byte."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enforcer.host import dmem, drm, kfd
from enforcer.model import MIB
from tests.vm.guest.services import CGROUP, dmem_current, ledger, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods, Tenant
    from tests.vm.guest.services import Enforcer

_HAS_DMEM = any(name.startswith("drm/") for name in dmem.capacity(CGROUP))
PAGE = 4096


def ringfence(enforcer: Enforcer, *argv: str, status: int = 0) -> str:
    """What a command prints."""
    code = "import sys; from enforcer.cli import main; sys.exit(main())"
    options = [] if argv[0] == "trace" else ["--state-dir", str(enforcer.state)]
    done = subprocess.run(
        [sys.executable, "-c", code, *argv, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def page(enforcer: Enforcer) -> str:
    host = enforcer.metrics_url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", "/")
    try:
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.fixture
def three(enforcer: Enforcer, pods: Pods, gpus: list[Gpu]) -> list[tuple[Tenant, Gpu, int]]:
    """Three containers on two GPUs with a prime number of pages each, by KFD and by GEM."""
    made = []
    for gpu, pages, mib in ((gpus[0], 4099, 64), (gpus[0], 8209, 128), (gpus[1], 12289, 96)):
        one = tenant(pods, enforcer, gpu, mib)
        one.client.kfd_alloc(gpu, (pages - 257) * PAGE)
        one.client.gem_create(257 * PAGE)
        assert one.client.refused(f"kfd-alloc {gpu.kfd_id} {mib * MIB}") == "ENOMEM"
        made.append((one, gpu, pages * PAGE))
    return made


def truth(one: Tenant, gpu: Gpu) -> dict[str, int | None]:
    """What the kernel itself counts."""
    path = one.container.path
    row = ledger(path.stat().st_ino, gpu.bdf)
    pids = [int(word) for word in (path / "cgroup.procs").read_text().split()]
    clients, _ = drm.clients(Path("/proc"), pids)
    by_drm = sum(
        client.requested if client.requested is not None else client.total or 0
        for client in clients
        if client.bdf == gpu.bdf
    )
    return {
        "requested": row.requested,
        "resident": row.resident,
        "page_tables": row.page_tables,
        "peak": row.peak,
        "refusals": row.refusals,
        "dmem_current": dmem_current(path, gpu.bdf),
        "kfd": sum(kfd.process_vram(Path("/sys"), pid).get(gpu.kfd_id, 0) for pid in pids),
        "drm": by_drm,
    }


def by_metrics(text: str, one: Tenant, gpu: Gpu) -> dict[str, int | None]:
    def value(name: str) -> int | None:
        labels = f'container="main",device="{gpu.bdf}",namespace="default",pod="{one.pod.name}"'
        found = re.findall(rf"^ringfence_{name}{{{re.escape(labels)}}} (\S+)$", text, re.MULTILINE)
        assert len(found) <= 1
        return int(found[0]) if found else None

    return {
        "requested": value("vram_requested_bytes"),
        "resident": value("vram_resident_bytes"),
        "page_tables": value("vram_page_table_bytes"),
        "peak": value("vram_peak_bytes"),
        "refusals": value("refusals_total"),
        "dmem_current": value("vram_dmem_current_bytes"),
    }


def of(rows: list[dict[str, Any]], one: Tenant, gpu: Gpu) -> dict[str, Any]:
    (row,) = [
        row
        for row in rows
        if (row["pod"], row["container"], row["bdf"]) == (one.pod.name, "main", gpu.bdf)
    ]
    usage: dict[str, Any] = row["usage"]
    return usage


def test_every_view_agrees_with_the_kernel_to_the_byte(
    enforcer: Enforcer, three: list[tuple[Tenant, Gpu, int]], logs: Path
) -> None:
    expected = [(one, gpu, truth(one, gpu)) for one, gpu, _ in three]
    for (_, _, size), (_, _, counts) in zip(three, expected, strict=True):
        assert (counts["requested"], counts["refusals"]) == (size, 1)
        if _HAS_DMEM:
            assert counts["dmem_current"] == (counts["resident"] or 0) + (
                counts["page_tables"] or 0
            )

    def looked_at() -> bool:
        rows = json.loads(ringfence(enforcer, "top", "--json"))["containers"]
        return all(
            of(rows, one, gpu) | counts == of(rows, one, gpu) for one, gpu, counts in expected
        )

    wait_for("a quiet point that top shows", looked_at, 240)
    metrics, html = enforcer.metrics() or "", page(enforcer)
    (logs / "page.html").write_text(html)  # for people to look at
    for one, gpu, counts in expected:
        shown = by_metrics(metrics, one, gpu)
        assert shown == {name: counts[name] for name in shown}
        used = rf'^hami_vgpu_memory_used_bytes{{.*pod="{one.pod.name}".*}} {counts["requested"]}$'
        assert re.search(used, metrics, re.MULTILINE)
        row = html[html.index(f"<b>{one.pod.name}</b>") :].partition("</tr>")[0]
        spilled = (counts["requested"] or 0) - (counts["resident"] or 0)
        for label, value in (
            ("Held", counts["requested"]), ("Spilled", spilled), ("Peak", counts["peak"]),
        ):  # fmt: skip
            assert f'data-label="{label}" title="{value} bytes"' in row
        assert f'data-label="Refused">{counts["refusals"]}<' in row
        told = json.loads(ringfence(enforcer, "explain", f"default/{one.pod.name}", "--json"))
        assert of(told["containers"], one, gpu) | counts == of(told["containers"], one, gpu)
        text = ringfence(enforcer, "explain", f"default/{one.pod.name}")
        assert f"by ledger  {counts['requested']} bytes asked for, {counts['resident']} of" in text
        assert f"by KFD     {counts['kfd']} bytes" in text
        assert "is held to its slice by gate" in text
        assert re.search(rf"process \d+ has devices /dev/kfd.*/dev/dri/renderD{gpu.render}", text)
    lines = ringfence(enforcer, "top", "--once").splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:1] for line in lines if "/pod-" in line] == ["A", "B", "A"]


def test_what_a_container_does_on_its_gpu_is_shown(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    queue = one.client.ask(f"queue-create {gpu.kfd_id}")["queue"]
    one.client.ask(f"cu-mask {queue} 0xffffffff 0xff")
    buffer = one.client.gem_create(4096)
    for _ in range(7):
        one.client.ask(f"cs {buffer}")

    def value(name: str, engine: str = "") -> float | None:
        labels = f'container="main",device="{gpu.bdf}",namespace="default",pod="{one.pod.name}"'
        labels += f',engine="{engine}"' if engine else ""
        text = enforcer.metrics() or ""
        found = re.search(rf"^ringfence_{name}{{{re.escape(labels)}}} (\S+)$", text, re.MULTILINE)
        return None if found is None else float(found[1])

    # The simulated GPU keeps the CUs of a queue busy, and takes 1 ms for each submission.
    wait_for("its compute units at work", lambda: value("cu_occupancy") == 40)
    wait_for("its engine time", lambda: value("engine_seconds_total", "gfx") == 0.007)
    assert value("engine_seconds_total", "compute") == 0
    assert value("queues") == 1
    assert value("sdma_seconds_total") == value("evicted_seconds_total") == 0
    assert "1 queues, 40 CUs busy" in ringfence(enforcer, "explain", f"default/{one.pod.name}")
    (row,) = (
        line
        for line in ringfence(enforcer, "top", "--once").splitlines()
        if f"/{one.pod.name}/" in line
    )
    assert row.split()[-3] == "40"
    one.client.ask(f"queue-destroy {queue}")
    wait_for("its compute units at rest", lambda: value("cu_occupancy") == 0)
    assert value("engine_seconds_total", "gfx") == 0.007


def test_without_an_enforcer_top_and_explain_go_on(
    enforcer: Enforcer, three: list[tuple[Tenant, Gpu, int]]
) -> None:
    enforcer.kill()
    Path("/run/ringfence/enforcer.sock").unlink(missing_ok=True)
    told = json.loads(ringfence(enforcer, "top", "--json"))
    assert told["by"] == "this command"
    for one, gpu, _ in three:
        counts = truth(one, gpu)
        assert of(told["containers"], one, gpu) | counts == of(told["containers"], one, gpu)
    text = ringfence(enforcer, "explain", f"default/{three[0][0].pod.name}")
    assert "the enforcer was not asked: no socket" in text
    assert "gate       on" in text
    assert ("dmem       on" in text) == _HAS_DMEM


def test_the_doctor_knows_the_node_it_is_on(enforcer: Enforcer, tmp_path: Path) -> None:
    findings = json.loads(
        ringfence(
            enforcer, "doctor", "--json", "--device-plugins-dir", str(tmp_path / "none"), status=1
        )
    )
    states = {one["name"]: one["state"] for one in findings}
    problems = {name for name, state in states.items() if state == "problem"}
    assert problems <= {"kubelet", "runtime"}
    assert states["kernel BTF"] == states["amdgpu BTF"] == states["GPUs"] == "ok"
    assert states["layer gate"] == states["bpffs"] == states["enforcer"] == "ok"
    assert states["dmem"] == states["layer dmem"] == ("ok" if _HAS_DMEM else "note")
    assert os.uname().release in next(one["found"] for one in findings if one["name"] == "kernel")
