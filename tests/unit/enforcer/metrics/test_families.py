# SPDX-License-Identifier: Apache-2.0
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from enforcer.inventory import smi_uuid
from enforcer.metrics.families import ENGINES, FAMILIES, View, render
from enforcer.model import (
    Activity,
    ContainerUsage,
    Gpu,
    GpuLoad,
    HostSupport,
    Layer,
    LayerState,
    Snapshot,
    Usage,
    Why,
)
from tests.unit.enforcer import sample

GPU = Gpu(
    "0000:03:00.0", 5, 1, 128, "AMD Instinct MI300X", 1 << 37, 304, 90402,
    device_id=0x74A1, unique_id=0x8E1BB56457ADDD1B,
)  # fmt: skip
UUID = smi_uuid(GPU.unique_id, GPU.device_id)
ROW = ContainerUsage(
    "ns", "p", "uid", "train", "poda/c", GPU.bdf, 4096, Usage(3000, 2000, 64, 3500, 7, 2064),
    (LayerState(Layer.GATE), LayerState(Layer.DMEM, Why.NO_REGION)),
)  # fmt: skip
LABELS = {"namespace": "ns", "pod": "p", "container": "train", "device": GPU.bdf}
SNAPSHOT = Snapshot(
    time=1000.0,
    support=HostSupport(LayerState(Layer.GATE), LayerState(Layer.DMEM, Why.NO_REGION), "bo"),
    gpus=(GPU,),
    containers=(replace(ROW, container="", cgroup="poda"), ROW),
    loads=(GpuLoad(GPU.bdf, 8192, 0, 41.0, None),),
    pass_seconds=0.005,
    counters=(("refused_limit", 7),),
    map_fill=(("limits", 2, 16384),),
)


def _scrape(snapshot: Snapshot | None) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read back by Prometheus's own client library."""
    view = None if snapshot is None else View(snapshot, "node-a", "1.2.3")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(render(view, "1.2.3")):
        for sample_ in family.samples:
            found.setdefault(sample_.name, []).append((sample_.labels, sample_.value))
    return found


def test_a_container_is_labelled_as_hamis_dashboards_expect() -> None:
    labels = {
        "namespace": "ns",
        "pod": "p",
        "container": "train",
        "vdevice_index": "0",
        "device_uuid": UUID,
    }
    found = _scrape(SNAPSHOT)
    assert found["hami_vgpu_memory_used_bytes"] == [(labels, 3000.0)]
    assert found["hami_vgpu_memory_limit_bytes"] == [(labels, 4096.0)]


def test_the_gpus_of_a_container_are_counted_from_zero() -> None:
    second = replace(ROW, bdf="0000:43:00.0")
    found = _scrape(replace(SNAPSHOT, containers=(ROW, second, replace(ROW, pod="q"))))
    indices = [labels["vdevice_index"] for labels, _ in found["hami_vgpu_memory_used_bytes"]]
    assert indices == ["0", "1", "0"]


def test_the_host_is_labelled_as_hamis_dashboards_expect() -> None:
    labels = {
        "node": "node-a",
        "device_index": "1",
        "device_uuid": UUID,
        "device_type": "AMD Instinct MI300X",
    }
    found = _scrape(SNAPSHOT)
    assert found["hami_host_gpu_memory_used_bytes"] == [(labels, 8192.0)]
    assert found["hami_host_gpu_utilization_ratio"] == [(labels, 0.0)]
    assert found["hami_host_gpu_temperature_celsius"] == [(labels, 41.0)]
    assert found["hami_vgpumonitor_collect_success"] == [({"node": "node-a"}, 1.0)]


def test_a_sensor_that_is_not_there_has_no_series() -> None:
    assert "hami_host_gpu_power_usage_watts" not in _scrape(SNAPSHOT)


def test_an_idle_container_reads_zero() -> None:
    idle = replace(ROW, usage=Usage(0, 0, 0, 0, 0, 0))
    found = _scrape(replace(SNAPSHOT, containers=(idle,)))
    assert [value for _, value in found["hami_vgpu_memory_used_bytes"]] == [0.0]
    assert [value for _, value in found["ringfence_refusals_total"]] == [0.0]


def test_without_a_ledger_dmem_tells_what_is_used_and_the_rest_is_absent() -> None:
    row = replace(ROW, usage=Usage(dmem_current=2064))
    found = _scrape(replace(SNAPSHOT, containers=(row,)))
    assert [value for _, value in found["hami_vgpu_memory_used_bytes"]] == [2064.0]
    assert "ringfence_vram_requested_bytes" not in found
    assert "ringfence_refusals_total" not in found


