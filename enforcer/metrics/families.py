# SPDX-License-Identifier: Apache-2.0
"""Every metric there is: its name, labels and meaning, and what of a snapshot it shows. Pure.

``hami_`` names and labels are those of HAMi's monitor, so that its dashboards work; ``ringfence_``
has what they cannot say. An unknown value has no sample, and an idle container has zeros.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from enforcer.inventory import smi_uuid
from enforcer.model import Why
from enforcer.table import cards, cu_count, merged, spilled, used

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enforcer.model import Activity, ContainerUsage, Gpu, LayerState, Snapshot, Usage
    from enforcer.table import Card

    Sample = tuple[str, int | float]
    """Its labels as they are written, and its value."""

ENGINES = ("compute", "dec", "dma", "enc", "enc_1", "gfx", "jpeg", "vpe")
"""What amdgpu calls its engines in fdinfo (amdgpu_fdinfo.c); any other is told of as ``other``."""

_OTHER = "other"
_REASONS = frozenset(why.value for why in Why)
_HOST = ("device_index", "device_type", "device_uuid", "node")
_VGPU = ("container", "device_uuid", "namespace", "pod", "vdevice_index")
_ROW = ("container", "device", "namespace", "pod")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. ``kind`` is Prometheus's type."""

    name: str
    kind: str
    text: str
    """Its HELP line."""
    labels: tuple[str, ...]
    samples: Callable[[View], Iterator[Sample]]
    absent: str = ""
    """When there is no sample, for the page of metrics."""


class View:
    """A snapshot prepared for writing: what many families need is worked out once."""

    def __init__(self, snapshot: Snapshot, node: str, version: str) -> None:
        """``node`` is the Kubernetes node's name, the ``node`` label of the host's series."""
        self.snapshot = snapshot
        self.node = node
        self.version = version

    @cached_property
    def rows(self) -> list[tuple[str, ContainerUsage]]:
        """Containers, and with an empty ``container`` the pods they are in; each once."""
        return [
            (labels(_ROW, row.container, row.bdf, row.namespace, row.pod), row)
            for row in merged(self.snapshot.containers)
        ]

    @cached_property
    def vgpus(self) -> list[tuple[str, ContainerUsage]]:
        """The containers with HAMi's labels; ``vdevice_index`` counts a container's GPUs."""
        seen: Counter[tuple[str, str, str]] = Counter()
        found = []
        for _, row in self.rows:
            if row.container:
                who = (row.namespace, row.pod, row.container)
                uuid = self.uuids.get(row.bdf, "")
                values = (row.container, uuid, row.namespace, row.pod, str(seen[who]))
                seen[who] += 1
                found.append((labels(_VGPU, *values), row))
        return found

    @cached_property
    def uuids(self) -> dict[str, str]:
        return {gpu.bdf: _uuid(gpu) for gpu in reversed(self.snapshot.gpus)}

    @cached_property
    def cards(self) -> list[tuple[str, Card]]:
        """The GPUs that are there; partitions of one are one."""
        return [(labels(("device",), card.bdf), card) for card in cards(self.snapshot) if card.gpus]


def labels(names: tuple[str, ...], *values: str) -> str:
    """Label pairs as the exposition format has them, between the braces."""
    return _form(names) % tuple([value.translate(_ESCAPES) for value in values])


@cache
def _form(names: tuple[str, ...]) -> str:
    return ",".join([f'{name}="%s"' for name in names])


def _of_usage(name: str, text: str, value: Callable[[Usage], int | None], absent: str) -> Family:
    def samples(view: View) -> Iterator[Sample]:
        for names, row in view.rows:
            found = value(row.usage)
            if found is not None:
                yield names, found

    return Family(f"ringfence_vram_{name}_bytes", "gauge", text, _ROW, samples, absent)


def _of_row(
    name: str,
    text: str,
    value: Callable[[ContainerUsage], int | None],
    absent: str = "",
    kind: str = "gauge",
) -> Family:
    def samples(view: View) -> Iterator[Sample]:
        for names, row in view.rows:
            found = value(row)
            if found is not None:
                yield names, found

    return Family(name, kind, text, _ROW, samples, absent)


