# SPDX-License-Identifier: Apache-2.0
"""The policy's expressions, evaluated: what the plugin does passes, what a thief would do not."""

from __future__ import annotations

import copy
from typing import Any

import celpy
import pytest
from celpy.celtypes import StringType

from deviceplugin import codec, node
from tests.unit.charts.rendered import VARIANTS, only, render

Json = dict[str, Any]

POLICY = only(render(VARIANTS["guarded"]), "ValidatingAdmissionPolicy")["spec"]
USER = "system:serviceaccount:gpu-system:rf-ringfence"
NODE_NAME = "authentication.kubernetes.io/node-name"
ENVIRONMENT = celpy.Environment()


def evaluate(expression: str, activation: Json) -> Any:
    # join is of Kubernetes' own library.
    program = ENVIRONMENT.program(
        ENVIRONMENT.compile(expression), {"join": lambda words, by: StringType(by.join(words))}
    )
    return program.evaluate({name: celpy.json_to_cel(value) for name, value in activation.items()})


def refusals(old: Json, new: Json, request: Json) -> list[str]:
    """The messages of an update that the policy is asked about; none: it passes."""
    activation: Json = {"object": new, "oldObject": old, "request": request}
    if not all(evaluate(item["expression"], activation) for item in POLICY["matchConditions"]):
        return []
    activation["variables"] = {}
    for variable in POLICY["variables"]:
        value = evaluate(variable["expression"], activation)
        activation["variables"][variable["name"]] = value
    found = []
    for item in POLICY["validations"]:
        if not evaluate(item["expression"], activation):
            message = item.get("messageExpression")
            found.append(evaluate(message, activation) if message else item["message"])
    return [str(message) for message in found]


def request(kind: str, at: str | None = "n1", user: str = USER) -> Json:
    extra = {} if at is None else {NODE_NAME: [at]}
    return {"kind": {"kind": kind}, "userInfo": {"username": user, "extra": extra}}


def pod(**annotations: str) -> Json:
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"app": "a"}, "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    }


def a_node(**annotations: str) -> Json:
    return {
        "kind": "Node",
        "metadata": {"name": "n1", "annotations": annotations},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {}},
    }


def annotated(item: Json, name: str, value: str | None) -> Json:
    changed = copy.deepcopy(item)
    if value is None:
        del changed["metadata"]["annotations"][name]
    else:
        changed["metadata"].setdefault("annotations", {})[name] = value
    return changed


@pytest.mark.parametrize("name", [codec.TO_ALLOCATE, codec.CU_ALLOCATED, codec.BIND_PHASE])
def test_what_the_plugin_writes_on_a_pod_passes(name: str) -> None:
    before = pod(**{codec.BIND_PHASE: "allocating", "other": "x"})
    assert refusals(before, annotated(before, name, "new"), request("Pod")) == []


@pytest.mark.parametrize("name", [codec.NODE_REGISTER, codec.NODE_LOCK, node.GROUPS])
def test_what_the_plugin_writes_on_its_node_passes(name: str) -> None:
    before = a_node(**{codec.NODE_LOCK: "held", "other": "x"})
    assert refusals(before, annotated(before, name, "new"), request("Node")) == []
    assert refusals(before, annotated(before, codec.NODE_LOCK, None), request("Node")) == []
    bare = a_node()
    del bare["metadata"]["annotations"]
    assert refusals(bare, annotated(bare, name, "new"), request("Node")) == []


def test_the_capacity_of_its_node_passes_and_its_conditions_do_not() -> None:
    before, after = a_node(), a_node()
    after["status"]["capacity"] = {"amd.com/gpumem": "1"}
    assert refusals(before, after, request("Node")) == []
    after["status"]["conditions"][0]["status"] = "False"
    assert refusals(before, after, request("Node")) == [
        "the device plugin may change nothing but annotations"
    ]


@pytest.mark.parametrize("at", ["n2", None], ids=["another node", "a token without a node"])
@pytest.mark.parametrize("kind", ["Pod", "Node"])
def test_a_token_of_elsewhere_is_refused(kind: str, at: str | None) -> None:
    before = pod() if kind == "Pod" else a_node()
    name = codec.BIND_PHASE if kind == "Pod" else codec.NODE_LOCK
    (message,) = refusals(before, annotated(before, name, "x"), request(kind, at))
    assert "may change only that node and its pods" in message


@pytest.mark.parametrize(
    ("name", "value"), [("other", "y"), ("other", None), ("hami.io/vgpu-node", "n1")]
)
def test_an_annotation_of_somebody_else_is_refused(name: str, value: str | None) -> None:
    before = pod(other="x")
    (message,) = refusals(before, annotated(before, name, value), request("Pod"))
    assert "only the annotations hami.io/amd-devices-to-allocate" in message


@pytest.mark.parametrize("field", ["labels", "image", "finalizers", "taints"])
def test_anything_but_annotations_is_refused(field: str) -> None:
    before = a_node() if field == "taints" else pod()
    after = copy.deepcopy(before)
    match field:
        case "labels":
            after["metadata"]["labels"]["app"] = "b"
        case "image":
            after["spec"]["containers"][0]["image"] = "evil"
        case "finalizers":
            after["metadata"]["finalizers"] = ["stay"]
        case "taints":
            after["spec"]["taints"] = []
    assert refusals(before, after, request(before["kind"])) == [
        "the device plugin may change nothing but annotations"
    ]


def test_others_are_none_of_its_business() -> None:
    before = pod()
    changed = annotated(before, "other", "x")
    assert refusals(before, changed, request("Pod", user="system:node:n1")) == []
