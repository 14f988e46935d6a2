# SPDX-License-Identifier: Apache-2.0
"""Values that a tired hand writes: each is rendered into what an API server takes, or refused with
a line that names it. Nothing in between: no half of a template, no error of a template engine."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.unit.charts.rendered import CHART, REMOVED, Object, Values, notes, only, render
from tests.unit.charts.test_objects import CUSTOM, NEWEST, mistakes
from tests.unit.charts.test_remove import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text())
ALL_ON: Values = {
    "openshift": {"enabled": True},
    "admissionPolicy": "on",
    "networkPolicy": {"enabled": True},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
        "tokenSecret": {"name": "123", "key": "1"},
    },
    "priorityClassName": "456",
    "serviceAccount": {"name": "789"},
}
"""With every kind of object, and names that YAML takes for numbers."""


def every_key(values: Values, *path: str) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from every_key(value, *path, key)


def nested(path: tuple[str, ...], value: object) -> Values:
    return {path[0]: nested(path[1:], value) if path[1:] else value}


def merged(one: Values, other: Values) -> Values:
    """Both, as Helm takes them together: the other's where they differ."""
    both = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict):
            both[key] = merged(one[key], other[key])
    return both


def taken(objects: list[Object]) -> None:
    """Fails for an object that an API server would refuse."""
    for item in objects:
        if item["kind"] in CUSTOM:
            assert not mistakes(item)
        else:
            kubernetes_validate.validate(item, NEWEST, strict=True)


@pytest.mark.parametrize("path", list(every_key(DEFAULTS)), ids=".".join)
def test_a_key_with_nothing_behind_it_is_refused_by_name_or_means_nothing(
    path: tuple[str, ...],
) -> None:
    """`metrics:` with its values commented out is null, which takes the defaults away."""
    try:
        objects = render(nested(path, None))
    except helm_python.HelmError as error:
        said = str(error)
    else:
        said = f"missing property '{path[-1]}'"
        taken(objects)
        for container in only(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]:
            empty = {one for one in container["args"] if one.endswith("=")}
            assert empty <= {"--compute-partition="}
    assert f"missing property '{path[-1]}'" in said


@pytest.mark.parametrize("name", ["a123", "true", "null", "1e3", "0x1f", "my.release", "a" * 53])
@pytest.mark.parametrize("values", [ALL_ON, {**ALL_ON, **REMOVED}], ids=["on", "removed"])
def test_a_release_of_any_name_has_objects_with_that_name(name: str, values: Values) -> None:
    values = {**values, "fullnameOverride": "" if name[0].isalpha() and "." not in name else "rf"}
    objects = render(values, "1.30", name=name, namespace="123")
    taken(objects)
    for item in objects:
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == name
        assert item["metadata"].get("namespace", "123") == "123"


@pytest.mark.parametrize("key", ["nameOverride", "fullnameOverride"])
def test_a_number_is_a_name(key: str) -> None:
    taken(render({key: "123", "namespace": {"create": True}}, name="9", namespace="123"))


