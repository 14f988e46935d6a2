# SPDX-License-Identifier: Apache-2.0
"""The last snapshot as metrics. A scrape reads memory, never the kernel.

``hami_`` names and labels are those of HAMi's monitor, so that its dashboards work; ``ringfence_``
has what they cannot say.
"""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from enforcer.inventory import smi_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

    from enforcer.model import ContainerUsage, Gpu, LayerState, Snapshot

_HOST = ("node", "device_index", "device_uuid", "device_type")
_VGPU = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_ROW = ("namespace", "pod", "container", "device")


class SnapshotCollector(Collector):
    """Everything the snapshot holds. Unknown values have no series; idle containers have 0."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], node: str) -> None:
        """``node`` is the Kubernetes node's name, the ``node`` label of the host's series."""
        self._snapshot = snapshot
        self._node = node
        self._version = version("ringfence")

    def collect(self) -> Iterator[Metric]:
        """All families, also those without series, so that a name never flickers."""
        yield InfoMetricFamily(
            "ringfence_build", "The version running.", value={"version": self._version}
        )
        snapshot = self._snapshot()
        if snapshot is None:
            return
        yield from self._host(snapshot)
        yield from _hami_containers(snapshot)
        yield from _containers(snapshot.containers)
        yield from self._pass(snapshot)

    def _host(self, snapshot: Snapshot) -> Iterator[Metric]:
        gpus = {gpu.bdf: gpu for gpu in reversed(snapshot.gpus)}
        families = (
            ("hami_host_gpu_memory_used_bytes", "VRAM in use on the GPU.", "vram_used"),
            ("hami_host_gpu_utilization_ratio", "GPU busy, 0 to 100.", "busy_percent"),
            ("hami_host_gpu_temperature_celsius", "GPU temperature.", "temperature"),
            ("hami_host_gpu_power_usage_watts", "GPU power draw.", "power"),
        )
        for name, text, field in families:
            family = GaugeMetricFamily(name, text, labels=_HOST)
            for load in snapshot.loads:
                gpu, value = gpus.get(load.bdf), getattr(load, field)
                if gpu is None or value is None:
                    continue
                index = "" if gpu.card is None else str(gpu.card)
                family.add_metric((self._node, index, _uuid(gpu), gpu.name), value)
            yield family

    def _pass(self, snapshot: Snapshot) -> Iterator[Metric]:
        success = GaugeMetricFamily(
            "hami_vgpumonitor_collect_success",
            "1 if the last pass met no problem.",
            labels=("node",),
        )
        success.add_metric((self._node,), float(not snapshot.problems))
        yield success
        for name, text, value in (
            ("ringfence_problems", "What the last pass could not do.", len(snapshot.problems)),
            ("ringfence_pass_seconds", "Duration of the last pass.", snapshot.pass_seconds),
            ("ringfence_pass_timestamp_seconds", "End of the last pass.", snapshot.time),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        support = snapshot.support
        host = GaugeMetricFamily(
            "ringfence_host_layer", "1 if the node has the layer.", labels=("layer", "reason")
        )
        for state in (support.gate, support.dmem):
            host.add_metric(_layer(state), float(state.on))
        yield host
        yield InfoMetricFamily(
            "ringfence_ledger", "Source of the accounting.", value={"source": support.ledger}
        )
        counters = CounterMetricFamily(
            "ringfence_events", "The gate's and the ledger's own counters.", labels=("event",)
        )
        for event, count in snapshot.counters:
            counters.add_metric((event,), count)
        yield counters
        used = GaugeMetricFamily(
            "ringfence_bpf_map_entries", "Entries in a BPF map.", labels=("map",)
        )
        room = GaugeMetricFamily(
            "ringfence_bpf_map_max_entries", "Entries a BPF map can hold.", labels=("map",)
        )
        for name, entries, most in snapshot.map_fill:
            used.add_metric((name,), entries)
            room.add_metric((name,), most)
        yield used
        yield room


def serve(address: str, collector: SnapshotCollector) -> Callable[[], None]:
    """Serve the collector at ``[HOST]:PORT`` from a thread of its own; call what it returns to end.

    Raises ValueError for an address of another form, OSError when it is taken.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"expected [HOST]:PORT, found {address!r}")
    own = CollectorRegistry(auto_describe=False)
    own.register(collector)
    server, thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry=own)  # noqa: S104

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _hami_containers(snapshot: Snapshot) -> Iterator[Metric]:
    """The containers' own rows; ``vdevice_index`` counts a container's GPUs."""
    used = GaugeMetricFamily(
        "hami_vgpu_memory_used_bytes",
        "VRAM the container holds: what counts against its limit, else the best there is.",
        labels=_VGPU,
    )
    limit = GaugeMetricFamily(
        "hami_vgpu_memory_limit_bytes", "VRAM the container may hold.", labels=_VGPU
    )
    uuids = {gpu.bdf: _uuid(gpu) for gpu in reversed(snapshot.gpus)}
    seen: Counter[str] = Counter()
    for row in snapshot.containers:
        if not row.container:
            continue
        index = str(seen[row.cgroup])
        seen[row.cgroup] += 1
        labels = (row.namespace, row.pod, row.container, index, uuids.get(row.bdf, ""))
        usage = row.usage
        sources = (usage.requested, usage.dmem_current, usage.observed, usage.hook)
        value = next((value for value in sources if value is not None), None)
        if value is not None:
            used.add_metric(labels, value)
        if row.limit is not None:
            limit.add_metric(labels, row.limit)
    yield used
    yield limit