def test_a_whole_gpu_has_no_limit_series() -> None:
    found = _scrape(replace(SNAPSHOT, containers=(replace(ROW, limit=None),)))
    assert "hami_vgpu_memory_limit_bytes" not in found
    assert "ringfence_vram_limit_bytes" not in found


def test_a_gone_container_is_gone() -> None:
    found = _scrape(replace(SNAPSHOT, containers=()))
    assert not [name for name in found if name.startswith(("hami_vgpu_", "ringfence_vram"))]


def test_every_source_of_usage_has_its_series() -> None:
    found = _scrape(replace(SNAPSHOT, containers=(ROW,)))
    labels = {"namespace": "ns", "pod": "p", "container": "train", "device": GPU.bdf}
    for name, value in (
        ("limit", 4096.0),
        ("requested", 3000.0),
        ("resident", 2000.0),
        ("page_table", 64.0),
        ("peak", 3500.0),
        ("dmem_current", 2064.0),
    ):
        assert found[f"ringfence_vram_{name}_bytes"] == [(labels, value)]
    assert found["ringfence_refusals_total"] == [(labels, 7.0)]


def test_a_layer_says_why_it_is_off() -> None:
    found = _scrape(replace(SNAPSHOT, containers=(ROW,)))
    states = {
        (labels["layer"], labels["reason"]): value for labels, value in found["ringfence_layer"]
    }
    assert states == {("gate", ""): 1.0, ("dmem", "no dmem region for this GPU"): 0.0}
    host = {(one["layer"], one["reason"]): value for one, value in found["ringfence_host_layer"]}
    assert host == states


def test_a_gpu_without_an_id_has_an_empty_one() -> None:
    found = _scrape(replace(SNAPSHOT, gpus=(replace(GPU, unique_id=None),)))
    assert found["hami_vgpu_memory_used_bytes"][0][0]["device_uuid"] == ""


def test_the_pass_and_the_maps_are_told() -> None:
    found = _scrape(replace(SNAPSHOT, problems=("one",)))
    assert found["ringfence_pass_seconds"] == [({}, 0.005)]
    assert found["ringfence_problems"] == [({}, 1.0)]
    assert found["hami_vgpumonitor_collect_success"] == [({"node": "node-a"}, 0.0)]
    assert found["ringfence_events_total"] == [({"event": "refused_limit"}, 7.0)]
    assert found["ringfence_bpf_map_entries"] == [({"map": "limits"}, 2.0)]
    assert found["ringfence_bpf_map_max_entries"] == [({"map": "limits"}, 16384.0)]
    assert found["ringfence_ledger_info"] == [({"source": "bo"}, 1.0)]


def test_before_the_first_pass_only_the_version_is_known() -> None:
    assert list(_scrape(None)) == ["ringfence_build_info"]


def test_label_values_from_a_tenant_are_escaped() -> None:
    nasty = 'a"b\\c\nd'
    found = _scrape(replace(SNAPSHOT, containers=(replace(ROW, pod=nasty),)))
    assert found["hami_vgpu_memory_used_bytes"][0][0]["pod"] == nasty


def test_every_source_of_usage_is_a_series_of_its_own() -> None:
    usage = Usage(hook=1, kfd=2, drm=3, observed=4, escaped=5, drift=0)
    found = _scrape(replace(SNAPSHOT, containers=(replace(ROW, usage=usage),)))
    labels = {"namespace": "ns", "pod": "p", "container": "train", "device": GPU.bdf}
    for name, value in (("hook", 1), ("observed", 4), ("escaped", 5), ("drift", 0)):
        assert found[f"ringfence_vram_{name}_bytes"] == [(labels, value)]
    assert "ringfence_vram_requested_bytes" not in found


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        (Usage(requested=1, dmem_current=2, observed=3, hook=4), 1),
        (Usage(dmem_current=2, observed=3, hook=4), 2),
        (Usage(observed=3, hook=4), 3),
        (Usage(hook=0), 0),
    ],
)
def test_hamis_number_is_the_best_there_is(usage: Usage, used: int) -> None:
    found = _scrape(replace(SNAPSHOT, containers=(replace(ROW, usage=usage),)))
    assert [value for _, value in found["hami_vgpu_memory_used_bytes"]] == [used]


