# SPDX-License-Identifier: Apache-2.0
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from enforcer.inventory import smi_uuid
from enforcer.metrics import SnapshotCollector, serve
from enforcer.model import (
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

GPU = Gpu(
    "0000:03:00.0", 5, 1, 128, "AMD Instinct MI300X", 1 << 37, 304, 90402,
    device_id=0x74A1, unique_id=0x8E1BB56457ADDD1B,
)  # fmt: skip
UUID = smi_uuid(GPU.unique_id, GPU.device_id)
ROW = ContainerUsage(
    "ns", "p", "uid", "train", "poda/c", GPU.bdf, 4096, Usage(3000, 2000, 64, 3500, 7, 2064),
    (LayerState(Layer.GATE), LayerState(Layer.DMEM, Why.NO_REGION)),
)  # fmt: skip
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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: snapshot, "node-a"))
    text = generate_latest(registry).decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
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
    found = _scrape(replace(SNAPSHOT, containers=(ROW, second, replace(ROW, cgroup="podb/c"))))
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


@pytest.mark.parametrize("address", ["9394", "host:", ":x", ":99999", ""])
def test_an_address_of_another_form_is_an_error(address: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        serve(address, SnapshotCollector(lambda: None, ""))


def test_metrics_are_served_until_stopped(unused_port: int) -> None:
    address = f"127.0.0.1:{unused_port}"
    stop = serve(address, SnapshotCollector(lambda: SNAPSHOT, ""))
    with pytest.raises(OSError, match="in use"):
        serve(address, SnapshotCollector(lambda: SNAPSHOT, ""))
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        assert b"hami_vgpu_memory_used_bytes" in answer.read()
    stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics")


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
