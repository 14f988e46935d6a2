# SPDX-License-Identifier: Apache-2.0
"""What the node says of its GPUs: ``hami.io/node-amd-register``, and its capacity if wished.

Both are kept as they should be.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from deviceplugin.apiserver import ApiServerError
from deviceplugin.codec import NODE_REGISTER
from deviceplugin.devices import register_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.devices import Device
    from deviceplugin.health import Offer
    from deviceplugin.pod import Node
    from deviceplugin.pods import PodCache

GROUPS = "ringfence.io/gpu-groups"
GPU_MEMORY = "amd.com/gpumem"
GPU_CORES = "amd.com/gpucores"

_CHECK_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_CALL_SECONDS = 5.0

_log = logging.getLogger(__name__)


def capacity_of(devices: Iterable[Device]) -> dict[str, str]:
    """The node's capacity for shares of GPUs: MiB and CUs of those that are healthy. Pure."""
    healthy = [device for device in devices if device.healthy]
    return {
        GPU_MEMORY: str(sum(device.mib for device in healthy)),
        GPU_CORES: str(sum(device.gpu.cu_count for device in healthy)),
    }


class Publisher:
    """One thread that writes the annotation when it differs from the devices on offer."""

    def __init__(
        self,
        api: ApiServer,
        cache: PodCache,
        offer: Offer,
        *,
        register: bool = True,
        capacity: bool = False,
        groups: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """What to publish: the GPUs for a scheduler, the sums of their memory and CUs as capacity.

        ``groups`` own the device nodes: pods that are not root's need them as supplemental groups,
        and find them in an annotation of the node.
        """
        self._register = register
        self._groups = groups
        self._api = api
        self._cache = cache
        self._offer = offer
        self._capacity = capacity
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publish-node", daemon=True)

    def start(self) -> None:
        """Start publishing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the annotation stays."""
        self._stopping.set()
        self._cache.wake()
        self._thread.join(timeout=10)

    def publish(self, *, fresh: bool) -> bool:
        """Write the annotation if the node has another, True if so; ``fresh`` asks the server.

        Nothing is written before a GPU was seen: an empty list would say that the node lost its
        GPUs. Raises ApiServerError.
        """
        devices = self._offer.devices
        node = self._cache.node()
        if not devices:
            return False
        if fresh or node is None:
            node = self._cache.absorb_node(self._api.get_node(_CALL_SECONDS))
        if self._capacity:
            self._report(node, capacity_of(devices))
        wanted = {NODE_REGISTER: register_value(devices)} if self._register else {}
        groups = self._groups()
        if groups:
            wanted[GROUPS] = ",".join(map(str, groups))
        if all(node.annotations.get(name) == value for name, value in wanted.items()):
            return False
        patch = {"metadata": {"annotations": wanted}}
        self._cache.absorb_node(self._api.patch_node(patch, _CALL_SECONDS))
        return True

    def _report(self, node: Node, sums: Mapping[str, str]) -> None:
        if all(node.capacity.get(name) == (value, value) for name, value in sums.items()):
            return
        patch = {"status": {"capacity": dict(sums), "allocatable": dict(sums)}}
        self._cache.absorb_node(self._api.patch_node_status(patch, _CALL_SECONDS))

    def _run(self) -> None:
        checked = float("-inf")
        trouble = ""
        while not self._stopping.is_set():
            seen = self._cache.version
            fresh = time.monotonic() - checked >= _CHECK_SECONDS
            try:
                if self.publish(fresh=fresh):
                    _log.info("the node's annotations published")
                if fresh:
                    checked = time.monotonic()
                trouble = ""
            except ApiServerError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("%s: %s; trying again", NODE_REGISTER, error)
                self._stopping.wait(_RETRY_SECONDS)
                continue
            self._cache.wait_change(seen, _CHECK_SECONDS)