def test_what_a_container_does_is_told() -> None:
    activity = Activity(12, 4, 1.5, 2.25, (("gfx", 0.0), ("npu", 1.0), ("tpu", 2.0)), 512)
    row = replace(ROW, cus="0-3,8", activity=activity, usage=Usage())
    found = _scrape(replace(SNAPSHOT, containers=(row,)))
    for name, value in (
        ("cu_slice", 5),
        ("cu_occupancy", 12),
        ("queues", 4),
        ("evicted_seconds_total", 1.5),
        ("sdma_seconds_total", 2.25),
        ("vram_spilled_bytes", 512),
    ):
        assert found[f"ringfence_{name}"] == [(LABELS, value)]
    engines = {one["engine"]: value for one, value in found["ringfence_engine_seconds_total"]}
    assert engines == {"gfx": 0.0, "other": 3.0}


def test_queues_are_told_by_whether_they_are_masked() -> None:
    row = replace(ROW, usage=Usage(queues=5, queues_masked=3, masks_wider=2))
    found = _scrape(replace(SNAPSHOT, containers=(row,)))
    queues = {one["masked"]: value for one, value in found["ringfence_compute_queues"]}
    assert queues == {"yes": 3, "no": 2}
    assert found["ringfence_wider_masks_total"] == [(LABELS, 2)]
    assert "ringfence_compute_queues" not in _scrape(SNAPSHOT)


def test_shared_virtual_memory_is_told_beside_what_faults_brought_of_it() -> None:
    row = replace(ROW, usage=Usage(svm=500, svm_faulted=600))
    found = _scrape(replace(SNAPSHOT, containers=(row,)))
    assert found["ringfence_vram_svm_bytes"] == [(LABELS, 500)]
    assert found["ringfence_vram_svm_faulted_bytes_total"] == [(LABELS, 600)]
    unknown = replace(SNAPSHOT, containers=(replace(ROW, usage=Usage()),))
    assert "ringfence_vram_svm_faulted_bytes_total" not in _scrape(unknown)


def test_orphans_are_told_with_the_pod_and_of_pods_that_are_gone_with_the_gpu() -> None:
    pod = replace(ROW, container="", usage=Usage(orphaned=300))
    found = _scrape(replace(SNAPSHOT, containers=(pod, ROW), orphaned=((GPU.bdf, 7),)))
    assert found["ringfence_vram_orphaned_bytes"] == [(LABELS | {"container": ""}, 300)]
    assert found["ringfence_gpu_vram_orphaned_bytes"] == [({"device": GPU.bdf}, 7)]
    assert "ringfence_gpu_vram_orphaned_bytes" not in _scrape(SNAPSHOT)


def test_what_is_spilled_is_what_the_ledger_has_and_vram_has_not() -> None:
    found = _scrape(replace(SNAPSHOT, containers=(ROW,)))
    assert found["ringfence_vram_spilled_bytes"] == [(LABELS, 1000.0)]


def test_without_a_mask_a_container_has_every_cu() -> None:
    found = _scrape(SNAPSHOT)
    assert found["ringfence_cu_slice"] == [(LABELS, 304.0)]


def test_a_gpu_tells_what_it_has_and_what_is_booked() -> None:
    whole = replace(ROW, pod="q", limit=None)
    found = _scrape(replace(SNAPSHOT, containers=(*SNAPSHOT.containers, whole)))
    for name, value in (
        ("vram_bytes", 1 << 37),
        ("vram_booked_bytes", (1 << 37) + 4096),
        ("compute_units", 304),
        ("slices", 2),
    ):
        assert found[f"ringfence_gpu_{name}"] == [({"device": GPU.bdf}, value)]
    (info,) = found["ringfence_gpu_info"]
    assert info[0]["model"] == "AMD Instinct MI300X"


def test_the_health_of_a_gpu_is_told() -> None:
    ill = replace(sample.ILL, bdf="0000:83:00.0")
    found = _scrape(replace(sample.SNAPSHOT, health=(ill, sample.SNAPSHOT.health[0])))
    assert [value for _, value in found["ringfence_gpu_healthy"]] == [0, 1]
    assert [value for _, value in found["ringfence_gpu_vm_faults_total"]] == [0, 3]
    (reset,) = found["ringfence_gpu_last_reset_timestamp_seconds"]
    assert reset[1] == sample.TIME - 900


def test_partitions_of_a_gpu_are_one_device() -> None:
    parts = tuple(replace(GPU, partition=number, render=128 + number) for number in range(4))
    found = _scrape(replace(SNAPSHOT, gpus=parts))
    assert found["ringfence_gpu_compute_units"] == [({"device": GPU.bdf}, 4 * 304)]
    assert len(found["hami_host_gpu_memory_used_bytes"]) == 1


