# SPDX-License-Identifier: Apache-2.0
"""Every object against the API's own schemas, and the rules that schemas do not state."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.testbed.openshift import schema
from tests.unit.charts.rendered import REMOVED, VARIANTS, Object, Values, only, render

OLDEST = "1.25"
"""Chart.yaml's kubeVersion."""
POLICIES = "1.30"
"""Since when there are ValidatingAdmissionPolicies."""
CDI = "1.28"
"""Since when a kubelet may know of CDI."""
NEWEST = kubernetes_validate.latest_version()
ALL = {
    **VARIANTS,
    "removed": REMOVED,
    "removed, not privileged": {**REMOVED, **VARIANTS["not privileged"]},
    "removed, with CDI": {**REMOVED, **VARIANTS["modes"]},
}
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io"
OPERATOR = "monitoring.coreos.com"
CUSTOM = {
    "ServiceMonitor": OPERATOR,
    "PodMonitor": OPERATOR,
    "PrometheusRule": OPERATOR,
    "SecurityContextConstraints": "security.openshift.io",
}
"""Kinds that Kubernetes itself does not know, and their groups."""


def oldest(values: Values) -> str:
    """The oldest version of Kubernetes that the values are for."""
    if values.get("admissionPolicy") == "on":
        return POLICIES
    return CDI if values.get("devicePlugin", {}).get("cdi") else OLDEST


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_the_oldest_and_the_newest_api_server_take_what_is_rendered_for_them(
    values: Values,
) -> None:
    for version in (oldest(values), NEWEST):
        for item in render(values, version):
            if item["kind"] not in CUSTOM:
                # Strict: a field that the server does not know is a mistake, not a wish.
                checked = kubernetes_validate.validate(item, version, strict=True)
                assert version.startswith(checked)


def test_a_field_that_no_server_knows_would_be_found() -> None:
    item = only(render(), "DaemonSet")
    item["spec"]["template"]["spec"]["containers"][0]["securityContext"]["priviledged"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="priviledged"):
        kubernetes_validate.validate(item, NEWEST, strict=True)


@cache
def custom(kind: str) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema(CUSTOM[kind], kind))


def mistakes(item: Object) -> list[str]:
    """What an API server that knows the kind would say against the object."""
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": item["metadata"]}, NEWEST, strict=True
    )
    assert item["apiVersion"] == f"{CUSTOM[item['kind']]}/v1"
    return [
        f"{error.json_path}: {error.message}" for error in custom(item["kind"]).iter_errors(item)
    ]


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_monitors_rules_and_constraints_are_what_their_schemas_say(values: Values) -> None:
    assert not [
        said for item in render(values) if item["kind"] in CUSTOM for said in mistakes(item)
    ]


def test_every_kind_that_kubernetes_does_not_know_is_in_the_matrix() -> None:
    kinds = {item["kind"] for values in ALL.values() for item in render(values)}
    assert kinds >= CUSTOM.keys()


@pytest.mark.parametrize(
    ("which", "kind", "path", "value", "said"),
    [
        ("service monitor", "ServiceMonitor", ("spec", "endpoints", 0, "scheem"), "http", "scheem"),
        ("service monitor", "ServiceMonitor", ("spec", "endpoints", 0, "interval"), "15 s", "15 s"),
        ("pod monitor", "PodMonitor", ("spec", "podMetricsEndpoints", 0, "path"), 1, "path"),
        ("observed", "PrometheusRule", ("spec", "groups", 0, "rules", 0, "fore"), "1m", "fore"),
        ("openshift", "SecurityContextConstraints", ("allowHostPid",), True, "allowHostPid"),
        ("openshift", "SecurityContextConstraints", ("volumes",), "hostPath", "volumes"),
    ],
)
def test_a_mistake_in_one_of_them_would_be_found(
    which: str, kind: str, path: tuple[str | int, ...], value: object, said: str
) -> None:
    item = only(render(VARIANTS[which]), kind)
    assert not mistakes(item)
    place: Any = item
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (found,) = mistakes(item)
    assert said in found


