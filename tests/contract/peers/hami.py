# SPDX-License-Identifier: Apache-2.0
"""What a HAMi scheduler does to a pod: Filter's annotations, the node lock, Bind."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.contract.peers.apiserver import ApiServer

Json = dict[str, Any]


def container(name: str, gpus: int = 0, **more: Any) -> Json:
    """A container of a pod's spec that asks for ``gpus``."""
    limits = {"amd.com/gpu": str(gpus)} if gpus else {}
    return {"name": name, "image": "rocm/dev", "resources": {"limits": limits}, **more}


def pod(
    name: str,
    *containers: Json,
    namespace: str = "default",
    init: tuple[Json, ...] = (),
    uid: str | None = None,
) -> Json:
    """A pod nobody has scheduled yet."""
    metadata: Json = {"name": name, "namespace": namespace, "annotations": {}}
    if uid is not None:
        metadata["uid"] = uid
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers), "initContainers": list(init)},
        "status": {"phase": "Pending"},
    }


def filter_pod(item: Json, node: str, devices: str) -> Json:
    """The pod with what Filter writes: where it goes, and ``devices`` for its containers."""
    item["metadata"]["annotations"] |= {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": str(int(time.time())),
        "hami.io/amd-devices-to-allocate": devices,
        "hami.io/amd-devices-allocated": devices,
    }
    return item


def bind(api: ApiServer, item: Json, node: str, devices: str, *, lock: bool = True) -> Json:
    """Schedule a pod: Filter, lock, phase, binding, in a scheduler's order."""
    item = api.put_pod(filter_pod(item, node, devices))
    metadata = item["metadata"]
    key = metadata["namespace"], metadata["name"]
    if lock:
        value = f"{datetime.now(UTC).isoformat()},{key[0]},{key[1]}"
        api.store.patch(
            "nodes", ("", node), {"metadata": {"annotations": {"hami.io/mutex.lock": value}}}
        )
    phase = {"hami.io/bind-phase": "allocating", "hami.io/bind-time": str(int(time.time()))}
    api.store.patch("pods", key, {"metadata": {"annotations": phase}})
    return api.store.patch("pods", key, {"spec": {"nodeName": node}})
