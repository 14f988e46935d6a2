# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered by Helm's own engine: what matters is asserted on the parsed objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import helm_python
import pytest
import yaml

from deviceplugin.options import POD_RESOURCES, terms
from deviceplugin.options import parser as plugin_parser
from deviceplugin.terms import Terms
from enforcer import cli
from enforcer.cli import health
from enforcer.daemon import _parser as enforcer_parser
from tests.unit.charts.rendered import CHART, VARIANTS, Object, Values, only, render
from tests.vm.guest.confined import CAPABILITIES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def pod_spec(values: Values | None = None) -> Object:
    spec: Object = only(render(values), "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(name: str, values: Values | None = None) -> Object:
    (found,) = [item for item in pod_spec(values)["containers"] if item["name"] == name]
    return dict(found)


def mounts(name: str, values: Values | None = None) -> dict[str, Object]:
    """The container's host directories: mount path -> mount, with the host's path as ``host``."""
    spec = pod_spec(values)
    hosts = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    return {
        mount["mountPath"]: mount | {"host": hosts[mount["name"]]}
        for mount in container(name, values)["volumeMounts"]
        if mount["name"] in hosts
    }


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_chart_passes_helms_linter(values: Values) -> None:
    report = helm_python.lint(
        CHART, values, strict=True, namespace="gpu-system", kube_version="v1.30.0"
    )
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_object_is_named_and_labelled(values: Values) -> None:
    for item in render(values):
        assert item["apiVersion"]
        if item["kind"] != "Namespace":
            assert item["metadata"]["name"].startswith("rf-ringfence")
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == "rf"


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_daemonset_selects_its_own_pods(values: Values) -> None:
    spec = only(render(values), "DaemonSet")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_pod_labels_cannot_break_the_selector() -> None:
    values = {"podLabels": {"app.kubernetes.io/name": "other", "team": "a"}}
    spec = only(render(values), "DaemonSet")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "a"


def test_both_containers_run_the_console_script() -> None:
    names = [item["name"] for item in pod_spec()["containers"]]
    assert names == ["device-plugin", "enforcer"]
    for name in names:
        assert container(name)["command"] == ["ringfence", name]
        assert container(name)["image"] == "localhost/ringfence:0.1.0"


def test_a_digest_wins_over_the_tag() -> None:
    digest = "sha256:" + "0a" * 32
    values = {"image": {"repository": "r.example/rf", "tag": "1", "digest": digest}}
    assert container("enforcer", values)["image"] == f"r.example/rf@{digest}"


def test_the_device_plugin_has_no_privilege() -> None:
    context = container("device-plugin")["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["privileged"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_an_enforcer_that_is_not_privileged_has_what_was_shown_to_be_enough() -> None:
    values = {"enforcer": {"privileged": False}}
    context = container("enforcer", values)["securityContext"]
    assert context["privileged"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"]["drop"] == ["ALL"]
    assert [f"CAP_{one}" for one in context["capabilities"]["add"]] == list(CAPABILITIES)


def test_the_enforcer_is_privileged_and_the_api_server_would_take_it() -> None:
    context = container("enforcer")["securityContext"]
    assert context["privileged"] is True
    assert context["readOnlyRootFilesystem"] is True
    # The API server refuses privileged together with this one.
    assert "allowPrivilegeEscalation" not in context
    assert pod_spec()["hostPID"] is True


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_nothing_takes_a_port_or_the_network_of_the_host(values: Values) -> None:
    spec = pod_spec(values)
    assert "hostNetwork" not in spec
    for item in spec["containers"]:
        assert all("hostPort" not in port for port in item.get("ports", []))


def test_only_the_device_plugin_can_talk_to_the_api_server() -> None:
    objects = render()
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod_spec()["automountServiceAccountToken"] is False
    tokens = {
        volume["name"]
        for volume in pod_spec()["volumes"]
        if any("serviceAccountToken" in s for s in volume.get("projected", {}).get("sources", []))
    }
    holders = {
        item["name"]: mount["mountPath"]
        for item in pod_spec()["containers"]
        for mount in item["volumeMounts"]
        if mount["name"] in tokens
    }
    assert holders == {"device-plugin": "/var/run/secrets/kubernetes.io/serviceaccount"}


def rights_of(role: Object) -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_rights_are_exactly_those_the_plugin_needs() -> None:
    objects = render()
    role = only(objects, "ClusterRole")
    assert rights_of(role) == {
        ("", "nodes"): {"get", "list", "watch", "patch"},
        ("", "pods"): {"get", "list", "watch", "patch"},
        ("", "events"): {"create"},
    }
    modes = only(render(VARIANTS["modes"]), "ClusterRole")
    assert rights_of(modes) == rights_of(role) | {("", "nodes/status"): {"patch"}}
    binding = only(objects, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "rf-ringfence", "namespace": "gpu-system"}
    ]
    assert pod_spec()["serviceAccountName"] == "rf-ringfence"


def test_an_account_of_ones_own_brings_its_own_rights() -> None:
    objects = render(VARIANTS["account of one's own"])
    kinds = {item["kind"] for item in objects if not item["kind"].startswith("Validating")}
    assert kinds == {"DaemonSet"}
    assert pod_spec(VARIANTS["account of one's own"])["serviceAccountName"] == "gpu"


def test_the_device_plugin_sees_the_kubelets_sockets_and_its_own_directories() -> None:
    seen = mounts("device-plugin")
    assert all(path == mount["host"] for path, mount in seen.items())
    writable = {path for path, mount in seen.items() if not mount.get("readOnly")}
    assert writable == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/ringfence",
        "/run/ringfence",
    }
    assert set(seen) - writable == {
        "/var/lib/kubelet/pod-resources",
        "/var/lib/amd-metrics-exporter",
        "/var/lib/ringfence-hook",
        "/dev/dri",
    }
    assert "/var/lib/amd-metrics-exporter" not in mounts("device-plugin", VARIANTS["modes"])
    elsewhere = {"devicePlugin": {"metricsExporterDir": "/opt/exporter"}}
    mount = mounts("device-plugin", elsewhere)["/var/lib/amd-metrics-exporter"]
    assert mount["host"] == "/opt/exporter"


def test_the_enforcer_writes_only_cgroups_pins_and_its_socket() -> None:
    seen = mounts("enforcer")
    writable = {path for path, mount in seen.items() if not mount.get("readOnly")}
    assert writable == {"/sys/fs/cgroup", "/sys/fs/bpf", "/run/ringfence"}
    assert set(seen) - writable == {
        "/sys",
        "/host/dev",
        "/var/lib/ringfence",
        "/run/containerd/io.containerd.runtime.v2.task",
        "/run/containers/storage/overlay-containers",
    }


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_no_mount_keeps_a_dead_containers_file_system_alive(values: Values) -> None:
    """A private mount of a tree with mounts below it pins them: they must follow the host's."""
    for path, mount in mounts("enforcer", values).items():
        if not path.endswith("/ringfence"):
            assert mount["mountPropagation"] == "HostToContainer", path


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_volumes_and_mounts_name_each_other(values: Values) -> None:
    spec = pod_spec(values)
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(volumes) == len(set(volumes))
    used = {mount["name"] for item in spec["containers"] for mount in item["volumeMounts"]}
    assert used == set(volumes)


def test_a_runtimes_directory_is_taken_from_where_the_distribution_has_it() -> None:
    k3s = mounts("enforcer", VARIANTS["k3s"])
    records = "/run/containerd/io.containerd.runtime.v2.task"
    assert k3s[records]["host"] == "/run/k3s/containerd/io.containerd.runtime.v2.task"
    assert not any("containers/storage" in path for path in k3s)
    docker = mounts("enforcer", VARIANTS["docker"])["/var/lib/docker/containers"]
    assert (docker["host"], docker["readOnly"]) == ("/srv/docker/containers", True)
    crio = mounts("enforcer", VARIANTS["cri-o"])
    assert records not in crio
    assert "/run/containers/storage/overlay-containers" in crio


@pytest.mark.parametrize("distribution", ["k0s", "microk8s"])
def test_a_root_directory_moves_what_the_kubelet_has_there_and_no_more(distribution: str) -> None:
    values = VARIANTS[distribution]
    options = plugin_parser().parse_args(container("device-plugin", values)["args"])
    assert str(options.kubelet_dir) == values["kubeletDir"]
    assert str(options.device_plugins_dir) == "/var/lib/kubelet/device-plugins"
    seen = mounts("device-plugin", values)
    for path in (options.device_plugins_dir, (options.kubelet_dir / POD_RESOURCES).parent):
        assert seen[str(path)]["host"] == str(path)
    (moved,) = {mount["host"] for mount in seen.values()} - {
        mount["host"] for mount in mounts("device-plugin").values()
    }
    assert moved == f"{values['kubeletDir']}/pod-resources"


def test_the_hook_is_installed_first_and_the_plugin_may_only_look_at_it() -> None:
    (installer,) = pod_spec(VARIANTS["hook"])["initContainers"]
    assert installer["args"][-1] == "/opt/ringfence"
    assert installer["volumeMounts"] == [{"name": "hook", "mountPath": "/opt/ringfence"}]
    (volume,) = [one for one in pod_spec(VARIANTS["hook"])["volumes"] if one["name"] == "hook"]
    assert volume["hostPath"] == {"path": "/opt/ringfence", "type": "DirectoryOrCreate"}
    plugin = container("device-plugin", VARIANTS["hook"])
    # What a runtime mounts is what the link led to then: a pod keeps its version.
    assert "--hook-dir=/opt/ringfence/current" in plugin["args"]
    mount = mounts("device-plugin", VARIANTS["hook"])["/opt/ringfence"]
    assert (mount["host"], mount["readOnly"]) == ("/opt/ringfence", True)


def test_the_installer_has_no_right_but_to_its_directory() -> None:
    (installer,) = pod_spec()["initContainers"]
    assert installer["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_without_a_directory_there_is_no_hook() -> None:
    spec = pod_spec(VARIANTS["no hook"])
    assert "initContainers" not in spec
    assert "--hook-dir=/nonexistent" in container("device-plugin", VARIANTS["no hook"])["args"]
    assert not any(volume["name"] == "hook" for volume in spec["volumes"])


def parser_of(name: str) -> argparse.ArgumentParser:
    return {"device-plugin": plugin_parser, "enforcer": enforcer_parser}[name]()


@pytest.mark.parametrize("name", ["device-plugin", "enforcer"])
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_programs_take_every_flag_and_each_flag_in_full(values: Values, name: str) -> None:
    arguments = container(name, values)["args"]
    known = parser_of(name)._option_string_actions
    assert {argument.partition("=")[0] for argument in arguments} <= set(known)
    parser_of(name).parse_args(arguments)


@pytest.mark.parametrize("name", ["device-plugin", "enforcer"])
def test_the_console_script_has_a_command_for_each_container(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([name, "--help"])
    assert exit_.value.code == 0
    assert f"ringfence {name}" in capsys.readouterr().out


def test_the_administrators_policy_reaches_the_enforcer() -> None:
    policy = {"onSwitch": "report", "cuMasks": "enforce", "refuseImports": True}
    values = {"enforcer": {**policy, "refusePassed": True}}
    options = vars(parser_of("enforcer").parse_args(container("enforcer", values)["args"]))
    assert options["on_switch"] == "report"
    assert options["cu_masks"] == "enforce"
    assert options["refuse_imports"]
    assert options["refuse_passed"]


def test_the_defaults_of_the_chart_are_the_defaults_of_the_programs() -> None:
    """So that what is run by hand on a node meets what the chart runs there."""
    for name in ("device-plugin", "enforcer"):
        # The container has a /dev of its own beside the host's, and probes.
        own = ("--dev=/host/dev", f"--heartbeat={health.FOLDER}/{name}")
        given = [one for one in container(name)["args"] if one not in own]
        assert vars(parser_of(name).parse_args(given)) == vars(parser_of(name).parse_args([]))


def test_the_doctor_is_told_where_the_hook_is() -> None:
    def told(values: dict[str, Any]) -> list[str]:
        env = container("enforcer", values)["env"]
        return [one["value"] for one in env if one["name"] == "RINGFENCE_HOOK_DIR"]

    for directory in ("/opt/hook", "/var/lib/ringfence-hook"):
        options = container("device-plugin", {"hookDir": directory})["args"]
        assert told({"hookDir": directory}) == [
            str(parser_of("device-plugin").parse_args(options).hook_dir)
        ]
    assert told({"hookDir": ""}) == []


def test_failing_open_has_to_be_asked_for() -> None:
    plugin = parser_of("device-plugin")
    assert plugin.parse_args(container("device-plugin")["args"]).fail_open is False
    chosen = plugin.parse_args(container("device-plugin", VARIANTS["plugin"])["args"])
    assert (chosen.fail_open, chosen.split_count, chosen.log_level) == (True, 4, "debug")


def test_the_modes_reach_the_plugin() -> None:
    options = parser_of("device-plugin").parse_args(
        container("device-plugin", VARIANTS["modes"])["args"]
    )
    assert terms(options) == Terms(
        operating_mode="partition",
        compute_partition="cpx",
        mixed=True,
        memory_scaling=1.5,
        exclude=frozenset({"0000:05:00.0", "card3"}),
    )
    assert options.allocator_policy == "spread"
    assert (options.health_pulse, options.hip_log_level) == (2.5, 4)
    assert options.report_node_capacity is True
    assert str(options.cdi_dir) == "/etc/cdi"
    whole = container("device-plugin", VARIANTS["whole"])["args"]
    assert terms(parser_of("device-plugin").parse_args(whole)).whole
    mount = mounts("device-plugin", VARIANTS["modes"])["/etc/cdi"]
    assert (mount["host"], mount.get("readOnly")) == ("/etc/cdi", None)


def test_each_daemon_writes_what_its_probes_read_where_the_other_cannot() -> None:
    own = {volume["name"] for volume in pod_spec()["volumes"] if "emptyDir" in volume}
    places = set()
    for name in ("device-plugin", "enforcer"):
        written = parser_of(name).parse_args(container(name)["args"]).heartbeat
        assert written == health.FOLDER / name
        (mount,) = [
            one for one in container(name)["volumeMounts"] if one["mountPath"] == str(health.FOLDER)
        ]
        assert "readOnly" not in mount
        places.add(mount["name"])
    assert places == own
    assert len(own) == 2


def test_probes_ask_whether_it_lives_and_whether_it_is_ready() -> None:
    for name in ("device-plugin", "enforcer"):
        probes = {
            kind.removesuffix("Probe"): value["exec"]["command"]
            for kind, value in container(name).items()
            if kind.endswith("Probe")
        }
        live = ["ringfence", "health", "--live", name]
        ready = ["ringfence", "health", name]
        assert probes == {"startup": live, "liveness": live, "readiness": ready}


def test_no_probe_ends_a_daemon_that_a_busy_node_keeps_from_answering_once_or_twice() -> None:
    """kubelet's default is the third failure in a row."""
    for name in ("device-plugin", "enforcer"):
        liveness = container(name)["livenessProbe"]
        assert liveness.get("failureThreshold", 3) >= 3
        assert liveness["timeoutSeconds"] >= 30


def test_both_containers_know_their_node() -> None:
    for name in ("device-plugin", "enforcer"):
        (node,) = [e for e in container(name)["env"] if e["name"] == "NODE_NAME"]
        assert node["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_an_update_ends_the_old_pod_before_the_new_one_starts() -> None:
    """Unless asked for: not every node has the memory to run both for a while."""
    spec = only(render(), "DaemonSet")["spec"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1},
    }
    assert spec["minReadySeconds"] > 0


def test_an_update_can_start_the_new_pod_first() -> None:
    """Both parts of it wait for their predecessor's lock, so that each state has one writer."""
    spec = only(render(VARIANTS["surge"]), "DaemonSet")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_on_delete_carries_no_rolling_update() -> None:
    strategy = only(render(VARIANTS["on delete"]), "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "OnDelete"}


def test_the_pods_are_critical_to_the_node_and_stay_on_tainted_ones() -> None:
    spec = pod_spec()
    assert spec["priorityClassName"] == "system-node-critical"
    assert {"key": "CriticalAddonsOnly", "operator": "Exists"} in spec["tolerations"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}


def test_what_is_emptied_is_left_out() -> None:
    spec = pod_spec(VARIANTS["bare"])
    assert not {"priorityClassName", "nodeSelector", "tolerations", "affinity"} & set(spec)
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_metrics_are_served_on_the_port_of_the_values() -> None:
    enforcer = container("enforcer", {"metrics": {"port": 19394}})
    assert "--metrics-address=:19394" in enforcer["args"]
    assert enforcer["ports"] == [{"name": "metrics", "containerPort": 19394, "protocol": "TCP"}]


def test_without_metrics_nothing_listens() -> None:
    enforcer = container("enforcer", VARIANTS["no metrics"])
    assert "--metrics-address=" in enforcer["args"]
    assert "ports" not in enforcer


def test_dashboards_and_rules_are_those_of_the_files() -> None:
    objects = render(VARIANTS["observed"])
    config = only(objects, "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    for path in sorted((CHART / "files/dashboards").glob("*.json")):
        assert json.loads(config["data"].pop(f"ringfence-{path.name}")) == json.loads(
            path.read_text()
        )
    assert config["data"] == {}
    rule = only(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files/rules.yaml").read_text())
    assert rule["metadata"]["labels"]["team"] == "a"


def test_a_token_reaches_the_enforcer_and_who_scrapes_it() -> None:
    enforcer, spec = container("enforcer", VARIANTS["token"]), pod_spec(VARIANTS["token"])
    assert "--page=off" in enforcer["args"]
    assert "--metrics-token-file=/etc/ringfence-metrics/by" in enforcer["args"]
    (mount,) = [m for m in enforcer["volumeMounts"] if m["mountPath"] == "/etc/ringfence-metrics"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    assert (mount["readOnly"], volume["secret"]) == (True, {"secretName": "seen"})
    both = (("token", "podMonitor"), ("service monitor", "serviceMonitor"))
    for variant, kind in both:
        values = {"metrics": {**VARIANTS["token"]["metrics"], "podMonitor": {"enabled": False}}}
        values["metrics"][kind] = {"enabled": True}
        monitor = only(render(values), kind[0].upper() + kind[1:])["spec"]
        (endpoint,) = monitor.get("endpoints") or monitor["podMetricsEndpoints"]
        assert endpoint["authorization"] == {"credentials": {"name": "seen", "key": "by"}}, variant


def test_no_monitor_without_being_asked_for() -> None:
    kinds = {item["kind"] for item in render({"admissionPolicy": "off"})}
    assert kinds == {"DaemonSet", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}


def test_the_service_monitor_selects_the_service_and_the_service_the_pods() -> None:
    objects = render(VARIANTS["service monitor"])
    monitor, service = only(objects, "ServiceMonitor"), only(objects, "Service")
    pods = only(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert service["spec"]["selector"].items() <= pods.items()
    assert service["spec"]["clusterIP"] == "None"
    assert monitor["metadata"]["labels"]["team"] == "a"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]


def test_the_pod_monitor_selects_the_pods_by_a_named_port() -> None:
    objects = render(VARIANTS["pod monitor"])
    monitor = only(objects, "PodMonitor")
    pods = only(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "1m30s"
    assert endpoint["port"] in [port["name"] for port in container("enforcer")["ports"]]
    assert not any(item["kind"] == "Service" for item in objects)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
            "scraped twice",
        ),
        ({"metrics": {"enabled": False, "podMonitor": {"enabled": True}}}, "nothing to scrape"),
        ({"metrics": {"enabled": False, "podAnnotations": True}}, "nothing to scrape"),
        ({"serviceAccount": {"create": False}}, "name the account"),
        (
            {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
            "maxSurge 1 and maxUnavailable 1: Kubernetes takes only one",
        ),
        (
            {"updateStrategy": {"rollingUpdate": {"maxSurge": "5%"}}},
            "maxSurge 5% and maxUnavailable 1: Kubernetes takes only one",
        ),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}, "no node could ever"),
    ],
)
def test_values_that_cannot_go_together_are_refused_with_the_reason(
    values: Values, words: str
) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=words):
        render(values)


def _objects_of(
    schema: Object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Object]]:
    if schema.get("type") == "object":
        yield path, schema
        for name, child in schema.get("properties", {}).items():
            yield from _objects_of(child, (*path, name))
    elif schema.get("type") == "array":
        yield from _objects_of(schema["items"], (*path, "[]"))


SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
# Where the chart hands a whole Kubernetes object through, the API server knows its keys.
PASSED_THROUGH = {
    ("global",),
    ("affinity", "nodeAffinity"),
    ("affinity", "podAffinity"),
    ("affinity", "podAntiAffinity"),
    ("networkPolicy", "scrapers", "[]", "namespaceSelector"),
    ("networkPolicy", "scrapers", "[]", "podSelector"),
    ("networkPolicy", "scrapers", "[]", "ipBlock"),
}
CLOSED = [
    path
    for path, schema in _objects_of(SCHEMA)
    if schema.get("additionalProperties") is False and path not in PASSED_THROUGH
]


def test_every_object_of_the_schema_says_which_keys_it_takes() -> None:
    for path, schema in _objects_of(SCHEMA):
        if path not in PASSED_THROUGH:
            more = schema["additionalProperties"]
            assert more is False or more["type"] == "string", path


@pytest.mark.parametrize("path", CLOSED, ids=[".".join(path) or "top" for path in CLOSED])
def test_an_unknown_key_is_refused_by_name(path: tuple[str, ...]) -> None:
    values: Any = {"surprise": 1}
    for name in reversed(path):
        values = [values] if name == "[]" else {name: values}
    with pytest.raises(helm_python.HelmValuesError, match="'surprise' not allowed"):
        render(values)


def test_the_schema_and_the_values_list_the_same_keys() -> None:
    def keys(schema: Object, values: Any, path: str) -> None:
        properties = schema.get("properties")
        if properties is None or not isinstance(values, dict):
            return
        if path in ("affinity", "devicePlugin.resources", "enforcer.resources"):
            return  # Kubernetes' own structure, of which the defaults use a part
        unset = {"": {"global"}, "updateStrategy.rollingUpdate": {"maxSurge"}}
        assert set(values) == set(properties) - unset.get(path, set()), path or "top"
        for name, value in values.items():
            keys(properties[name], value, f"{path}.{name}".lstrip("."))

    keys(SCHEMA, yaml.safe_load((CHART / "values.yaml").read_text()), "")


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"kubeletDir": "var/lib/kubelet"}, "/kubeletDir"),
        ({"kubeletDir": "/var/lib/kubelet/"}, "/kubeletDir"),
        ({"metrics": {"port": "9394"}}, "/metrics/port"),
        ({"metrics": {"port": 80}}, "/metrics/port"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type"),
        ({"enforcer": {"resources": {"limits": {"memory": "much"}}}}, "limits/memory"),
        ({"podLabels": {"a": 1}}, "/podLabels/a"),
        ({"devicePlugin": {"memoryScaling": 0.5}}, "/devicePlugin/memoryScaling"),
        ({"devicePlugin": {"excludeGPUs": ["gpu1"]}}, "/devicePlugin/excludeGPUs"),
        ({"devicePlugin": {"computePartition": "CPX"}}, "/devicePlugin/computePartition"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_at_its_place(values: Values, where: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=where):
        render(values)