def _of_activity(
    name: str, kind: str, text: str, value: Callable[[Activity], float | None], absent: str = ""
) -> Family:
    def samples(view: View) -> Iterator[Sample]:
        for names, row in view.rows:
            if row.activity is not None and (found := value(row.activity)) is not None:
                yield names, found

    return Family(name, kind, text, _ROW, samples, absent or _NOT_YET)


def _of_load(name: str, text: str, field: str) -> Family:
    def samples(view: View) -> Iterator[Sample]:
        gpus = {gpu.bdf: gpu for gpu in reversed(view.snapshot.gpus)}
        for load in view.snapshot.loads:
            gpu, value = gpus.get(load.bdf), getattr(load, field)
            if gpu is not None and value is not None:
                index = "" if gpu.card is None else str(gpu.card)
                yield labels(_HOST, index, gpu.name, view.uuids[gpu.bdf], view.node), value

    return Family(name, "gauge", text, _HOST, samples, "the GPU does not report it")


def _of_card(name: str, text: str, value: Callable[[Card], int | None], absent: str = "") -> Family:
    def samples(view: View) -> Iterator[Sample]:
        for names, card in view.cards:
            if (found := value(card)) is not None:
                yield names, found

    return Family(name, "gauge", text, ("device",), samples, absent)


def _of_pass(name: str, text: str, value: Callable[[Snapshot], float]) -> Family:
    def samples(view: View) -> Iterator[Sample]:
        yield "", value(view.snapshot)

    return Family(name, "gauge", text, (), samples)


def _build(view: View) -> Iterator[Sample]:
    yield labels(("version",), view.version), 1


def _success(view: View) -> Iterator[Sample]:
    yield labels(("node",), view.node), int(not view.snapshot.problems)


def _hami_used(view: View) -> Iterator[Sample]:
    for names, row in view.vgpus:
        if (value := used(row)) is not None:
            yield names, value


def _hami_limit(view: View) -> Iterator[Sample]:
    for names, row in view.vgpus:
        if row.limit is not None:
            yield names, row.limit


def _incidents(view: View) -> Iterator[Sample]:
    """The most common reason is there from the start: a rate needs a first 0 to rise from."""
    counts = {
        (names, "refused_limit"): 0 for names, row in view.rows if row.usage.refusals is not None
    }
    for one in view.snapshot.incidents:
        names = labels(_ROW, one.container, one.bdf, one.namespace, one.pod)
        counts[names, one.reason] = counts.get((names, one.reason), 0) + one.count
    for (names, reason), count in counts.items():
        yield f"{names},{labels(('reason',), reason)}", count


def _last_incidents(view: View) -> Iterator[Sample]:
    last: dict[str, float] = {}
    for one in view.snapshot.incidents:
        names = labels(
            (*_ROW, "reason"), one.container, one.bdf, one.namespace, one.pod, one.reason
        )
        last[names] = max(last.get(names, one.time), one.time)
    yield from last.items()


def _layers(view: View) -> Iterator[Sample]:
    known: dict[LayerState, str] = {}
    for names, row in view.rows:
        for state in row.layers:
            if state not in known:
                known[state] = f",{_layer(state)}"
            yield names + known[state], int(state.on)


def _host_layers(view: View) -> Iterator[Sample]:
    for state in (view.snapshot.support.gate, view.snapshot.support.dmem):
        yield _layer(state), int(state.on)


def _ledger(view: View) -> Iterator[Sample]:
    yield labels(("source",), view.snapshot.support.ledger), 1


def _cu_slice(view: View) -> Iterator[Sample]:
    totals = {card.bdf: card.cu_count for _, card in view.cards}
    counts: dict[str | None, int | None] = {}
    for names, row in view.rows:
        if row.container:
            if row.cus not in counts:
                counts[row.cus] = cu_count(row)
            count = totals.get(row.bdf) if row.cus is None else counts[row.cus]
            if count is not None:
                yield names, count


