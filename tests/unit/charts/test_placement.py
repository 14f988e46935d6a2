# SPDX-License-Identifier: Apache-2.0
"""Where the pods go, what goes before them, and what a cluster lets them do."""

from __future__ import annotations

import re

import helm_python
import pytest

from tests.unit.charts.rendered import REMOVED, VARIANTS, Object, Values, only, render

FROM_OUR_OWN = VARIANTS["of one's own"]


def pod_spec(values: Values | None = None) -> Object:
    spec: Object = only(render(values), "DaemonSet")["spec"]["template"]["spec"]
    return spec


def test_node_feature_discovery_finds_every_kind_of_amd_gpu_and_keeps_other_affinity() -> None:
    affinity = pod_spec(FROM_OUR_OWN)["affinity"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = [
        expression["key"]
        for term in required["nodeSelectorTerms"]
        for expression in term["matchExpressions"]
    ]
    # Terms of their own: one of them is enough.
    assert len(required["nodeSelectorTerms"]) == len(labels) == 3
    assert labels == [
        f"feature.node.kubernetes.io/pci-{kind}_1002.present" for kind in ("0300", "0380", "1200")
    ]
    assert "podAntiAffinity" in affinity
    assert "affinity" not in pod_spec()


def test_a_class_of_our_own_is_made_and_used() -> None:
    found = only(render(FROM_OUR_OWN), "PriorityClass")
    assert pod_spec(FROM_OUR_OWN)["priorityClassName"] == found["metadata"]["name"]
    assert (found["value"], found["globalDefault"]) == (5, False)


def test_the_namespace_allows_what_the_pods_are() -> None:
    labels = only(render(FROM_OUR_OWN), "Namespace")["metadata"]["labels"]
    for mode in ("enforce", "audit", "warn"):
        assert labels[f"pod-security.kubernetes.io/{mode}"] == "privileged"


def test_the_network_policy_lets_scrapers_in_and_the_api_server_be_reached() -> None:
    objects = render(VARIANTS["guarded"])
    policy = only(objects, "NetworkPolicy")["spec"]
    labels = only(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert rule["from"] == VARIANTS["guarded"]["networkPolicy"]["scrapers"]
    (out,) = policy["egress"]
    assert [port["port"] for port in out["ports"]] == [443, 6443]
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_without_metrics_nothing_comes_in() -> None:
    policy = only(render(VARIANTS["closed network"]), "NetworkPolicy")["spec"]
    assert policy["ingress"] == []


@pytest.mark.parametrize("values", [{}, VARIANTS["token"]], ids=["without token", "with token"])
def test_openshift_allows_these_pods_what_they_ask_for_and_no_other_kind_of_volume(
    values: Values,
) -> None:
    objects = render({**VARIANTS["openshift"], **values})
    constraints = only(objects, "SecurityContextConstraints")
    spec = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert constraints["users"] == [
        f"system:serviceaccount:gpu-system:{spec['serviceAccountName']}"
    ]
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert set(constraints["volumes"]) == kinds
    assert constraints["allowHostPID"] is spec["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & set(spec)
    assert not constraints["allowHostNetwork"]
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not any("hostPort" in port for port in container.get("ports", []))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, None),
        ({"devicePlugin": {"seLinuxType": "spc_t"}}, "spc_t"),
        # There a container's own type is kept from the host's directories in any case.
        (VARIANTS["openshift"], "spc_t"),
        ({**VARIANTS["openshift"], "devicePlugin": {"seLinuxType": "own_t"}}, "own_t"),
    ],
)
@pytest.mark.parametrize(
    ("more", "writers"),
    [({}, {"install-hook", "device-plugin"}), (REMOVED, {"clean", "remove-hook"})],
    ids=["installed", "removed"],
)
def test_who_writes_to_the_host_without_a_right_gets_the_selinux_type(
    more: Values, writers: set[str], values: Values, wanted: str | None
) -> None:
    spec = pod_spec({**values, **more})
    types = {
        item["name"]: item["securityContext"].get("seLinuxOptions")
        for item in spec["initContainers"] + spec["containers"]
    }
    assert {name for name, given in types.items() if given} == (writers if wanted else set())
    assert all(given == {"type": wanted} for given in types.values() if given)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"priorityClass": {"create": True}}, 'set priorityClassName to ""'),
        (
            {"enforcer": {"layers": "dmem", "cuMasks": "enforce"}},
            "enforcer.layers is dmem, but enforcer.cuMasks=enforce is set: only the gate can",
        ),
        (
            {"enforcer": {"layers": "dmem", "refuseImports": True, "refusePassed": True}},
            "but enforcer.refuseImports, enforcer.refusePassed is set",
        ),
        (
            {"nodeFeatureDiscovery": True, "affinity": {"nodeAffinity": {"a": 1}}},
            "two sets of terms would mean one or the other",
        ),
        (
            {"devicePlugin": {"memoryScaling": 2}, "hookDir": ""},
            "devicePlugin.memoryScaling is 2 and hookDir is empty",
        ),
    ],
)
def test_values_that_cannot_go_together_are_refused_with_the_reason(
    values: Values, words: str
) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=re.escape(words)):
        render(values)


def test_gpus_are_not_given_by_names_that_no_kubelet_of_the_cluster_knows() -> None:
    values = {"devicePlugin": {"cdi": {"enabled": True}}}
    with pytest.raises(helm_python.HelmRenderError, match="pass over CDI names"):
        render(values, "1.27")
    assert render(values, "1.28")
    assert render({}, "1.27")


def test_a_policy_is_not_asked_of_a_cluster_that_has_none() -> None:
    values: Values = {"admissionPolicy": "on"}
    with pytest.raises(helm_python.HelmRenderError, match=re.escape("exists since 1.30")):
        render(values, "1.29")
    assert render(values, "1.30")
