# SPDX-License-Identifier: Apache-2.0
"""What a HAMi scheduler does to a pod: Filter's annotations, the node lock, Bind.

By itself, against a server that listens at ``URL``; it prints the bound pod::

    python -m tests.contract.peers.hami --server URL --node node1 --pod a \
        --container app=1 --devices "<gpu id>,AMD Instinct MI300X,4096,76:;"
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
    key = item["metadata"]["namespace"], item["metadata"]["name"]
    lock_and_mark(
        *key,
        lambda patch: api.store.patch("nodes", ("", node), patch) if lock else {},
        lambda patch: api.store.patch("pods", key, patch),
    )
    return api.store.patch("pods", key, {"spec": {"nodeName": node}})


def lock_and_mark(
    namespace: str,
    name: str,
    patch_node: Callable[[Json], Json],
    patch_pod: Callable[[Json], Json],
) -> None:
    """What a scheduler writes between its choice and the binding."""
    value = f"{datetime.now(UTC).isoformat()},{namespace},{name}"
    patch_node({"metadata": {"annotations": {"hami.io/mutex.lock": value}}})
    phase = {"hami.io/bind-phase": "allocating", "hami.io/bind-time": str(int(time.time()))}
    patch_pod({"metadata": {"annotations": phase}})


def _request(method: str, url: str, body: Json) -> Json:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    request = urllib.request.Request(  # noqa: S310 - the server is a test's
        url, json.dumps(body).encode(), {"Content-Type": kind}, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: Json = json.load(response)
        return answer


def main(argv: list[str]) -> int:
    options = argparse.ArgumentParser(prog="python -m tests.contract.peers.hami")
    options.add_argument("--server", required=True, help="URL of the API server")
    options.add_argument("--node", required=True, help="where the pod goes")
    options.add_argument("--pod", required=True, help="its name")
    options.add_argument("--namespace", default="default")
    options.add_argument("--uid", help="its UID (default: the server makes one)")
    options.add_argument(
        "--container", action="append", default=[], metavar="NAME=GPUS", help="repeatable"
    )
    options.add_argument("--devices", required=True, help="hami.io/amd-devices-to-allocate")
    arguments = options.parse_args(argv)
    containers = [one.partition("=") for one in arguments.container or ["app=1"]]
    item = pod(
        arguments.pod,
        *(container(name, int(gpus or 0)) for name, _, gpus in containers),
        namespace=arguments.namespace,
        uid=arguments.uid,
    )
    api = f"{arguments.server.rstrip('/')}/api/v1"
    path = f"{api}/namespaces/{arguments.namespace}/pods/{arguments.pod}"
    _request("PUT", path, filter_pod(item, arguments.node, arguments.devices))
    lock_and_mark(
        arguments.namespace,
        arguments.pod,
        lambda patch: _request("PATCH", f"{api}/nodes/{arguments.node}", patch),
        lambda patch: _request("PATCH", path, patch),
    )
    bound = _request("PATCH", path, {"spec": {"nodeName": arguments.node}})
    sys.stdout.write(f"{json.dumps(bound)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
