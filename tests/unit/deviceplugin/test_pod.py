# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.pod import MALFORMED, Claim, Count, count_of, parse_node, parse_pod
from enforcer.model import ContainerKind

RESOURCE = "amd.com/gpu"


def container(name: str, limits: dict[str, object] | None, **more: object) -> dict[str, object]:
    return {"name": name, "resources": {"limits": limits}, **more}


def pod(**spec: object) -> dict[str, object]:
    return {
        "metadata": {
            "namespace": "default",
            "name": "pod",
            "uid": "1",
            "resourceVersion": "9",
            "annotations": {"hami.io/bind-phase": "allocating", "other": "x"},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize(
    ("conditions", "initialized"),
    [
        (None, False),
        ([], False),
        ([{"type": "Initialized", "status": "False"}], False),
        ([{"type": "Ready", "status": "True"}], False),
        ([{"type": "Initialized"}], False),
        (
            [{"type": "PodScheduled", "status": "True"}, {"type": "Initialized", "status": "True"}],
            True,
        ),
    ],
)
def test_a_pod_is_initialized_once_kubelet_says_so(conditions: object, initialized: bool) -> None:
    one = pod() | {"status": {"phase": "Pending", "conditions": conditions}}
    assert parse_pod(one).initialized is initialized


def test_claims_come_in_the_order_of_kubelets_admission() -> None:
    parsed = parse_pod(
        pod(
            nodeName="node",
            initContainers=[
                container("init", {RESOURCE: "1"}),
                container("side", {RESOURCE: "2"}, restartPolicy="Always"),
                container("none", None),
            ],
            containers=[
                container("cpu", {"cpu": "1"}),
                container("app", {RESOURCE: 4}, image="debian:12"),
                container("part", {"amd.com/cpx_nps4": "1", "amd.com/gpumem": "9"}),
            ],
        )
    )
    assert parsed.claims == (
        Claim("init", ContainerKind.INIT, 1),
        Claim("side", ContainerKind.SIDECAR, 2),
        Claim("app", ContainerKind.APP, 4, image="debian:12"),
        Claim("part", ContainerKind.APP, 1, "amd.com/cpx_nps4"),
    )
    assert parsed.title == "default/pod"
    assert parsed.annotations == {"hami.io/bind-phase": "allocating"}


@pytest.mark.parametrize(
    ("values", "priority"),
    [
        (["0"], 0),
        (["00"], 0),
        (["1"], 1),
        (["2147483647"], 1),
        (["9" * 5000], 1),
        ([], None),
        ([""], None),
        ([None], None),
        (["-1"], None),
        (["high"], None),
        (["\u0660"], None),
        # As a container gets it: the last.
        (["0", "1"], 1),
        (["1", None], None),
    ],
)
def test_the_class_of_a_containers_queues_is_what_hamis_webhook_wrote(
    values: list[str | None], priority: int | None
) -> None:
    env = [{"name": "OTHER", "value": "0"}]
    env += [{"name": "AMD_TASK_PRIORITY", **({"value": one} if one else {})} for one in values]
    (claim,) = parse_pod(
        pod(nodeName="node", containers=[container("app", {RESOURCE: 1}, env=env)])
    ).claims
    assert claim.priority == priority


def test_when_kubelet_wrote_the_status_is_its_ready_condition_s_heartbeat() -> None:
    def reported(*conditions: dict[str, object]) -> float:
        status = {"conditions": list(conditions)}
        metadata = {"name": "node", "resourceVersion": "1"}
        return parse_node({"metadata": metadata, "status": status}).reported

    other = {"type": "DiskPressure", "lastHeartbeatTime": "2026-01-01T00:00:09Z"}
    ready = {"type": "Ready", "lastHeartbeatTime": "1970-01-01T00:01:00Z"}
    assert reported(other, ready) == 60
    assert reported() == reported(other) == reported({"type": "Ready"}) == 0
    for text in (None, "", "yesterday", 5):
        assert reported({"type": "Ready", "lastHeartbeatTime": text}) == 0


def test_a_count_is_what_kubelet_says_it_can_give() -> None:
    status = {
        "capacity": {RESOURCE: "20", "amd.com/part": "4"},
        "allocatable": {RESOURCE: "10", "amd.com/odd": "1k"},
        "conditions": [{"type": "Ready", "lastHeartbeatTime": "1970-01-01T00:01:00Z"}],
    }
    metadata = {"name": "node", "resourceVersion": "1"}
    node = parse_node({"metadata": metadata, "status": status})
    assert count_of(node, RESOURCE) == Count(10, 60)
    for unknown in ("amd.com/part", "amd.com/odd", "amd.com/none"):
        assert count_of(node, unknown) is None
    assert count_of(None, RESOURCE) is None


def test_what_is_no_count_is_no_claim() -> None:
    for quantity in ("0", "-1", "1.5", "", "2k", None):
        spec = pod(containers=[container("app", {RESOURCE: quantity})])
        assert parse_pod(spec).claims == ()


def test_a_bare_pod_is_pending_and_not_deleted() -> None:
    item: dict[str, object] = {
        "metadata": {"namespace": "n", "name": "p", "uid": "1", "resourceVersion": "1"}
    }
    parsed = parse_pod(item)
    assert (parsed.phase, parsed.node, parsed.deleted, parsed.ended) == (
        "Pending",
        "",
        False,
        False,
    )


def test_a_pod_on_its_way_out_is_deleted() -> None:
    item = pod()
    item["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"  # type: ignore[index]
    assert parse_pod(item).deleted


def test_a_nodes_lock_is_read_or_none() -> None:
    def lock_of(value: str | None) -> object:
        annotations = {} if value is None else {"hami.io/mutex.lock": value}
        metadata = {"name": "node", "resourceVersion": "1", "annotations": annotations}
        return parse_node({"metadata": metadata}).lock()

    assert lock_of(None) is None
    assert lock_of("garbage") is None
    assert lock_of("2026-01-02T03:04:05Z,default,pod").names("default", "pod")  # type: ignore[attr-defined]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["9" * 5000, "0001-01-01T00:00:00", "9999-12-31T23:59:59-23:00", "Ready"]),
    lambda one: (
        st.lists(one, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "containers",
                    "limits",
                    "resources",
                    "name",
                    "annotations",
                    "hami.io/x",
                    "conditions",
                    "type",
                    "lastHeartbeatTime",
                    "allocatable",
                    "uid",
                    "env",
                    "phase",
                    "nodeName",
                    RESOURCE,
                ]
            ),
            one,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JUNK, JUNK, JUNK)
def test_what_is_no_pod_and_no_node_is_told_by_an_error_that_is_expected(
    spec: object, status: object, metadata: object
) -> None:
    good = pod()["metadata"]
    for item in ({**pod(), "spec": spec, "status": status}, {"metadata": metadata}):
        with suppress(MALFORMED):
            parsed = parse_pod(item)
            names = {parsed.uid, parsed.phase, *(claim.container for claim in parsed.claims)}
            assert all(isinstance(text, str) for text in (*names, *parsed.annotations.values()))
        with suppress(MALFORMED):
            count_of(parse_node({**item, "metadata": {**good, "annotations": metadata}}), RESOURCE)
