# SPDX-License-Identifier: Apache-2.0
"""Snapshots that look like those of real nodes, for everything that shows them."""

from __future__ import annotations

from dataclasses import replace

from enforcer.model import (
    GIB,
    MIB,
    Activity,
    ContainerUsage,
    Gpu,
    GpuHealth,
    GpuLoad,
    HostSupport,
    Incident,
    Layer,
    LayerState,
    Snapshot,
    Usage,
    Why,
)

ON = (LayerState(Layer.GATE), LayerState(Layer.DMEM))
NO_DMEM = (LayerState(Layer.GATE), LayerState(Layer.DMEM, Why.NO_REGION))
TIME = 1_795_000_000.0


def gpu(bus: int, card: int) -> Gpu:
    """An MI300X."""
    return Gpu(
        f"0000:{bus:02x}:00.0", 5000 + card, card, 128 + card, "AMD Instinct MI300X",
        192 * GIB, 304, 90402, device_id=0x74A1, unique_id=0x8E1BB56457ADDD10 + card, xcc_count=8,
    )  # fmt: skip


GPUS = (gpu(0x03, 1), gpu(0x43, 2))


def row(pod: str, bdf: str, mib: int | None, held: int, cus: str | None = None) -> ContainerUsage:
    """A container ``main`` that holds ``held`` MiB, an eighth of it in system memory."""
    usage = Usage(
        held * MIB, held * MIB * 7 // 8, 64 << 10, (held + 100) * MIB, 7, held * MIB * 7 // 8,
        hook=held * MIB, kfd=held * MIB, drm=0, observed=held * MIB, escaped=0, drift=0,
        queues=4, queues_masked=4, masks_wider=0, svm=0, svm_faulted=0,
    )  # fmt: skip
    activity = Activity(12, 4, 1.5, 2.25, (("compute", 1.25), ("gfx", 0.0)), 0)
    return ContainerUsage(
        "team-a", pod, f"uid-{pod}", "main", f"kubepods/pod{pod}/c", bdf,
        None if mib is None else mib * MIB, usage, ON if mib is not None else (), cus, activity,
    )  # fmt: skip


ROWS = (
    row("train", GPUS[0].bdf, 64 * 1024, 48 * 1024, "0-151"),
    row("infer", GPUS[0].bdf, 32 * 1024, 31 * 1024, "152-227"),
    row("notebook-of-somebody-with-a-long-name", GPUS[0].bdf, 16 * 1024, 0, "220-247"),
    row("whole", GPUS[1].bdf, None, 100 * 1024),
)
INCIDENT = Incident(
    TIME - 60, "team-a", "infer", "uid-infer", "main", GPUS[0].bdf, "refused_limit", 7,
    4 * GIB, 31 * GIB, 32 * GIB,
    "python[4711] refused 4294967296 bytes: over its share (33285996544 of 34359738368 used)",
)  # fmt: skip
SNAPSHOT = Snapshot(
    time=TIME,
    support=HostSupport(*ON, ledger="bo"),
    gpus=GPUS,
    containers=ROWS,
    loads=(
        GpuLoad(GPUS[0].bdf, 81 * GIB, 73, 61.0, 640.0),
        GpuLoad(GPUS[1].bdf, 101 * GIB, 99, None, None),
    ),
    pass_seconds=0.005,
    counters=(("events_dropped", 0), ("refused_limit", 7)),
    map_fill=(("limits", 8, 16384),),
    incidents=(INCIDENT,),
    health=(
        GpuHealth(GPUS[0].bdf, healthy=True, since=TIME - 900, last_reset=TIME - 900, vm_faults=3),
        GpuHealth(GPUS[1].bdf, healthy=True, since=TIME - 1000),
    ),
)
ORPHANED = replace(
    SNAPSHOT,
    containers=(
        replace(ROWS[0], container="", usage=replace(ROWS[0].usage, orphaned=3 * GIB)),
        *ROWS,
    ),
    orphaned=((GPUS[0].bdf, GIB), (GPUS[1].bdf, 0)),
)
"""With buffers that outlived their container and their pod."""

ILL = GpuHealth(GPUS[0].bdf, healthy=False, reason="wedged: the driver asks for rebind")
