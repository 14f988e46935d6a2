# SPDX-License-Identifier: Apache-2.0
"""What the node says of its GPUs: ``hami.io/node-amd-register``, and its capacity if wished.

Both are kept as they should be.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from deviceplugin.apiserver import ApiServerError
from deviceplugin.codec import NODE_REGISTER
from deviceplugin.devices import register_value
from deviceplugin.follower import Follower

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


class Publisher(Follower):
    """Writes the annotation when it differs from the devices on offer."""

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
        super().__init__("publish-node", cache)
        self._register = register
        self._groups = groups
        self._api = api
        self._offer = offer
        self._capacity = capacity
        self._registered: tuple[Sequence[Device], str] = (), ""
        self._checked = float("-inf")
        self._retry = float("-inf")
        self._trouble = ""

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
        if devices is not self._registered[0]:
            self._registered = devices, register_value(devices)
        wanted = {NODE_REGISTER: self._registered[1]} if self._register else {}
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

    def work(self) -> float:
        """Publish if needed."""
        now = time.monotonic()
        if now < self._retry:
            return self._retry - now
        fresh = now - self._checked >= _CHECK_SECONDS
        try:
            if self.publish(fresh=fresh):
                _log.info("the node's annotations published")
        except ApiServerError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("%s: %s; trying again", NODE_REGISTER, error)
            self._retry = time.monotonic() + _RETRY_SECONDS
            return _RETRY_SECONDS
        if fresh:
            self._checked = now
        self._trouble = ""
        return _CHECK_SECONDS