def test_refusals_have_reasons_and_begin_at_zero() -> None:
    incident = replace(
        sample.INCIDENT, namespace="ns", pod="p", container="train", bdf=GPU.bdf, count=3
    )
    other = replace(incident, reason="refused_placement", count=2)
    found = _scrape(replace(SNAPSHOT, incidents=(incident, other)))
    counts = {
        (one["container"], one["reason"]): value
        for one, value in found["ringfence_incidents_total"]
    }
    assert counts == {
        ("", "refused_limit"): 0,
        ("train", "refused_limit"): 3,
        ("train", "refused_placement"): 2,
    }


def test_a_kind_of_incident_has_a_time_from_its_first_one_on() -> None:
    name = "ringfence_last_incident_timestamp_seconds"
    assert name not in _scrape(SNAPSHOT)
    trick = replace(sample.INCIDENT, time=1000.25, bdf="", reason="switched_killed")
    found = _scrape(replace(SNAPSHOT, incidents=(sample.INCIDENT, trick)))
    times = {(one["device"], one["reason"]): value for one, value in found[name]}
    assert times == {
        (sample.INCIDENT.bdf, "refused_limit"): sample.TIME - 60,
        ("", "switched_killed"): 1000.25,
    }
    counted = {frozenset(one.items()) for one, value in found["ringfence_incidents_total"] if value}
    assert {frozenset(one.items()) for one, _ in found[name]} == counted


def test_two_cgroups_of_one_container_are_one_series() -> None:
    again = replace(ROW, cgroup="poda/d", usage=Usage(1, 1, 0, 1, 0, 1), layers=())
    incidents = (
        replace(sample.INCIDENT, time=at, namespace="ns", pod="p", container="train", pod_uid=uid)
        for at, uid in ((8.0, "uid"), (9.0, "its successor's"), (7.0, "its predecessor's"))
    )
    found = _scrape(replace(SNAPSHOT, containers=(ROW, again), incidents=tuple(incidents)))
    assert found["ringfence_vram_requested_bytes"] == [(LABELS, 3001.0)]
    assert found["ringfence_vram_limit_bytes"] == [(LABELS, 4096.0)]
    assert len(found["hami_vgpu_memory_used_bytes"]) == 1
    assert [value for _, value in found["ringfence_incidents_total"]] == [21.0]
    (last,) = found["ringfence_last_incident_timestamp_seconds"]
    assert last[1] == 9.0


def test_a_reason_nobody_listed_is_no_new_label_value() -> None:
    row = replace(ROW, layers=(LayerState(Layer.GATE, "pid 4711 did it"),))
    found = _scrape(replace(SNAPSHOT, containers=(row,)))
    assert found["ringfence_layer"][0][0]["reason"] == "other"


def test_no_series_comes_twice_and_each_has_the_labels_it_says() -> None:
    text = render(View(sample.ORPHANED, "n", "1"), "1")
    series = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
    assert len(set(series)) == len(series)
    told = {family.name: family.labels for family in FAMILIES}
    for one in series:
        name, _, pairs = one.partition("{")
        assert tuple(re.findall(r'(\w+)="', pairs)) == told[name]


def test_every_family_is_shown_by_a_node_that_has_everything() -> None:
    text = render(View(sample.ORPHANED, "n", "1"), "1")
    shown = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[0] != "#"}
    assert shown == {family.name for family in FAMILIES}


def test_counters_are_named_and_typed_as_prometheus_wants() -> None:
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.kind in {"counter", "gauge"}
        assert "\n" not in family.text
    assert list(ENGINES) == sorted(ENGINES)


def test_bytes_are_written_to_the_byte() -> None:
    size = (1 << 53) + 1
    row = replace(ROW, usage=Usage(requested=size))
    text = render(View(replace(SNAPSHOT, containers=(row,)), "", ""), "")
    assert f"}} {size}\n" in text


@given(st.text(), st.text())
def test_any_name_comes_back_as_it_was(namespace: str, pod: str) -> None:
    text = render(
        View(replace(SNAPSHOT, containers=(replace(ROW, namespace=namespace, pod=pod),)), "", ""),
        "",
    )
    (line,) = re.findall(r"^ringfence_cu_slice\{.*$", text, re.MULTILINE) or [""]
    pattern = r'namespace="((?:[^"\\]|\\.)*)",pod="((?:[^"\\]|\\.)*)"}'
    if (match := re.search(pattern, line)) is not None:
        assert [_unescape(one) for one in match.groups()] == [namespace, pod]
    else:
        # Names with line separators other than a newline: the expression's, not Prometheus's.
        assert any(len(one.splitlines()) > 1 for one in (namespace, pod))


def _unescape(text: str) -> str:
    names = {"n": "\n"}
    return re.sub(r"\\(.)", lambda match: names.get(match[1], match[1]), text)
