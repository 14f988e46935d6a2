# SPDX-License-Identifier: Apache-2.0
"""The policy's expressions, evaluated: what the plugin does passes, what a thief would do not."""

from __future__ import annotations

import copy
from functools import cache
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


@cache
def program(expression: str) -> celpy.Runner:
    # join is of Kubernetes' own library.
    return ENVIRONMENT.program(
        ENVIRONMENT.compile(expression), {"join": lambda words, by: StringType(by.join(words))}
    )


def evaluate(expression: str, activation: Json) -> Any:
    given = {name: celpy.json_to_cel(value) for name, value in activation.items()}
    return program(expression).evaluate(given)


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


def metadata(name: str, annotations: Json) -> Json:
    return {
        "name": name,
        "uid": "1",
        "resourceVersion": "7",
        "creationTimestamp": None,
        "labels": {"app": "a"},
        "annotations": annotations,
        "managedFields": [{"manager": "kubelet"}],
    }


def pod(**annotations: str) -> Json:
    return {
        "kind": "Pod",
        "metadata": metadata("p", annotations),
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending"},
    }


def a_node(**annotations: str) -> Json:
    return {
        "kind": "Node",
        "metadata": metadata("n1", annotations),
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {"cpu": "8", "amd.com/gpu": "10", "amd.com/gpumem": "1"},
            "allocatable": {"cpu": "7500m", "amd.com/gpu": "10", "amd.com/gpumem": "1"},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "DiskPressure", "status": "False"},
            ],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"kubeletVersion": "v1.30.0"},
        },
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


KEYS = [node.GPU_MEMORY, node.GPU_CORES]
STATUS = (
    "of a node's status the device plugin may change only the capacity and allocatable of "
    "amd.com/gpumem and amd.com/gpucores"
)
REST = "the device plugin may change nothing but annotations"
GONE = "gone"


def changed(item: Json, path: tuple[str | int, ...], value: object) -> Json:
    """A copy with that value in that place; GONE: with nothing there."""
    copied = copy.deepcopy(item)
    place: Any = copied
    for step in path[:-1]:
        place = place[step]
    if value == GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("part", ["capacity", "allocatable"])
def test_the_sums_of_its_node_may_come_change_and_go(part: str, key: str) -> None:
    before = a_node()
    del before["status"][part][node.GPU_MEMORY]
    after = changed(before, ("status", part, key), "2")
    for old, new in ((before, after), (after, changed(after, ("status", part, key), "3"))):
        assert refusals(old, new, request("Node")) == []
        assert refusals(new, old, request("Node")) == []


@pytest.mark.parametrize("absent", ["status", "capacity", "allocatable"])
def test_the_sums_may_be_the_first_that_a_node_has(absent: str) -> None:
    path = ("status",) if absent == "status" else ("status", absent)
    before = changed(a_node(), path, GONE)
    sums = dict.fromkeys(KEYS, "1")
    after = changed(before, path, {"capacity": sums} if absent == "status" else sums)
    assert refusals(before, after, request("Node")) == []
    assert refusals(after, before, request("Node")) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("addresses", 0, "address"), "10.6.6.6"),
        (("addresses",), []),
        (("daemonEndpoints", "kubeletEndpoint", "Port"), 4194),
        (("nodeInfo", "kubeletVersion"), "v1.0.0"),
        (("capacity", "cpu"), "800"),
        (("capacity", "amd.com/gpu"), "0"),
        (("capacity", "amd.com/gpu"), GONE),
        (("capacity", "example.com/other"), "1"),
        (("capacity",), GONE),
        (("capacity",), {}),
        (("allocatable", "amd.com/gpu"), "800"),
        (("allocatable", "cpu"), GONE),
        (("allocatable",), GONE),
        (("conditions", 0, "status"), "False"),
        (("conditions", 1), GONE),
        (("conditions",), GONE),
        (("images",), [{"names": ["evil"]}]),
        (("volumesAttached",), None),
        (("newerThanThisPolicy",), {"a": "b"}),
    ],
    ids=str,
)
def test_nothing_else_of_the_status_may_change(path: tuple[str | int, ...], value: object) -> None:
    before = a_node()
    after = changed(before, ("status", *path), value)
    assert refusals(before, after, request("Node")) == [STATUS]
    assert refusals(after, before, request("Node")) == [STATUS]


def test_the_status_may_not_go() -> None:
    assert refusals(a_node(), changed(a_node(), ("status",), GONE), request("Node")) == [STATUS]


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


@pytest.mark.parametrize(
    ("before", "path", "value"),
    [
        (pod(), ("metadata", "labels", "app"), "b"),
        (pod(), ("metadata", "labels"), GONE),
        (pod(), ("metadata", "finalizers"), ["stay"]),
        (pod(), ("metadata", "ownerReferences"), [{"kind": "Job", "name": "j"}]),
        (pod(), ("metadata", "newerThanThisPolicy"), None),
        (pod(), ("spec", "containers", 0, "image"), "evil"),
        (pod(), ("spec", "activeDeadlineSeconds"), 1),
        (a_node(), ("metadata", "labels", "app"), "b"),
        (a_node(), ("spec", "taints"), []),
        (a_node(), ("spec", "podCIDR"), GONE),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else str(value),
)
def test_anything_but_annotations_is_refused(
    before: Json, path: tuple[str | int, ...], value: object
) -> None:
    after = changed(before, path, value)
    assert refusals(before, after, request(before["kind"])) == [REST]
    assert refusals(after, before, request(before["kind"])) == [REST]


@pytest.mark.parametrize("before", [pod(), a_node()], ids=["pod", "node"])
def test_what_the_server_itself_writes_beside_an_annotation_passes(before: Json) -> None:
    name = codec.BIND_PHASE if before["kind"] == "Pod" else codec.NODE_LOCK
    after = annotated(before, name, "x")
    after["metadata"] |= {"resourceVersion": "8", "generation": 2}
    after["metadata"]["managedFields"].append({"manager": "ringfence"})
    assert refusals(before, after, request(before["kind"])) == []


def test_a_pod_of_no_node_and_a_token_of_no_pod_are_refused_with_the_reason() -> None:
    waiting = changed(pod(), ("spec", "nodeName"), GONE)
    after = annotated(waiting, codec.BIND_PHASE, "x")
    (message,) = refusals(waiting, after, request("Pod"))
    assert "of node n1 may change only that node and its pods" in message
    bare = request("Pod")
    del bare["userInfo"]["extra"]
    (message,) = refusals(pod(), annotated(pod(), codec.BIND_PHASE, "x"), bare)
    assert "may change only that node and its pods" in message
    assert len(refusals(waiting, after, bare)) == 1


def test_others_are_none_of_its_business() -> None:
    before = pod()
    after = annotated(before, "other", "x")
    assert refusals(before, after, request("Pod", user="system:node:n1")) == []
