# SPDX-License-Identifier: Apache-2.0
"""``ringfence explain NAMESPACE/POD``: what each container may hold, what holds it, and why not."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from enforcer.cli.node import add_options, look, place, read_slices
from enforcer.host import cgroups, procs
from enforcer.host.files import FileError
from enforcer.model import MIB, Layer, Why
from enforcer.printable import printable
from enforcer.table import cu_ids, spilled, used

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.cli.node import Place
    from enforcer.model import (
        ContainerUsage,
        Gpu,
        Incident,
        LayerState,
        Slice,
        Snapshot,
        Usage,
    )

ADVICE = {
    Why.SWITCHED_OFF: "the enforcer runs with --layers: set enforcer.layers to auto in the chart",
    Why.NOT_LOADED: "see the enforcer's log for why the gate did not load; `ringfence doctor` "
    "checks what it needs. It is tried again by itself, after half a minute to ten minutes",
    Why.NOT_POSSIBLE: "a kernel from 5.17 with CONFIG_DEBUG_INFO_BTF=y; on this one the hook alone "
    "can hold, where there is no dmem either",
    Why.NOT_PROVEN: "the kernel did not refuse the gate's own test call: report it with the "
    "enforcer's log; another security module may be in the way",
    Why.NO_LEDGER: "this driver can be followed neither by BTF nor by kprobes: use a driver with "
    "type information, or rely on dmem",
    Why.MAP_FULL: "more limited cgroups than the gate's map holds: fewer pods on this node",
    Why.NO_CGROUP2: "boot with systemd.unified_cgroup_hierarchy=1",
    Why.NO_REGION: "nothing to do while the gate is on: this kernel's amdgpu has no dmem (from "
    "6.15, where the distribution builds it in)",
    Why.UNREAD: "the enforcer's log names the file. Until it can be read, no container starts that "
    "the gate does not hold, as dmem might",
    Why.NO_CONTROLLER: "dmem could not be handed down to the pod's cgroup: see the enforcer's log",
    Why.BUSY: "processes live in a cgroup above the container, which keeps dmem from being handed "
    "down: move them into a child",
    Why.NOT_TAKEN: "the kernel took the value and kept the old one, as kernels up to 7.2 do while "
    "more than that is in use: what is in use is its limit meanwhile, and the value is written "
    "again in every pass",
    Why.DENIED: "the enforcer may not write there: it must run privileged, with /sys/fs/cgroup "
    "writable",
    Why.VANISHED: "the container ended",
    Why.NOT_IN_PLACE: "the limit read back is another one: the enforcer sets it in its next pass; "
    "if not, is the enforcer running?",
    Why.SYSTEM_MEMORY: "an APU that takes its memory from the machine's: only the hook can hold a "
    "slice of it; where more carve-out is set than the driver's GTT limit, a new kernel uses that",
    Why.NO_HOOK: "it started where there was no hook, as devicePlugin.failOpen allows: install the "
    "hook (hookDir in the chart) and make the pod anew",
    Why.HOOK_UNKNOWN: "its slice does not tell, as its checkpoint was lost or an older plugin made "
    "it: make the pod anew",
    Why.HOOK_PASSED: "a process of it goes without the hook, as its owner can make it: end the "
    "pod; who is not to be trusted needs a node whose kernel holds slices",
    Why.REFUSED: "see the enforcer's log for what the kernel said",
    Why.TOO_DEEP: "the gate finds a cgroup at most 16 levels below the root: a kubelet with a "
    "shorter --cgroup-root, or fewer nodes inside one another",
}
"""What an administrator can do about a layer that is off."""

_OURS = (
    "HSA_CU_MASK", "HSA_TOOLS_LIB", "LD_AUDIT", "GLIBC_TUNABLES", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "HIP_OVERSUBSCRIBE", "HSA_XNACK", "HSA_TOOLS_ROCPROFILER_V1_TOOLS",
)  # fmt: skip
_PREFIXES = ("HIP_DEVICE_", "RINGFENCE_", "LIBHIP_", "AMD_")


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container's first process has."""

    pid: int
    environment: dict[str, str]
    devices: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """0: told; 1: there is no such pod here; 3: told, and one of its slices is held by nothing."""
    parser = argparse.ArgumentParser(prog="ringfence explain", description=__doc__)
    parser.add_argument("pod", metavar="NAMESPACE/POD", type=_pod)
    parser.add_argument("--json", action="store_true", help="the facts alone, for programs")
    add_options(parser)
    options = parser.parse_args(argv)
    where = place(options)
    seen = look(where)
    slices, problems = read_slices(where)
    namespace, name = options.pod
    ours = [one for one in slices if (one.namespace, one.pod) == options.pod]
    rows = [row for row in seen.snapshot.containers if (row.namespace, row.pod) == options.pod]
    if not ours and not rows:
        print(printable(_unknown(options.pod, slices, problems)), file=sys.stderr)
        return 1
    inside = {row.cgroup: _inside(where, row.cgroup) for row in rows if row.container}
    if options.json:
        print(json.dumps(_facts(seen.snapshot, options.pod, ours, rows, inside), indent=1))
    else:
        print(printable(f"pod {namespace}/{name}, as seen by {seen.by}"))
        if seen.why:
            print(printable(f"  the enforcer was not asked: {seen.why}"))
        # Names and values in it are the tenant's, and must not move the reader's cursor.
        print("\n".join(map(printable, told(seen.snapshot, ours, rows, inside))))
        for problem in problems:
            print(printable(f"! {problem}"))
    return 3 if any(not held(row) for row in rows if row.container) else 0