def _compute_queues(view: View) -> Iterator[Sample]:
    masked, unmasked = (f",{labels(('masked',), one)}" for one in ("yes", "no"))
    for names, row in view.rows:
        queues, within = row.usage.queues, row.usage.queues_masked
        if queues is not None and within is not None:
            yield names + masked, within
            yield names + unmasked, max(0, queues - within)


def _engines(view: View) -> Iterator[Sample]:
    suffix = {name: f",{labels(('engine',), name)}" for name in (*ENGINES, _OTHER)}
    for names, row in view.rows:
        if row.activity is None:
            continue
        other = None
        for engine, seconds in row.activity.engines:
            if engine in ENGINES:
                yield names + suffix[engine], seconds
            else:
                other = (other or 0.0) + seconds
        if other is not None:
            yield names + suffix[_OTHER], other


def _info(view: View) -> Iterator[Sample]:
    names = ("device", "node", "device_uuid", "model")
    for _, card in view.cards:
        yield labels(names, card.bdf, view.node, view.uuids[card.bdf], card.name), 1


def _orphaned(view: View) -> Iterator[Sample]:
    for bdf, size in view.snapshot.orphaned:
        yield labels(("device",), bdf), size


def _healthy(view: View) -> Iterator[Sample]:
    for one in view.snapshot.health:
        yield labels(("device",), one.bdf), int(one.healthy)


def _faults(view: View) -> Iterator[Sample]:
    for one in view.snapshot.health:
        yield labels(("device",), one.bdf), one.vm_faults


def _resets(view: View) -> Iterator[Sample]:
    for one in view.snapshot.health:
        if one.last_reset is not None:
            yield labels(("device",), one.bdf), one.last_reset


def _events(view: View) -> Iterator[Sample]:
    for event, count in view.snapshot.counters:
        yield labels(("event",), event), count


def _map_entries(view: View) -> Iterator[Sample]:
    for name, entries, _ in view.snapshot.map_fill:
        yield labels(("map",), name), entries


def _map_room(view: View) -> Iterator[Sample]:
    for name, _, most in view.snapshot.map_fill:
        yield labels(("map",), name), most


def _layer(state: LayerState) -> str:
    """A reason from the closed list, whatever the state says."""
    reason = state.reason or ""
    if reason and reason not in _REASONS:
        reason = _OTHER
    return labels(("layer", "reason"), state.layer.value, reason)


def _uuid(gpu: Gpu) -> str:
    return smi_uuid(gpu.unique_id, gpu.device_id) or ""


_NO_LEDGER = "no BPF ledger on this node (`ringfence_ledger_info`)"
_NO_TYPES = f"{_NO_LEDGER}, or a driver without type information"
_NO_DMEM = "no dmem for this GPU"
_WHOLE = "the whole GPU"
_NOT_YET = "its processes were not looked at yet, which takes up to 5 s"
_NO_GATE = "no gate on this node"