@pytest.mark.parametrize("version", [OLDEST, "1.29", "1.30", NEWEST])
@pytest.mark.parametrize(
    ("which", "name"),
    [
        ({}, "device-plugin"),
        ({}, "enforcer"),
        (REMOVED, "unload"),
        (REMOVED, "clean"),
    ],
)
def test_who_writes_pins_is_unconfined_in_the_words_of_the_api_server(
    which: Values, name: str, version: str
) -> None:
    """An annotation up to 1.29, a field since 1.30, which takes no notice of one later on."""
    values = {**which, **VARIANTS["not privileged"]}
    template = only(render(values, version), "DaemonSet")["spec"]["template"]
    spec = template["spec"]
    (container,) = [
        item for item in spec["initContainers"] + spec["containers"] if item["name"] == name
    ]
    said = {
        template["metadata"].get("annotations", {}).get(f"{APP_ARMOR}/{name}"),
        container["securityContext"].get("appArmorProfile", {}).get("type"),
    } - {None}
    if name in {"enforcer", "unload"}:
        assert said == ({"unconfined"} if version in {OLDEST, "1.29"} else {"Unconfined"})
    else:
        assert not said


@pytest.mark.parametrize(
    ("version", "apis", "there"),
    [
        (OLDEST, [], False),
        ("1.29", [], False),
        # As Helm asks a cluster that has them by a switch, and as others tell Helm of one.
        ("1.29", ["admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"], True),
        (POLICIES, [], True),
        (NEWEST, [], True),
    ],
)
def test_the_policy_is_there_where_the_cluster_has_such_even_if_only_its_version_is_known(
    version: str, apis: list[str], there: bool
) -> None:
    def kinds(mode: str) -> set[str]:
        items = render({"admissionPolicy": mode}, version, apis=apis)
        return {item["kind"] for item in items if item["kind"].startswith("Validating")}

    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert kinds("auto") == (policy if there else set())
    assert kinds("off") == set()


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", [{}, REMOVED], ids=["installed", "removed"])
def test_a_privileged_container_has_no_profile_to_take_off(values: Values, version: str) -> None:
    text = json.dumps(render(values, version)).lower()
    assert "apparmor" not in text


def containers(values: Values) -> list[Object]:
    spec: dict[str, Any] = only(render(values), "DaemonSet")["spec"]["template"]["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_no_container_is_privileged_and_without_escalation(values: Values) -> None:
    """The API server refuses the two together, and a new capability of CAP_SYS_ADMIN with it."""
    for container in containers(values):
        security = container["securityContext"]
        escalates = security.get("allowPrivilegeEscalation", True)
        added = security.get("capabilities", {}).get("add", [])
        if security.get("privileged") or "SYS_ADMIN" in added:
            assert escalates, container["name"]


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_names_that_must_be_unique_are(values: Values) -> None:
    spec = only(render(values), "DaemonSet")["spec"]["template"]["spec"]
    names = [item["name"] for item in containers(values)]
    assert len(set(names)) == len(names)
    for volume in spec["volumes"]:
        assert len(volume["name"]) <= 63


# What the Pod Security Standards forbid at "restricted", by container: the plugin offends against
# none of it but the user and the pod's host directories and process ids.
def test_the_plugin_is_restricted_in_all_but_its_user() -> None:
    for values in VARIANTS.values():
        (plugin,) = [item for item in containers(values) if item["name"] == "device-plugin"]
        security = plugin["securityContext"]
        assert security["privileged"] is False
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["runAsUser"] == 0
        assert not any("hostPort" in port for port in plugin.get("ports", []))


def test_no_level_below_privileged_would_take_the_pod_and_it_asks_for_no_more() -> None:
    spec = only(render(), "DaemonSet")["spec"]["template"]["spec"]
    # Baseline forbids these two, which both containers' work rests on.
    assert spec["hostPID"] is True
    assert any("hostPath" in volume for volume in spec["volumes"])
    assert "hostNetwork" not in spec
    assert "hostIPC" not in spec
    assert "sysctls" not in spec.get("securityContext", {})