def held(row: ContainerUsage) -> bool:
    """True where a layer the tenant cannot reach holds it, or there is nothing to hold."""
    kernel = any(state.on and state.layer is not Layer.HOOK for state in row.layers)
    return row.limit is None or kernel


def told(
    snapshot: Snapshot,
    slices: Sequence[Slice],
    rows: Sequence[ContainerUsage],
    inside: dict[str, Inside | None],
) -> Iterator[str]:
    """The pod in sentences, container by container."""
    gpus = {gpu.bdf: gpu for gpu in reversed(snapshot.gpus)}
    running = {row.container for row in rows}
    for one in slices:
        if one.container not in running:
            sizes = ", ".join(f"{_limit(share.vram_bytes)} of {share.bdf}" for share in one.shares)
            yield f"container {one.container} ({one.kind.value}): not running; slice {sizes}"
            yield f"  given {one.created}, as kubelet's {', '.join(one.device_ids) or 'nothing'}"
    by_name = {one.container: one for one in slices}
    names = sorted({row.container for row in rows}, key=lambda name: (not name, name))
    for name in names:
        own = [row for row in rows if row.container == name]
        if name:
            yield f"container {name}"
            if (given := by_name.get(name)) is not None:
                devices = ", ".join(given.device_ids) or "nothing"
                yield f"  slice given {given.created}, as kubelet's {devices}"
        else:
            yield "the pod as a whole"
        for row in own:
            yield from _row(row, gpus.get(row.bdf), _refused(snapshot, row))
            yield from _ailing(snapshot, row.bdf)
        for path in sorted({row.cgroup for row in own}):
            yield from _environment(inside.get(path)) if name else ()


def _row(row: ContainerUsage, gpu: Gpu | None, refused: Sequence[Incident]) -> Iterator[str]:
    yield f"  {row.bdf} {'(not there now)' if gpu is None else gpu.name}"
    yield f"    {_verdict(row)}"
    yield f"    may hold   {_limit(row.limit)}; compute units: {_cus(row, gpu)}"
    for state in row.layers:
        yield f"    {state.layer.value:<10} {state}"
        if not state.on and (advice := _advice(state)):
            yield f"    {'':<10} -> {advice}"
    yield from (f"    {name:<10} {value}" for name, value in _counts(row))
    usage = row.usage
    if usage.drift:
        yield (
            f"    ! the kernel counts {usage.drift} bytes more than the ledger: the gate cannot "
            "hold what is not in its books; report it"
        )
    if usage.escaped:
        yield f"    ! dmem does not charge {usage.escaped} bytes that it holds: only the gate does"
    if usage.refusals:
        yield f"    refused    {usage.refusals} times"
    for one in refused:
        clock = time.strftime("%H:%M:%S", time.gmtime(one.time))
        yield f"    {one.reason} ({one.count} times), last at {clock} UTC: {one.text}"
        if one.reason == "refused_limit":
            yield "    -> ask for more amd.com/gpumem, or have the program use less"


def _ailing(snapshot: Snapshot, bdf: str) -> Iterator[str]:
    for one in snapshot.health:
        if one.bdf == bdf and not one.healthy:
            yield f"    ! the GPU is unhealthy: {one.reason}"


def _verdict(row: ContainerUsage) -> str:
    if row.limit is None:
        return "is not limited: it has the whole GPU, and is counted only"
    on = [state.layer.value for state in row.layers if state.on]
    if held(row):
        return f"is held to its slice by {' and '.join(on)}"
    if on:
        return "is NOT held by the kernel, which cannot: the hook alone does, unless shaken off"
    return "is NOT held: no layer of the kernel holds its limit"


