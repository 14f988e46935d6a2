# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.api import convert
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

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
S64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=20)
FLOAT = st.floats(allow_nan=False)


def _maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


def _layer(*layers: Layer) -> st.SearchStrategy[LayerState]:
    return st.builds(LayerState, st.sampled_from(layers), st.none() | st.text(min_size=1))


ANY_LAYER = _layer(*Layer)
GPUS = st.builds(
    Gpu,
    bdf=TEXT,
    kfd_id=U32,
    card=_maybe(U32),
    render=U32,
    name=TEXT,
    vram_bytes=_maybe(U64),
    cu_count=U32,
    gfx_version=U32,
    device_id=_maybe(U32),
    unique_id=_maybe(U64),
    numa_node=_maybe(st.integers(-1, 64)),
    compute_queues=_maybe(U32),
    xcc_count=_maybe(U32),
    xgmi_peers=st.lists(TEXT, max_size=3).map(tuple),
    compute_partition=_maybe(TEXT),
    memory_partition=_maybe(TEXT),
    partition=_maybe(U32),
    compute_partitions=st.lists(TEXT, max_size=3).map(tuple),
    memory_partitions=st.lists(TEXT, max_size=3).map(tuple),
    system_memory=st.booleans(),
)
USAGES = st.builds(
    Usage,
    requested=_maybe(S64),
    resident=_maybe(S64),
    page_tables=_maybe(S64),
    peak=_maybe(S64),
    refusals=_maybe(U64),
    dmem_current=_maybe(S64),
    hook=_maybe(S64),
    kfd=_maybe(S64),
    drm=_maybe(S64),
    observed=_maybe(S64),
    escaped=_maybe(S64),
    drift=_maybe(S64),
    queues=_maybe(S64),
    queues_masked=_maybe(S64),
    masks_wider=_maybe(U64),
    svm=_maybe(S64),
    svm_faulted=_maybe(U64),
    orphaned=_maybe(S64),
)
ACTIVITIES = st.builds(
    Activity,
    cu_occupancy=_maybe(U32),
    queues=_maybe(U32),
    evicted_seconds=_maybe(FLOAT),
    sdma_seconds=_maybe(FLOAT),
    engines=st.dictionaries(TEXT, FLOAT, max_size=3).map(lambda one: tuple(sorted(one.items()))),
    evicted_bytes=_maybe(U64),
)
HEALTHS = st.builds(
    GpuHealth,
    bdf=TEXT,
    healthy=st.booleans(),
    reason=TEXT,
    since=FLOAT,
    last_reset=_maybe(FLOAT),
    vm_faults=U64,
    last_fault=TEXT,
)
INCIDENTS = st.builds(
    Incident,
    time=FLOAT,
    namespace=TEXT,
    pod=TEXT,
    pod_uid=TEXT,
    container=TEXT,
    bdf=TEXT,
    reason=TEXT,
    count=U64,
    asked=U64,
    used=U64,
    limit=_maybe(U64),
    text=TEXT,
)
ROWS = st.builds(
    ContainerUsage,
    namespace=TEXT,
    pod=TEXT,
    pod_uid=TEXT,
    container=TEXT,
    cgroup=TEXT,
    bdf=TEXT,
    limit=_maybe(U64),
    usage=USAGES,
    layers=st.lists(ANY_LAYER, max_size=3).map(tuple),
    cus=_maybe(TEXT),
    activity=_maybe(ACTIVITIES),
)
SUPPORTS = st.builds(
    HostSupport,
    gate=_layer(Layer.GATE),
    dmem=_layer(Layer.DMEM),
    ledger=TEXT,
    dmem_regions=st.dictionaries(TEXT, TEXT, max_size=3).map(
        lambda found: tuple(sorted(found.items()))
    ),
)
LOADS = st.builds(
    GpuLoad,
    bdf=TEXT,
    vram_used=_maybe(U64),
    busy_percent=_maybe(U32),
    temperature=_maybe(FLOAT),
    power=_maybe(FLOAT),
)
SNAPSHOTS = st.builds(
    Snapshot,
    time=FLOAT,
    support=SUPPORTS,
    gpus=st.lists(GPUS, max_size=3).map(tuple),
    containers=st.lists(ROWS, max_size=3).map(tuple),
    problems=st.lists(TEXT, max_size=3).map(tuple),
    loads=st.lists(LOADS, max_size=3).map(tuple),
    pass_seconds=FLOAT,
    counters=st.dictionaries(TEXT, U64, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    map_fill=st.lists(st.tuples(TEXT, U64, U64), max_size=3).map(tuple),
    incidents=st.lists(INCIDENTS, max_size=3).map(tuple),
    health=st.lists(HEALTHS, max_size=3).map(tuple),
    orphaned=st.dictionaries(TEXT, S64, max_size=3).map(lambda found: tuple(sorted(found.items()))),
)


@given(SNAPSHOTS)
def test_every_snapshot_comes_back_over_the_wire(snapshot: Snapshot) -> None:
    wire = convert.snapshot_to_pb(snapshot).SerializeToString()
    assert convert.snapshot_from_pb(pb.Snapshot.FromString(wire)) == snapshot


@given(st.builds(Protection, TEXT, TEXT, st.lists(ANY_LAYER, max_size=3).map(tuple)), st.booleans())
def test_every_protection_comes_back_over_the_wire(protection: Protection, whole: bool) -> None:
    message = convert.protection_to_pb(protection, whole=whole)
    assert message.held == protection.held
    wire = pb.Protection.FromString(message.SerializeToString())
    assert convert.protection_from_pb(wire) == (protection, whole)


def test_unknown_and_zero_are_two_things_on_the_wire() -> None:
    row = ContainerUsage("n", "p", "u", "c", "g", "b", 0, Usage(requested=0), ())
    back = convert.usage_from_pb(convert.usage_to_pb(row))
    assert (back.limit, back.usage.requested, back.usage.resident) == (0, 0, None)


def test_a_support_without_a_layer_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected the layers gate and dmem"):
        convert.support_from_pb(pb.HostSupport(layers=[pb.LayerState(layer="gate", on=True)]))


def test_a_layer_of_a_later_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="mirror"):
        convert.layer_from_pb(pb.LayerState(layer="mirror", on=True))