def _containers(rows: Iterable[ContainerUsage]) -> Iterator[Metric]:
    """Containers, and with an empty ``container`` the pods they are in."""
    rows = tuple(rows)
    for name, text, values in (
        ("limit", "VRAM allowed.", [row.limit for row in rows]),
        ("requested", "VRAM asked for and not freed.", [row.usage.requested for row in rows]),
        ("resident", "Of that, VRAM held now.", [row.usage.resident for row in rows]),
        ("page_table", "VRAM in page tables.", [row.usage.page_tables for row in rows]),
        ("peak", "The most ever asked for at once.", [row.usage.peak for row in rows]),
        ("dmem_current", "VRAM charged by dmem.", [row.usage.dmem_current for row in rows]),
        ("observed", "VRAM by KFD's and fdinfo's counts.", [row.usage.observed for row in rows]),
        ("hook", "VRAM by what its processes tell the hook.", [row.usage.hook for row in rows]),
        (
            "escaped",
            "VRAM it holds that dmem does not charge to it.",
            [row.usage.escaped for row in rows],
        ),
        (
            "drift",
            "VRAM the kernel counts for it beyond the ledger and 2 MiB.",
            [row.usage.drift for row in rows],
        ),
    ):
        family = GaugeMetricFamily(f"ringfence_vram_{name}_bytes", text, labels=_ROW)
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                family.add_metric(_row(row), value)
        yield family
    refusals = CounterMetricFamily(
        "ringfence_refusals", "Allocations refused by the gate.", labels=_ROW
    )
    layers = GaugeMetricFamily(
        "ringfence_layer",
        "1 if the layer holds the limit, else 0 and why.",
        labels=(*_ROW, "layer", "reason"),
    )
    for row in rows:
        if row.usage.refusals is not None:
            refusals.add_metric(_row(row), row.usage.refusals)
        for state in row.layers:
            layers.add_metric((*_row(row), *_layer(state)), float(state.on))
    yield refusals
    yield layers


def _row(row: ContainerUsage) -> tuple[str, str, str, str]:
    return row.namespace, row.pod, row.container, row.bdf


def _layer(state: LayerState) -> tuple[str, str]:
    return state.layer.value, state.reason or ""


def _uuid(gpu: Gpu) -> str:
    return smi_uuid(gpu.unique_id, gpu.device_id) or ""