def _counts(row: ContainerUsage) -> Iterator[tuple[str, str]]:
    usage = row.usage
    yield from _by_ledger(usage)
    for name, value in (
        ("by dmem", usage.dmem_current),
        ("by KFD", usage.kfd),
        ("by fdinfo", usage.drm),
        ("by hook", usage.hook),
    ):
        if value is not None:
            yield name, f"{value} bytes"
    if (outside := spilled(row)) is not None:
        yield "spilled", f"{outside} bytes lie in system memory"
    if used(row) is None:
        yield "used", "unknown: no source tells"
    activity = row.activity
    if activity is not None:
        parts = [f"{activity.queues} queues"]
        if activity.cu_occupancy is not None:
            parts.append(f"{activity.cu_occupancy} CUs busy")
        parts += [f"{name} {seconds:.1f} s" for name, seconds in activity.engines if seconds]
        if activity.evicted_seconds:
            parts.append(f"evicted {activity.evicted_seconds:.1f} s")
        yield "does", ", ".join(parts)


def _by_ledger(usage: Usage) -> Iterator[tuple[str, str]]:
    if usage.requested is not None:
        yield (
            "by ledger",
            f"{usage.requested} bytes asked for, {usage.resident} of them in VRAM, "
            f"{usage.page_tables} page tables, {usage.peak} at most",
        )
    if usage.svm or usage.svm_faulted:
        brought = "an unknown number of" if usage.svm_faulted is None else usage.svm_faulted
        yield (
            "of it SVM",
            f"{usage.svm} bytes of shared virtual memory; page faults of the GPU have brought in "
            f"{brought} bytes so far, which nothing refuses",
        )
    if usage.orphaned:
        yield (
            "orphaned",
            f"{usage.orphaned} bytes charged for containers that are gone: somebody keeps what "
            "they handed on",
        )


def _advice(state: LayerState) -> str:
    try:
        return ADVICE[Why(state.reason or "")]
    except ValueError:
        return ""


def _environment(found: Inside | None) -> Iterator[str]:
    if found is None:
        yield "  no process of it could be looked into"
        return
    yield f"  process {found.pid} has devices {' '.join(found.devices) or 'none'}"
    for name, value in sorted(found.environment.items()):
        yield f"    {name}={value}"
    if not found.environment:
        yield "    and nothing of Ringfence's in its environment"


def _inside(where: Place, path: str) -> Inside | None:
    try:
        pids, _ = procs.pids(cgroups.cgroup2_root(where.roots.cgroup) / path)
    except cgroups.NoCgroup2Error:
        return None
    for pid in sorted(pids):
        try:
            environment = procs.environment(where.roots.proc, pid)
        except FileError:
            continue
        ours = {
            name: value
            for name, value in environment.items()
            if name in _OURS or name.startswith(_PREFIXES)
        }
        return Inside(pid, ours, procs.gpu_devices(where.roots.proc, pid))
    return None


def _refused(snapshot: Snapshot, row: ContainerUsage) -> list[Incident]:
    return [
        one
        for one in snapshot.incidents
        if (one.pod_uid, one.container) == (row.pod_uid, row.container) and one.bdf in (row.bdf, "")
    ]


def _limit(size: int | None) -> str:
    if size is None:
        return "the whole GPU"
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size} bytes"


def _cus(row: ContainerUsage, gpu: Gpu | None) -> str:
    if row.cus is None:
        return "all" if row.container else "as its containers"
    of = "" if gpu is None else f" of {gpu.cu_count}"
    try:
        return f"{row.cus} ({len(cu_ids(row.cus))}{of})"
    except ValueError:
        return row.cus


def _facts(
    snapshot: Snapshot,
    pod: tuple[str, str],
    slices: Sequence[Slice],
    rows: Sequence[ContainerUsage],
    inside: dict[str, Inside | None],
) -> dict[str, object]:
    return {
        "namespace": pod[0],
        "pod": pod[1],
        "slices": [asdict(one) for one in slices],
        "containers": [
            {
                **asdict(row),
                "held": held(row),
                "process": None if (found := inside.get(row.cgroup)) is None else asdict(found),
                "advice": [text for state in row.layers if (text := _advice(state))],
            }
            for row in rows
        ],
        "incidents": [asdict(one) for one in snapshot.incidents if (one.namespace, one.pod) == pod],
    }


def _unknown(pod: tuple[str, str], slices: Sequence[Slice], problems: Sequence[str]) -> str:
    known = sorted({f"{one.namespace}/{one.pod}" for one in slices})
    here = f"pods with a slice here: {', '.join(known)}" if known else "no pod has a slice here"
    cause = "; ".join(problems)
    return (
        f"ringfence explain: pod {pod[0]}/{pod[1]} has no slice on this node; {here}"
        + (f"; {cause}" if cause else "")
        + ". Is it on another node, or did it ask for no amd.com/gpu?"
    )


def _pod(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"expected NAMESPACE/POD, found {text!r}")
    return namespace, name
