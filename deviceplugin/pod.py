# SPDX-License-Identifier: Apache-2.0
"""A pod and a node as the device plugin needs them, from the API server's JSON. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from deviceplugin.codec import NODE_LOCK, AnnotationError, NodeLock, decode_lock
from deviceplugin.terms import RESOURCE, is_gpu_resource
from enforcer.model import ContainerKind

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]

MALFORMED = (KeyError, TypeError, AttributeError, ValueError)
"""What parsing raises for what is no object of its kind."""

_PREFIXES = ("hami.io/", "ringfence.io/")
_PRIORITY = "AMD_TASK_PRIORITY"
"""What HAMi's webhook makes of ``amd.com/priority``."""
_COUNT = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Claim:
    """A container that asks for GPUs: kubelet calls Allocate once for each."""

    container: str
    kind: ContainerKind
    count: int
    """How many GPUs, the ``limits`` of the resource."""
    resource: str = RESOURCE
    image: str = ""
    priority: int | None = None
    """As ``Slice.priority``, of the container's own environment."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of this node."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    phase: str
    deleted: bool
    claims: tuple[Claim, ...]
    """In the order of kubelet's admission: init containers (sidecars among them), then apps."""
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only those of the scheduler's protocol."""
    acknowledged: bool = False
    """True once kubelet said that it has the pod, admitted or not."""
    initialized: bool = False
    """True once kubelet said that the init containers, but for sidecars, have done their work."""

    @property
    def title(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """True once Kubernetes says that no container of it will run again."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class Node:
    """This node."""

    name: str
    uid: str
    resource_version: str
    annotations: Mapping[str, str]
    capacity: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Of AMD's resources: capacity and allocatable, as the node has them."""
    reported: float = 0.0
    """When kubelet last wrote the node's status, in Unix seconds; 0 if it never did."""

    def lock(self) -> NodeLock | None:
        """The scheduler's lock; None if there is none, or none that can be read."""
        text = self.annotations.get(NODE_LOCK)
        if text is None:
            return None
        try:
            return decode_lock(text)
        except AnnotationError:
            return None


@dataclass(frozen=True, slots=True)
class Count:
    """How many devices of a resource kubelet says it can give, and when it said so (Unix s)."""

    devices: int
    reported: float


def parse_pod(pod: Json) -> Pod:
    """The parts of a pod's JSON that matter. Raises one of ``MALFORMED``."""
    metadata = pod["metadata"]
    spec = pod.get("spec") or {}
    status = pod.get("status") or {}
    return Pod(
        namespace=_text(metadata["namespace"]),
        name=_text(metadata["name"]),
        uid=_text(metadata["uid"]),
        resource_version=_text(metadata["resourceVersion"]),
        node=_text(spec.get("nodeName") or ""),
        phase=_text(status.get("phase") or "Pending"),
        deleted="deletionTimestamp" in metadata,
        claims=tuple(_claims(spec)),
        annotations=_annotations(metadata),
        acknowledged="startTime" in status,
        initialized=_condition(status, "Initialized").get("status") == "True",
    )


def parse_node(node: Json) -> Node:
    """The parts of a node's JSON that matter. Raises one of ``MALFORMED``."""
    metadata = node["metadata"]
    status = node.get("status") or {}
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    return Node(
        name=_text(metadata["name"]),
        uid=_text(metadata.get("uid", "")),
        resource_version=_text(metadata["resourceVersion"]),
        annotations=_annotations(metadata),
        capacity=MappingProxyType(
            {
                name: (str(capacity.get(name, "")), str(allocatable.get(name, "")))
                for name in (*capacity, *allocatable)
                if name.startswith("amd.com/")
            }
        ),
        reported=_reported(status),
    )


def count_of(node: Node | None, resource: str) -> Count | None:
    """What a node's status says of a resource; None if it says nothing."""
    if node is None:
        return None
    _, allocatable = node.capacity.get(resource, ("", ""))
    if _COUNT.fullmatch(allocatable) is None:
        return None
    return Count(int(allocatable), node.reported)


def _reported(status: Json) -> float:
    try:
        time = _condition(status, "Ready")["lastHeartbeatTime"]
        return datetime.fromisoformat(time).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0


def _condition(status: Json, kind: str) -> Json:
    for condition in status.get("conditions") or []:
        if condition.get("type") == kind:
            return dict(condition)
    return {}


def _annotations(metadata: Json) -> Mapping[str, str]:
    annotations = metadata.get("annotations") or {}
    return MappingProxyType(
        {
            key: value
            for key, value in annotations.items()
            if key.startswith(_PREFIXES) and isinstance(value, str)
        }
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _claims(spec: Json) -> list[Claim]:
    claims: list[Claim] = []
    for container in spec.get("initContainers") or []:
        sidecar = container.get("restartPolicy") == "Always"
        claims += _claims_of(container, ContainerKind.SIDECAR if sidecar else ContainerKind.INIT)
    for container in spec.get("containers") or []:
        claims += _claims_of(container, ContainerKind.APP)
    return claims


def _claims_of(container: Json, kind: ContainerKind) -> list[Claim]:
    limits = (container.get("resources") or {}).get("limits") or {}
    claims = [
        Claim(
            _text(container["name"]),
            kind,
            _count(str(quantity)),
            resource,
            str(container.get("image") or ""),
            _priority(container),
        )
        for resource, quantity in limits.items()
        if is_gpu_resource(resource)
    ]
    return [claim for claim in claims if claim.count > 0]


def _priority(container: Json) -> int | None:
    """0 is the class above all others, a larger number one below; HAMi knows no third."""
    priority = None
    for variable in container.get("env") or []:
        # Of two, the later is what the container gets.
        if variable.get("name") == _PRIORITY:
            text = str(variable.get("value") or "")
            digits = text.isascii() and text.isdigit()
            priority = int(bool(text.strip("0"))) if digits else None
    return priority


def _count(quantity: str) -> int:
    # The API server stores extended resources as canonical integers; "2k" is the only spelling
    # left, and no node has that many slots.
    return int(quantity) if _COUNT.fullmatch(quantity) else 0