def test_an_annotation_is_there_once_and_the_users_unless_the_pod_would_not_run() -> None:
    apparmor = "container.apparmor.security.beta.kubernetes.io/enforcer"
    wanted = {"prometheus.io/port": "1", "kubectl.kubernetes.io/default-container": "x"}
    values = {
        "metrics": {"podAnnotations": True},
        "enforcer": {"privileged": False},
        "podAnnotations": {**wanted, apparmor: "localhost/own"},
    }
    template = only(render(values, "1.29"), "DaemonSet")["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        **wanted,
        apparmor: "unconfined",
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kubeletDir": "/var/../x"}, "/kubeletDir"),
        ({"hookDir": "/a/."}, "/hookDir"),
        ({"devicePlugin": {"metricsExporterDir": "/a\n  x: y"}}, "metricsExporterDir"),
        ({"devicePlugin": {"cdi": {"enabled": True, "specDir": "/a: b # c"}}}, "specDir"),
        ({"serviceAccount": {"name": "a: b"}}, "/serviceAccount/name"),
        ({"priorityClassName": "a: {b"}, "/priorityClassName"),
        ({"metrics": {"tokenSecret": {"name": "a\nb: c"}}}, "/metrics/tokenSecret/name"),
        ({"image": {"repository": "r.example/rf:1.2"}}, "/image/repository"),
        ({"metrics": {"podMonitor": {"interval": "15s15s"}}}, "/metrics/podMonitor/interval"),
        ({"metrics": {"podMonitor": {"interval": ""}}}, "/metrics/podMonitor/interval"),
        ({"networkPolicy": {"scrapers": [{}]}}, "/networkPolicy/scrapers/0"),
        ({"enforcer": {"resources": {"limits": {"cpu": -1}}}}, "/enforcer/resources/limits/cpu"),
        ({"podLabels": {"a b": "c"}}, "invalid propertyName 'a b'"),
        ({"podLabels": {"a/b/c": "d"}}, "invalid propertyName 'a/b/c'"),
        ({"podLabels": {"A.example/b": "c"}}, "invalid propertyName 'A.example/b'"),
        ({"podLabels": {"a" * 64: "c"}}, "invalid propertyName 'aa"),
        ({"podLabels": {"a": "b c"}}, "/podLabels/a"),
        ({"podLabels": {"a": "b" * 64}}, "/podLabels/a"),
        ({"podLabels": {"a": "b-"}}, "/podLabels/a"),
        ({"podAnnotations": {"-a": "b"}}, "invalid propertyName '-a'"),
        ({"serviceAccount": {"annotations": {"a_b/c": "d"}}}, "invalid propertyName 'a_b/c'"),
        ({"nodeSelector": {"a/": "b"}}, "invalid propertyName 'a/'"),
        ({"nodeSelector": {"a": "b/c"}}, "/nodeSelector/a"),
        ({"metrics": {"podMonitor": {"labels": {"a": "b c"}}}}, "/metrics/podMonitor/labels/a"),
        ({"metrics": {"dashboards": {"labels": {"a b": "c"}}}}, "invalid propertyName 'a b'"),
        ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "/tolerations/0/key"),
        ({"tolerations": [{"key": "a", "value": "b c"}]}, "/tolerations/0/value"),
        ({"imagePullSecrets": [{"name": "A"}]}, "/imagePullSecrets/0/name"),
        ({"serviceAccount": {"name": "a..b"}}, "/serviceAccount/name"),
    ],
)
def test_what_no_object_could_be_made_of_is_refused_by_the_schema(
    values: Values, words: str
) -> None:
    with pytest.raises(
        helm_python.HelmError, match=re.escape(f"- at '{words}'" if words[0] == "/" else words)
    ):
        render(values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"metrics": {"enabled": False, "prometheusRule": {"enabled": True}}},
            "metrics.enabled is false, but metrics.prometheusRule.enabled is set",
        ),
        (
            {"metrics": {"enabled": False, "podAnnotations": True, "tokenSecret": {"name": "a"}}},
            "but metrics.podAnnotations, metrics.tokenSecret.name is set",
        ),
        (
            {"metrics": {"podMonitor": {"enabled": True, "interval": "5s"}}},
            "metrics.podMonitor.scrapeTimeout is 10s and interval is 5s",
        ),
        (
            {
                "metrics": {
                    "serviceMonitor": {"enabled": True, "scrapeTimeout": "1m1ms", "interval": "1m"}
                }
            },
            "set scrapeTimeout to 1m or less",
        ),
        ({"hookDir": "/opt"}, "hookDir is /opt: it is mounted at the same path"),
        ({"hookDir": "/usr/lib/python3"}, "would hide what they are made of"),
        ({"hookDir": "/usr/local/bin"}, "would hide what they are made of"),
        ({"hookDir": "/run/hook"}, "be gone after a reboot"),
        ({"hookDir": "/var/run/hook"}, "be gone after a reboot"),
        (
            {"devicePlugin": {"cdi": {"enabled": True, "specDir": "/etc/ssl"}}},
            "where does your runtime look for CDI specs?",
        ),
        (
            {"hookDir": "/var/lib/kubelet/device-plugins"},
            "device-plugins, and the chart itself mounts /var/lib/kubelet/device-plugins: one",
        ),
        (
            {"kubeletDir": "/var/lib/ringfence"},
            "and kubeletDir mounts /var/lib/ringfence/pod-resources: one would hide the other",
        ),
        (
            {"enforcer": {"resources": {"limits": {"memory": "64Mi"}}}},
            "enforcer.resources.limits.memory is 64Mi, and requests.memory is 96Mi",
        ),
        ({"enforcer": {"resources": {"limits": {"memory": 96e6}}}}, "requests.memory is 96Mi"),
        (
            {"devicePlugin": {"resources": {"limits": {"cpu": 0.009}}}},
            "devicePlugin.resources.limits.cpu is 0.009, and requests.cpu is 10m",
        ),
        (
            {"tolerations": [{"key": "a"}, {"key": "a", "operator": "Exists", "value": "b"}]},
            "tolerations[1] has operator Exists and value b",
        ),
        ({"tolerations": [{"value": "b"}]}, "tolerations[0] has no key and operator Equal"),
        (
            {"tolerations": [{"operator": "Exists", "tolerationSeconds": 0}]},
            'tolerations[0] has tolerationSeconds and effect ""',
        ),
        (
            {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 9}]},
            'tolerations[0] has tolerationSeconds and effect "NoSchedule"',
        ),
        ({"serviceAccount": {"name": "default"}}, "the account of every pod of the namespace"),
        (
            {"serviceAccount": {"create": False, "name": "default"}},
            "the account of every pod of the namespace",
        ),
        (
            {"devicePlugin": {"scheduler": "none", "memoryScaling": 1.5, "splitCount": 2}},
            "but devicePlugin.memoryScaling=1.5, devicePlugin.splitCount=2 is set",
        ),
        (
            {"devicePlugin": {"scheduler": "none", "hipLogLevel": 1}},
            "devicePlugin.scheduler is none, but devicePlugin.hipLogLevel=1 is set",
        ),
        (
            {"devicePlugin": {"hipLogLevel": 3}, "hookDir": ""},
            "devicePlugin.hipLogLevel is 3 and hookDir is empty",
        ),
    ],
)
def test_what_would_not_work_is_refused_with_the_reason(values: Values, words: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=re.escape(words)):
        render(values)


