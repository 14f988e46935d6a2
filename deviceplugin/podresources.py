# SPDX-License-Identifier: Apache-2.0
"""Which devices kubelet's own record gives to which pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from deviceplugin.api import podresources_pb2 as pb
from deviceplugin.terms import is_gpu_resource

if TYPE_CHECKING:
    from pathlib import Path


PodDevices = dict[tuple[str, str], dict[str, tuple[str, ...]]]
"""(namespace, pod) -> container -> its device ids."""


def read_pod_resources(socket: Path, timeout: float) -> PodDevices | None:
    """Who holds GPUs; None if kubelet does not answer within ``timeout``."""
    if not socket.exists():
        return None
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        try:
            answer = call(pb.ListPodResourcesRequest(), timeout=timeout)
        except grpc.RpcError:
            return None
    return {
        (pod.namespace, pod.name): {
            container.name: tuple(
                device_id
                for devices in container.devices
                if is_gpu_resource(devices.resource_name)
                for device_id in devices.device_ids
            )
            for container in pod.containers
        }
        for pod in answer.pod_resources
    }