FAMILIES: tuple[Family, ...] = (
    Family("ringfence_build_info", "gauge", "1; the version running.", ("version",), _build),
    Family(
        "hami_vgpumonitor_collect_success",
        "gauge",
        "1 if the last pass met no problem.",
        ("node",),
        _success,
    ),
    _of_load("hami_host_gpu_memory_used_bytes", "VRAM in use on the GPU.", "vram_used"),
    _of_load("hami_host_gpu_utilization_ratio", "GPU busy, 0 to 100.", "busy_percent"),
    _of_load("hami_host_gpu_temperature_celsius", "GPU temperature.", "temperature"),
    _of_load("hami_host_gpu_power_usage_watts", "GPU power draw.", "power"),
    Family(
        "hami_vgpu_memory_used_bytes",
        "gauge",
        "VRAM the container holds: what counts against its limit, else the best there is.",
        _VGPU,
        _hami_used,
        "no source of usage at all",
    ),
    Family(
        "hami_vgpu_memory_limit_bytes",
        "gauge",
        "VRAM the container may hold.",
        _VGPU,
        _hami_limit,
        _WHOLE,
    ),
    Family(
        "ringfence_gpu_info",
        "gauge",
        "1; the GPU's names.",
        ("device", "node", "device_uuid", "model"),
        _info,
    ),
    _of_card("ringfence_gpu_vram_bytes", "VRAM the GPU has.", lambda card: card.vram, "unknown"),
    _of_card(
        "ringfence_gpu_vram_booked_bytes",
        "VRAM promised to running containers.",
        lambda card: card.booked,
    ),
    _of_card("ringfence_gpu_compute_units", "CUs the GPU has.", lambda card: card.cu_count),
    _of_card("ringfence_gpu_slices", "Running containers on it.", lambda card: len(card.rows)),
    Family(
        "ringfence_gpu_vram_orphaned_bytes",
        "gauge",
        "VRAM charged to pods that are gone.",
        ("device",),
        _orphaned,
        _NO_LEDGER,
    ),
    Family(
        "ringfence_gpu_healthy",
        "gauge",
        "1 if the GPU is fit to be used; why not is on the node page.",
        ("device",),
        _healthy,
    ),
    Family(
        "ringfence_gpu_vm_faults_total",
        "counter",
        "Faults in address spaces of its processes, since the enforcer started.",
        ("device",),
        _faults,
    ),
    Family(
        "ringfence_gpu_last_reset_timestamp_seconds",
        "gauge",
        "End of its last reset, Unix time; what was in VRAM before may be lost.",
        ("device",),
        _resets,
        "none was heard of",
    ),
    _of_row("ringfence_vram_limit_bytes", "VRAM allowed.", lambda row: row.limit, _WHOLE),
    _of_usage(
        "requested", "VRAM asked for and not freed.", lambda usage: usage.requested, _NO_LEDGER
    ),
    _of_usage("resident", "Of that, VRAM held now.", lambda usage: usage.resident, _NO_LEDGER),
    _of_row(
        "ringfence_vram_spilled_bytes",
        "VRAM asked for that lies in system memory.",
        spilled,
        "neither a BPF ledger nor fdinfo tell",
    ),
    _of_usage("page_table", "VRAM in page tables.", lambda usage: usage.page_tables, _NO_LEDGER),
    _of_usage("peak", "The most ever asked for at once.", lambda usage: usage.peak, _NO_LEDGER),
    _of_usage(
        "svm", "VRAM asked for as shared virtual memory.", lambda usage: usage.svm, _NO_LEDGER
    ),
    _of_row(
        "ringfence_vram_svm_faulted_bytes_total",
        "Shared virtual memory that page faults of the GPU brought into VRAM, refused by nothing.",
        lambda row: row.usage.svm_faulted,
        _NO_TYPES,
        "counter",
    ),
    _of_usage(
        "orphaned",
        "VRAM charged to the pod that none of its live containers has.",
        lambda usage: usage.orphaned,
        f"{_NO_LEDGER}; containers",
    ),
    _of_usage("dmem_current", "VRAM charged by dmem.", lambda usage: usage.dmem_current, _NO_DMEM),
    _of_usage(
        "observed", "VRAM by KFD's and fdinfo's counts.", lambda usage: usage.observed, _NOT_YET
    ),
    _of_usage(
        "hook",
        "VRAM by what its processes tell the hook.",
        lambda usage: usage.hook,
        "the slice has no hook",
    ),
    _of_usage(
        "escaped",
        "VRAM it holds that dmem does not charge to it.",
        lambda usage: usage.escaped,
        "no ledger or no dmem",
    ),
    _of_usage(
        "drift",
        "VRAM the kernel counts for it beyond the ledger and 2 MiB.",
        lambda usage: usage.drift,
        _NO_LEDGER,
    ),
    _of_row(
        "ringfence_refusals_total",
        "Allocations refused by the gate; it survives the enforcer.",
        lambda row: row.usage.refusals,
        _NO_LEDGER,
        "counter",
    ),
    Family(
        "ringfence_incidents_total",
        "counter",
        "Calls the gate refused or answered with a kill, by reason, since the enforcer started.",
        (*_ROW, "reason"),
        _incidents,
        f"{_NO_LEDGER}; but for `refused_limit`, until the first one",
    ),
    Family(
        "ringfence_last_incident_timestamp_seconds",
        "gauge",
        "When the last of them was, Unix time.",
        (*_ROW, "reason"),
        _last_incidents,
        f"{_NO_LEDGER}; until the first one",
    ),
    Family(
        "ringfence_layer",
        "gauge",
        "1 if the layer holds the limit, else 0 and why.",
        (*_ROW, "layer", "reason"),
        _layers,
        f"{_WHOLE}; `hook`: pods, and wherever the kernel may hold",
    ),
    Family(
        "ringfence_cu_slice",
        "gauge",
        "CUs the container may use: its mask, or all of the GPU.",
        _ROW,
        _cu_slice,
        "pods: only containers have a mask",
    ),
    _of_activity(
        "ringfence_cu_occupancy",
        "gauge",
        "CUs kept busy at the last look, by KFD's count of waves.",
        lambda activity: activity.cu_occupancy,
        "hardware that does not count (RDNA)",
    ),
    _of_activity(
        "ringfence_queues", "gauge", "KFD queues it has.", lambda activity: activity.queues
    ),
    Family(
        "ringfence_compute_queues",
        "gauge",
        "Live compute queues, with a CU mask within the slice and without.",
        (*_ROW, "masked"),
        _compute_queues,
        _NO_TYPES,
    ),
    _of_row(
        "ringfence_wider_masks_total",
        "CU masks it asked for that went beyond its slice.",
        lambda row: row.usage.masks_wider,
        _NO_TYPES,
        "counter",
    ),
    _of_activity(
        "ringfence_evicted_seconds_total",
        "counter",
        "Sum over its processes of the time KFD had them evicted.",
        lambda activity: activity.evicted_seconds,
    ),
    _of_activity(
        "ringfence_sdma_seconds_total",
        "counter",
        "SDMA engines at work for it, by KFD's count.",
        lambda activity: activity.sdma_seconds,
    ),
    Family(
        "ringfence_engine_seconds_total",
        "counter",
        "Engines at work for its DRM clients, by fdinfo.",
        (*_ROW, "engine"),
        _engines,
        f"{_NOT_YET}; engines but gfx and compute: until first used",
    ),
    Family(
        "ringfence_host_layer",
        "gauge",
        "1 if the node has the layer, else 0 and why.",
        ("layer", "reason"),
        _host_layers,
    ),
    Family("ringfence_ledger_info", "gauge", "1; source of the accounting.", ("source",), _ledger),
    Family(
        "ringfence_events_total",
        "counter",
        "The gate's and the ledger's own counters.",
        ("event",),
        _events,
        _NO_GATE,
    ),
    Family(
        "ringfence_bpf_map_entries",
        "gauge",
        "Entries in a BPF map.",
        ("map",),
        _map_entries,
        _NO_GATE,
    ),
    Family(
        "ringfence_bpf_map_max_entries",
        "gauge",
        "Entries a BPF map can hold.",
        ("map",),
        _map_room,
        _NO_GATE,
    ),
    _of_pass(
        "ringfence_problems", "What the last pass could not do.", lambda one: len(one.problems)
    ),
    _of_pass("ringfence_pass_seconds", "Duration of the last pass.", lambda one: one.pass_seconds),
    _of_pass(
        "ringfence_pass_timestamp_seconds", "End of the last pass, Unix time.", lambda one: one.time
    ),
)


def render(view: View | None, version: str) -> str:
    """Everything in Prometheus's text format 0.0.4, a final newline included.

    None, before the first pass: only the version is known.
    """
    if view is None:
        return f"{_head(FAMILIES[0])}ringfence_build_info{{{labels(('version',), version)}}} 1\n"
    lines: list[str] = []
    for family in FAMILIES:
        lines.append(_head(family)[:-1])
        name = family.name
        lines += [
            f"{name}{{{names}}} {value}" if names else f"{name} {value}"
            for names, value in family.samples(view)
        ]
    lines.append("")
    return "\n".join(lines)


def _head(family: Family) -> str:
    return f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