PLACES = (
    *("/srv/a", "/opt/a", "/etc/cdi", "/usr/local/a", "/var/lib", "/var/lib/kubelet"),
    *("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources/a"),
    *("/var/lib/ringfence", "/var/lib/ringfence/a", "/var/lib/ringfence-hook"),
    *("/var/lib/amd-metrics-exporter", "/var/lib/amd-metrics-exporter/a"),
    *("/var/lib/docker/containers", "/var/run", "/var/run/cdi", "/var/run/secrets/a"),
    *("/run/ringfence", "/var/run/ringfence", "/var/run/ringfence/a"),
    *("/run/containerd", "/run/containerd/io.containerd.runtime.v2.task"),
)
CDI: tuple[str, ...] = ("devicePlugin", "cdi", "specDir")
HOOK: tuple[str, ...] = ("hookDir",)
WITH_CDI: Values = {"devicePlugin": {"cdi": {"enabled": True}}}


def apart(objects: list[Object]) -> None:
    """Fails where a container has a directory of the host in or in the place of another one."""
    spec = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    for container in spec["initContainers"] + spec["containers"]:
        found = [
            PurePosixPath(re.sub("^/var/run/", "/run/", mount["mountPath"]))
            for mount in container.get("volumeMounts", ())
        ]
        # The kernel's own file systems lie in /sys on every host.
        ours = [path for path in found if not path.is_relative_to("/sys")]
        for index, path in enumerate(ours):
            for other in ours[index + 1 :]:
                assert not path.is_relative_to(other)
                assert not other.is_relative_to(path)


@pytest.mark.parametrize(
    "path",
    [
        *(HOOK, CDI, ("kubeletDir",), ("devicePlugin", "metricsExporterDir")),
        *(("containerRuntime", name) for name in DEFAULTS["containerRuntime"]),
    ],
    ids=".".join,
)
def test_no_value_can_mount_a_directory_over_another_one(path: tuple[str, ...]) -> None:
    refusals = []
    for place in PLACES:
        values = merged(WITH_CDI, nested(path, place))
        for more in ({}, REMOVED):
            try:
                objects = render({**values, **more})
            except helm_python.HelmRenderError as error:
                refusals.append(str(error))
            else:
                taken(objects)
                apart(objects)
    assert 0 < len(refusals) < 2 * len(PLACES)
    assert all(".".join(path) in said for said in refusals)


@pytest.mark.parametrize(
    ("hook", "cdi", "fits"),
    [
        ("/srv/a", "/srv/a", False),
        ("/srv/a", "/srv/a/b", False),
        ("/srv/a/b", "/srv/a", False),
        ("/srv/a", "/srv/ab", True),
    ],
)
def test_two_values_cannot_mean_the_same_directory(hook: str, cdi: str, fits: bool) -> None:
    values = merged(WITH_CDI, merged(nested(CDI, cdi), nested(HOOK, hook)))
    if fits:
        apart(render(values))
        return
    with pytest.raises(helm_python.HelmRenderError) as caught:
        render(values)
    assert f"hookDir mounts {hook}" in str(caught.value)
    assert f"devicePlugin.cdi.specDir mounts {cdi}" in str(caught.value)
    # What is not switched on is not mounted.
    assert render({**values, "devicePlugin": {"cdi": {"specDir": cdi}}})


@pytest.mark.parametrize("name", ["9gpu", "my.release"])
def test_a_name_that_no_service_can_have_is_refused_where_there_is_one(name: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=f"would be called {name}-ringfence-metr"):
        render({"metrics": {"serviceMonitor": {"enabled": True}}}, name=name)
    taken(render({"metrics": {"podMonitor": {"enabled": True}}}, name=name))


