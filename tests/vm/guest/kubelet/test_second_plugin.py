# SPDX-License-Identifier: Apache-2.0
"""What a real kubelet makes of two plugins for one resource."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.api.v1beta1_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from deviceplugin.events import CONFLICT
from enforcer.model import MIB
from tests.vm.guest.kubelet.cluster import NODE, RESOURCE, eventually, is_held
from tests.vm.guest.kubelet.node import PLUGINS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.kubelet.cluster import Cluster

_SECONDS = 60


class _Other(DevicePluginServicer):
    """A plugin of somebody else with one device."""

    def __init__(self) -> None:
        self.served = threading.Event()
        self._ended = threading.Event()

    def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        context.add_callback(self._ended.set)
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID="other", health="Healthy")])
        self.served.set()
        self._ended.wait()


def test_devices_that_another_plugin_took_over_come_back(cluster: Cluster, gpu: Gpu) -> None:
    slots = cluster.allocatable()
    other = _Other()
    server = grpc.server(ThreadPoolExecutor(4))
    add_DevicePluginServicer_to_server(other, server)
    server.add_insecure_port(f"unix:{PLUGINS / 'other.sock'}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{PLUGINS / 'kubelet.sock'}") as channel:
            RegistrationStub(channel).Register(
                pb.RegisterRequest(
                    version="v1beta1", endpoint="other.sock", resource_name=RESOURCE
                ),
                timeout=_SECONDS,
            )
        # This kubelet believes the last that registers, and does not tell the one before.
        assert other.served.wait(_SECONDS)
        eventually("an event on the node", lambda: _conflict(cluster))
        eventually("our devices again", lambda: cluster.allocatable() == slots)
    finally:
        server.stop(grace=None)
    # Its end is not ours: the devices that kubelet had of it last are not marked again.
    one = cluster.running(cluster.admitted("after", cluster.share(0, 64, 16)))
    is_held(one, gpu, 64 * MIB)


def _conflict(cluster: Cluster) -> bool:
    return any(event.startswith(CONFLICT) for event in cluster.api.events(NODE))
