# SPDX-License-Identifier: Apache-2.0
"""Between the model and the messages of the local API, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from enforcer.api import enforcer_pb2 as pb
from enforcer.model import (
    Activity,
    ContainerUsage,
    Gpu,
    GpuHealth,
    GpuLoad,
    HostSupport,
    Incident,
    Layer,
    LayerState,
    Protection,
    Snapshot,
    Usage,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

_Value = TypeVar("_Value")


def layer_to_pb(state: LayerState) -> pb.LayerState:
    return pb.LayerState(layer=state.layer.value, on=state.on, reason=state.reason or "")


def layer_from_pb(message: pb.LayerState) -> LayerState:
    """Raises ValueError for a layer this version does not know."""
    return LayerState(Layer(message.layer), None if message.on else message.reason)


def protection_to_pb(protection: Protection, *, whole: bool) -> pb.Protection:
    """``whole``: the share is a whole GPU, accounted and not limited."""
    return pb.Protection(
        bdf=protection.bdf,
        cgroup=protection.path,
        layers=[layer_to_pb(state) for state in protection.layers],
        held=protection.held,
        whole=whole,
    )


def protection_from_pb(message: pb.Protection) -> tuple[Protection, bool]:
    """The protection, and whether its share is a whole GPU."""
    layers = tuple(layer_from_pb(state) for state in message.layers)
    return Protection(message.cgroup, message.bdf, layers), message.whole


def support_to_pb(support: HostSupport) -> pb.HostSupport:
    return pb.HostSupport(
        layers=[layer_to_pb(support.gate), layer_to_pb(support.dmem)],
        ledger=support.ledger,
        dmem_regions=dict(support.dmem_regions),
    )


def support_from_pb(message: pb.HostSupport) -> HostSupport:
    """Raises ValueError if the gate's or dmem's state is missing."""
    layers = {state.layer: state for state in map(layer_from_pb, message.layers)}
    if not layers.keys() >= {Layer.GATE, Layer.DMEM}:
        raise ValueError(f"host support: expected the layers gate and dmem, found {sorted(layers)}")
    return HostSupport(
        gate=layers[Layer.GATE],
        dmem=layers[Layer.DMEM],
        ledger=message.ledger,
        dmem_regions=tuple(sorted(message.dmem_regions.items())),
    )


def gpu_to_pb(gpu: Gpu) -> pb.Gpu:
    return pb.Gpu(
        bdf=gpu.bdf,
        kfd_id=gpu.kfd_id,
        card=gpu.card,
        render=gpu.render,
        name=gpu.name,
        vram_bytes=gpu.vram_bytes,
        cu_count=gpu.cu_count,
        gfx_version=gpu.gfx_version,
        device_id=gpu.device_id,
        unique_id=gpu.unique_id,
        numa_node=gpu.numa_node,
        compute_queues=gpu.compute_queues,
        xcc_count=gpu.xcc_count,
        xgmi_peers=gpu.xgmi_peers,
        compute_partition=gpu.compute_partition,
        memory_partition=gpu.memory_partition,
        partition=gpu.partition,
        compute_partitions=gpu.compute_partitions,
        memory_partitions=gpu.memory_partitions,
        system_memory=gpu.system_memory,
    )


def gpu_from_pb(message: pb.Gpu) -> Gpu:
    return Gpu(
        bdf=message.bdf,
        kfd_id=message.kfd_id,
        card=_known(message, "card", message.card),
        render=message.render,
        name=message.name,
        vram_bytes=_known(message, "vram_bytes", message.vram_bytes),
        cu_count=message.cu_count,
        gfx_version=message.gfx_version,
        device_id=_known(message, "device_id", message.device_id),
        unique_id=_known(message, "unique_id", message.unique_id),
        numa_node=_known(message, "numa_node", message.numa_node),
        compute_queues=_known(message, "compute_queues", message.compute_queues),
        xcc_count=_known(message, "xcc_count", message.xcc_count),
        xgmi_peers=tuple(message.xgmi_peers),
        compute_partition=_known(message, "compute_partition", message.compute_partition),
        memory_partition=_known(message, "memory_partition", message.memory_partition),
        partition=_known(message, "partition", message.partition),
        compute_partitions=tuple(message.compute_partitions),
        memory_partitions=tuple(message.memory_partitions),
        system_memory=message.system_memory,
    )


def usage_to_pb(row: ContainerUsage) -> pb.ContainerUsage:
    usage = row.usage
    return pb.ContainerUsage(
        namespace=row.namespace,
        pod=row.pod,
        pod_uid=row.pod_uid,
        container=row.container,
        cgroup=row.cgroup,
        bdf=row.bdf,
        limit_bytes=row.limit,
        usage=pb.Usage(
            requested=usage.requested,
            resident=usage.resident,
            page_tables=usage.page_tables,
            peak=usage.peak,
            refusals=usage.refusals,
            dmem_current=usage.dmem_current,
            hook=usage.hook,
            kfd=usage.kfd,
            drm=usage.drm,
            observed=usage.observed,
            escaped=usage.escaped,
            drift=usage.drift,
            queues=usage.queues,
            queues_masked=usage.queues_masked,
            masks_wider=usage.masks_wider,
            svm=usage.svm,
            svm_faulted=usage.svm_faulted,
            orphaned=usage.orphaned,
        ),
        layers=[layer_to_pb(state) for state in row.layers],
        cus=row.cus,
        activity=None if row.activity is None else activity_to_pb(row.activity),
    )


def usage_from_pb(message: pb.ContainerUsage) -> ContainerUsage:
    usage = message.usage
    return ContainerUsage(
        namespace=message.namespace,
        pod=message.pod,
        pod_uid=message.pod_uid,
        container=message.container,
        cgroup=message.cgroup,
        bdf=message.bdf,
        limit=_known(message, "limit_bytes", message.limit_bytes),
        usage=Usage(
            requested=_known(usage, "requested", usage.requested),
            resident=_known(usage, "resident", usage.resident),
            page_tables=_known(usage, "page_tables", usage.page_tables),
            peak=_known(usage, "peak", usage.peak),
            refusals=_known(usage, "refusals", usage.refusals),
            dmem_current=_known(usage, "dmem_current", usage.dmem_current),
            hook=_known(usage, "hook", usage.hook),
            kfd=_known(usage, "kfd", usage.kfd),
            drm=_known(usage, "drm", usage.drm),
            observed=_known(usage, "observed", usage.observed),
            escaped=_known(usage, "escaped", usage.escaped),
            drift=_known(usage, "drift", usage.drift),
            queues=_known(usage, "queues", usage.queues),
            queues_masked=_known(usage, "queues_masked", usage.queues_masked),
            masks_wider=_known(usage, "masks_wider", usage.masks_wider),
            svm=_known(usage, "svm", usage.svm),
            svm_faulted=_known(usage, "svm_faulted", usage.svm_faulted),
            orphaned=_known(usage, "orphaned", usage.orphaned),
        ),
        layers=tuple(layer_from_pb(state) for state in message.layers),
        cus=_known(message, "cus", message.cus),
        activity=activity_from_pb(message.activity) if message.HasField("activity") else None,
    )


def activity_to_pb(activity: Activity) -> pb.Activity:
    return pb.Activity(
        cu_occupancy=activity.cu_occupancy,
        queues=activity.queues,
        evicted_seconds=activity.evicted_seconds,
        sdma_seconds=activity.sdma_seconds,
        engines=dict(activity.engines),
        evicted_bytes=activity.evicted_bytes,
    )


def activity_from_pb(message: pb.Activity) -> Activity:
    return Activity(
        cu_occupancy=_known(message, "cu_occupancy", message.cu_occupancy),
        queues=_known(message, "queues", message.queues),
        evicted_seconds=_known(message, "evicted_seconds", message.evicted_seconds),
        sdma_seconds=_known(message, "sdma_seconds", message.sdma_seconds),
        engines=tuple(sorted(message.engines.items())),
        evicted_bytes=_known(message, "evicted_bytes", message.evicted_bytes),
    )


def load_to_pb(load: GpuLoad) -> pb.GpuLoad:
    return pb.GpuLoad(
        bdf=load.bdf,
        vram_used=load.vram_used,
        busy_percent=load.busy_percent,
        temperature=load.temperature,
        power=load.power,
    )


def load_from_pb(message: pb.GpuLoad) -> GpuLoad:
    return GpuLoad(
        bdf=message.bdf,
        vram_used=_known(message, "vram_used", message.vram_used),
        busy_percent=_known(message, "busy_percent", message.busy_percent),
        temperature=_known(message, "temperature", message.temperature),
        power=_known(message, "power", message.power),
    )


def incident_to_pb(one: Incident) -> pb.Incident:
    return pb.Incident(
        time=one.time,
        namespace=one.namespace,
        pod=one.pod,
        pod_uid=one.pod_uid,
        container=one.container,
        bdf=one.bdf,
        reason=one.reason,
        count=one.count,
        asked=one.asked,
        used=one.used,
        limit=one.limit,
        text=one.text,
    )


def incident_from_pb(message: pb.Incident) -> Incident:
    return Incident(
        time=message.time,
        namespace=message.namespace,
        pod=message.pod,
        pod_uid=message.pod_uid,
        container=message.container,
        bdf=message.bdf,
        reason=message.reason,
        count=message.count,
        asked=message.asked,
        used=message.used,
        limit=_known(message, "limit", message.limit),
        text=message.text,
    )


def health_to_pb(health: GpuHealth) -> pb.GpuHealth:
    return pb.GpuHealth(
        bdf=health.bdf,
        healthy=health.healthy,
        reason=health.reason,
        since=health.since,
        last_reset=health.last_reset,
        vm_faults=health.vm_faults,
        last_fault=health.last_fault,
    )


def health_from_pb(message: pb.GpuHealth) -> GpuHealth:
    return GpuHealth(
        bdf=message.bdf,
        healthy=message.healthy,
        reason=message.reason,
        since=message.since,
        last_reset=_known(message, "last_reset", message.last_reset),
        vm_faults=message.vm_faults,
        last_fault=message.last_fault,
    )


def snapshot_to_pb(snapshot: Snapshot) -> pb.Snapshot:
    return pb.Snapshot(
        time=snapshot.time,
        support=support_to_pb(snapshot.support),
        gpus=[gpu_to_pb(gpu) for gpu in snapshot.gpus],
        containers=[usage_to_pb(row) for row in snapshot.containers],
        problems=snapshot.problems,
        loads=[load_to_pb(load) for load in snapshot.loads],
        pass_seconds=snapshot.pass_seconds,
        counters=dict(snapshot.counters),
        map_fill=[
            pb.MapFill(map=name, used=used, max=top) for name, used, top in snapshot.map_fill
        ],
        incidents=[incident_to_pb(one) for one in snapshot.incidents],
        health=[health_to_pb(one) for one in snapshot.health],
        orphaned=dict(snapshot.orphaned),
    )


def snapshot_from_pb(message: pb.Snapshot) -> Snapshot:
    """Raises ValueError for a snapshot this version cannot express."""
    return Snapshot(
        time=message.time,
        support=support_from_pb(message.support),
        gpus=tuple(map(gpu_from_pb, message.gpus)),
        containers=tuple(map(usage_from_pb, message.containers)),
        problems=tuple(message.problems),
        loads=tuple(map(load_from_pb, message.loads)),
        pass_seconds=message.pass_seconds,
        counters=tuple(sorted(message.counters.items())),
        map_fill=tuple((fill.map, fill.used, fill.max) for fill in message.map_fill),
        incidents=tuple(map(incident_from_pb, message.incidents)),
        health=tuple(map(health_from_pb, message.health)),
        orphaned=tuple(sorted(message.orphaned.items())),
    )


def _known(message: Message, field: str, value: _Value) -> _Value | None:
    return value if message.HasField(field) else None