@pytest.mark.parametrize(
    "values",
    [
        {"metrics": {"podMonitor": {"enabled": True, "interval": "1d", "scrapeTimeout": "1h30m"}}},
        {"enforcer": {"resources": {"limits": {"cpu": 0.5}}}},
        {"enforcer": {"resources": {"limits": {"memory": "0.1Gi"}}}},
        {"enforcer": {"resources": {"limits": {"memory": 96 * 2**20, "cpu": "20m"}}}},
        {"enforcer": {"resources": {"requests": {"memory": "1500m"}, "limits": {"memory": 2}}}},
        {"podLabels": {"a.example/b_c.d-E": "x_Y.z-0", "0": ""}},
        {"podAnnotations": {"A.example/b": "any text: at all"}},
        {
            "tolerations": [
                {"operator": "Exists"},
                {"key": "a.example/b", "value": "c"},
                {"key": "a", "effect": "NoExecute", "tolerationSeconds": 0},
            ]
        },
        {"devicePlugin": {"scheduler": "none", "memoryScaling": 1, "splitCount": 0}},
        {"hookDir": "/var/running/hook", "devicePlugin": {"cdi": {"enabled": True}}},
        {"hookDir": "/usr/local/vgpu"},
        {"image": {"repository": "registry.example:5000/gpu/rf"}},
        {"kubeletDir": "/var/snap/microk8s/common/var/lib/kubelet"},
        {"hookDir": "/srv/.hidden/hook.d"},
        {"networkPolicy": {"enabled": True, "scrapers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
    ],
)
def test_what_is_meant_well_is_taken(values: Values) -> None:
    taken(render(values))


def of_namespace(config: helm_python.Config, name: str) -> dict[str, str]:
    values = {"namespace": {"create": True}}
    with helm_python.Chart.load(CHART) as chart:
        return config.render(chart, values, name=name, namespace="gpu-system")


def test_the_namespace_is_not_made_where_it_is_there_or_is_the_clusters() -> None:
    """Helm refuses it too, and does not say what to do. With it goes all that is in it."""
    there: Object = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": "gpu-system",
            "annotations": {"meta.helm.sh/release-name": "ringfence"},
        },
    }
    with cluster(namespaces=[there]) as config:
        assert of_namespace(config, "ringfence")
        with pytest.raises(
            helm_python.HelmRenderError, match="kubectl label ns gpu-system pod-sec"
        ):
            of_namespace(config, "other")
    with cluster() as config:
        assert of_namespace(config, "other")
    for name in ("default", "kube-system"):
        with pytest.raises(helm_python.HelmRenderError, match="which is the cluster's"):
            render({"namespace": {"create": True}}, namespace=name)


def test_the_notes_tell_of_what_was_installed() -> None:
    assert "decided by a HAMi scheduler" in notes()
    alone = notes({"devicePlugin": {"scheduler": "none"}})
    assert "HAMi" not in alone
    assert "nothing is shared or limited" in alone
    assert "password is the token in Secret seen" in notes(
        {"metrics": {"tokenSecret": {"name": "seen"}}}
    )
    rules: dict[str, Any] = {"prometheusRule": {"enabled": True}}
    assert 'count on a label "node"' in notes({"metrics": rules})
    assert 'label "node"' not in notes({"metrics": {**rules, "podMonitor": {"enabled": True}}})
    assert "\n\n\n" not in alone


@pytest.mark.parametrize(
    ("version", "state", "kubelet"),
    [
        ("1.31.4+k3s1", "/run/k3s/containerd", ""),
        ("1.31.4+rke2r1", "/run/k3s/containerd", ""),
        ("1.31.4+k0s.0", "/run/k0s/containerd", "/var/lib/k0s/kubelet"),
        ("1.31.4", "", ""),
        ("1.31.4-eks-7f9249a", "", ""),
    ],
)
def test_a_distribution_that_keeps_things_elsewhere_is_known_by_its_version(
    version: str, state: str, kubelet: str
) -> None:
    told = notes({}, version)
    assert told.count("WARNING") == len([one for one in (state, kubelet) if one])
    assert f"its state in {state}" in told or not state
    assert f"kubelet is in {kubelet}" in told or not kubelet
    assert ("No\npod of the DaemonSet would start" in told) == bool(kubelet)
    right: Values = {"containerRuntime": {"containerdStateDir": state or "/run/containerd"}}
    assert "WARNING" not in notes({**right, "kubeletDir": kubelet or "/var/lib/kubelet"}, version)


def test_openshift_is_known_by_its_constraints() -> None:
    apis = ["security.openshift.io/v1/SecurityContextConstraints"]
    assert "WARNING: this is OpenShift" in notes({}, apis=apis)
    assert "WARNING" not in notes({"openshift": {"enabled": True}}, apis=apis)
    assert "WARNING" not in notes()
