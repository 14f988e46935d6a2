# SPDX-License-Identifier: Apache-2.0
"""A kubelet's device manager: real gRPC over unix sockets, as kubelet 1.20 to 1.3x behave.

In a test: ``with Kubelet(directory) as kubelet: kubelet.admit(pod)``. By itself, driven by lines of
JSON on standard input::

    python -m tests.contract.peers.kubelet --directory /var/lib/kubelet

    {"admit": <pod>}                       {"containers": {"app": {"devices_ids": [...], ...}}}
    {"start": "<uid>", "container": "app"} {"started": "app"}
    {"remove": "<uid>"}                    {"removed": "<uid>"}
    {"devices": "amd.com/gpu"}             {"devices": {"<id>": "Healthy"}}
    {"restart": true}                      {"restarted": true}

Every line is answered by one line; what kubelet is refused is ``{"error": "..."}``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import MessageToDict

from deviceplugin.api import podresources_pb2
from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from deviceplugin.api.v1beta1_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

_PRE_START_SECONDS = 30.0


class Second(StrEnum):
    """What becomes of a second registration of a resource: all of these are in the field."""

    REPLACES = "replaces"
    """The first endpoint is stopped."""
    REPLACES_UNTOLD = "replaces-untold"
    """1.20, seen: calls go to the second, but the first's stream stays open, and is heard too."""
    REPLACES_AND_DROPS = "replaces-and-drops"
    """kubernetes#121994: the first one's disconnect takes the new one's devices down."""
    REFUSED = "refused"
    """Newest: refused while the first is alive."""


class AdmissionError(Exception):
    """UnexpectedAdmissionError: the pod is Failed and never tried again."""


class StartError(Exception):
    """A container's start failed; kubelet would try again."""


@dataclass
class _Endpoint:
    name: str
    channel: grpc.Channel
    stub: DevicePluginStub
    options: pb.DevicePluginOptions
    stream: Any = None
    connected: bool = True


@dataclass
class _Resource:
    endpoint: _Endpoint | None = None
    devices: dict[str, str] = field(default_factory=dict)
    numa: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lists: int = 0
    """ListAndWatch responses so far."""


@dataclass
class Admitted:
    """What a container got."""

    devices_ids: list[str]
    response: pb.ContainerAllocateResponse
    allocate_seconds: float


class Kubelet:
    """The device manager of one kubelet; ``start`` wipes its sockets, as at a restart.

    ``directory`` is its --root-dir, which does not move a real one's ``plugins``.
    """

    def __init__(
        self,
        directory: Path,
        second: Second = Second.REPLACES,
        seed: int | None = None,
        plugins: Path | None = None,
    ) -> None:
        self.directory = directory
        self.plugins = plugins or directory / "device-plugins"
        self.second = second
        self.registrations: list[str] = []
        self.pod_resources = True
        self.slow = 0.0
        """Seconds before it answers a registration or PodResources, or asks for a list."""
        self.deaf = False
        """Takes registrations, and asks none for its devices."""
        self._random = random.Random(seed)  # noqa: S311
        self._changed = threading.Condition()
        self._resources: dict[str, _Resource] = {}
        self._pods: dict[str, Json] = {}
        self._allocated: dict[tuple[str, str, str], Admitted] = {}
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Kubelet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.plugins.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.iterdir():
            if path.is_socket():
                path.unlink()
        self._serve(
            self.plugins / "kubelet.sock",
            lambda server: add_RegistrationServicer_to_server(_Registration(self), server),
        )
        if self.pod_resources:
            socket = self.directory / "pod-resources" / "kubelet.sock"
            socket.parent.mkdir(parents=True, exist_ok=True)
            socket.unlink(missing_ok=True)
            self._serve(
                socket,
                lambda server: add_PodResourcesListerServicer_to_server(
                    _PodResources(self), server
                ),
            )

    def stop(self) -> None:
        """End as a process does: the connections break, the sockets stay behind."""
        for server in self._servers:
            server.stop(grace=None).wait()
        self._servers.clear()
        with self._changed:
            endpoints = [one.endpoint for one in self._resources.values() if one.endpoint]
            self._resources.clear()
        for endpoint in endpoints:
            endpoint.connected = False
            endpoint.channel.close()

    def restart(self) -> None:
        """A new process: devices must be registered anew, allocations are in its checkpoint."""
        self.stop()
        self.start()

    def _serve(self, path: Path, add: Callable[[grpc.Server], None]) -> None:
        server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="kubelet-peer"))
        add(server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def wait_devices(
        self, resource: str, wanted: Callable[[dict[str, str]], bool] = bool, timeout: float = 20
    ) -> dict[str, str]:
        """Device id -> health, once ``wanted`` is true of it."""
        with self._changed:
            if not self._changed.wait_for(lambda: wanted(self._healths(resource)), timeout):
                raise TimeoutError(f"{resource}: {self._healths(resource)}")
            return self._healths(resource)

    def wait_registrations(self, count: int, timeout: float = 20) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.registrations) >= count, timeout):
                raise TimeoutError(f"registrations: {self.registrations}")

    def lists(self, resource: str) -> int:
        """How many ListAndWatch responses came."""
        with self._changed:
            return self._resources.get(resource, _Resource()).lists

    def _healths(self, resource: str) -> dict[str, str]:
        return dict(self._resources.get(resource, _Resource()).devices)

    # Registration and ListAndWatch

    def register(self, request: pb.RegisterRequest) -> str | None:
        """Take a plugin; or why not."""
        if request.version != "v1beta1":
            return f"requested version {request.version!r} is not supported by kubelet"
        with self._changed:
            resource = self._resources.setdefault(request.resource_name, _Resource())
            old = resource.endpoint
            if (
                self.second is Second.REFUSED
                and old is not None
                and old.connected
                and old.name != request.endpoint
            ):
                return "device plugin already connected"
            channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}")
            endpoint = _Endpoint(
                request.endpoint, channel, DevicePluginStub(channel), request.options
            )
            resource.endpoint = endpoint
            self.registrations.append(request.endpoint)
            self._changed.notify_all()
        threading.Thread(
            target=self._list_and_watch,
            args=(request.resource_name, resource, endpoint),
            name=f"list-{request.endpoint}",
            daemon=True,
        ).start()
        if old is not None and self.second is not Second.REPLACES_UNTOLD:
            if old.stream is not None:
                old.stream.cancel()
            old.channel.close()
        return None

    def _list_and_watch(self, name: str, resource: _Resource, endpoint: _Endpoint) -> None:
        time.sleep(self.slow)
        if self.deaf:
            return
        with contextlib.suppress(grpc.RpcError, ValueError):
            endpoint.stream = endpoint.stub.ListAndWatch(pb.Empty())
            for response in endpoint.stream:
                with self._changed:
                    resource.devices = {device.ID: device.health for device in response.devices}
                    resource.numa = {
                        device.ID: tuple(node.ID for node in device.topology.nodes)
                        for device in response.devices
                    }
                    resource.lists += 1
                    self._changed.notify_all()
        with self._changed:
            endpoint.connected = False
            if resource.endpoint is endpoint or self.second is Second.REPLACES_AND_DROPS:
                resource.devices = dict.fromkeys(resource.devices, "Unhealthy")
            self._changed.notify_all()

    # Admission

    def admit(self, pod: Json) -> dict[str, Admitted]:
        """Admit a pod: what each container got. Raises AdmissionError, and then nothing is kept."""
        uid = pod["metadata"]["uid"]
        with self._changed:
            self._pods[uid] = pod
        got: dict[str, Admitted] = {}
        reusable: dict[str, list[str]] = {}
        spec = pod["spec"]
        containers = [(one, True) for one in spec.get("initContainers") or []]
        containers += [(one, False) for one in spec.get("containers") or []]
        try:
            for container, init in containers:
                for resource, quantity in container.get("resources", {}).get("limits", {}).items():
                    with self._changed:
                        known = resource in self._resources
                    if not known or int(quantity) == 0:
                        continue
                    reuse = reusable.setdefault(resource, [])
                    admitted = self._allocate(
                        uid, container["name"], resource, int(quantity), reuse
                    )
                    got[container["name"]] = admitted
                    if init and container.get("restartPolicy") != "Always":
                        reuse += [one for one in admitted.devices_ids if one not in reuse]
                    else:
                        reuse[:] = [one for one in reuse if one not in admitted.devices_ids]
        except AdmissionError:
            self.remove(uid)
            raise
        return got

    def _allocate(
        self, uid: str, container: str, resource: str, count: int, reusable: list[str]
    ) -> Admitted:
        with self._changed:
            known = self._allocated.get((uid, container, resource))
            state = self._resources[resource]
            endpoint = state.endpoint
            used = {
                one
                for (_, _, name), admitted in self._allocated.items()
                if name == resource
                for one in admitted.devices_ids
            }
            healthy = {one for one, health in state.devices.items() if health == "Healthy"}
        if known is not None:
            return known
        must = reusable[:count]
        free = sorted(healthy - used - set(must))
        if len(free) < count - len(must):
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {count}, "
                f"Available: {len(free)}"
            )
        if endpoint is None:
            raise AdmissionError(
                f"endpoint not found in cache for a registered resource: {resource}"
            )
        ids = list(must)
        try:
            if len(ids) < count:
                ids += self._choose(endpoint, free, must, count)
            started = time.monotonic()
            request = pb.AllocateRequest(
                container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
            )
            response = endpoint.stub.Allocate(request)
            took = time.monotonic() - started
        except grpc.RpcError as error:
            raise AdmissionError(
                f"Allocate failed due to rpc error: code = {error.code()} desc = {error.details()}"
            ) from error
        if len(response.container_responses) != 1:
            raise AdmissionError("No containers return in allocation response")
        admitted = Admitted(ids, response.container_responses[0], took)
        with self._changed:
            self._allocated[uid, container, resource] = admitted
            self._keep()
        return admitted

    def _keep(self) -> None:
        """Write its own record, as 1.20 and later do."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": admitted.devices_ids},
                "AllocResp": base64.b64encode(admitted.response.SerializeToString()).decode(),
            }
            for (uid, container, resource), admitted in self._allocated.items()
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
        new = self.plugins / ".kubelet_internal_checkpoint.new"
        new.write_text(json.dumps({"Data": data, "Checksum": 0}))
        new.replace(self.plugins / "kubelet_internal_checkpoint")

    def empty_call(self, resource: str) -> float:
        """Seconds that a call takes which asks for nothing."""
        with self._changed:
            endpoint = self._resources[resource].endpoint
        if endpoint is None:
            raise LookupError(f"no endpoint for {resource}")
        started = time.monotonic()
        endpoint.stub.GetDevicePluginOptions(pb.Empty())
        return time.monotonic() - started

    def _choose(
        self, endpoint: _Endpoint, free: list[str], must: list[str], count: int
    ) -> list[str]:
        """The ids beyond ``must``: what the plugin wishes, as far as it is free, then any."""
        picked: list[str] = []
        if endpoint.options.get_preferred_allocation_available:
            request = pb.PreferredAllocationRequest(
                container_requests=[
                    pb.ContainerPreferredAllocationRequest(
                        available_deviceIDs=[*must, *free],
                        must_include_deviceIDs=must,
                        allocation_size=count,
                    )
                ]
            )
            response = endpoint.stub.GetPreferredAllocation(request)
            for answer in response.container_responses[:1]:
                picked = [one for one in answer.deviceIDs if one in free][: count - len(must)]
        rest = [one for one in free if one not in picked]
        self._random.shuffle(rest)
        return picked + rest[: count - len(must) - len(picked)]

    def start_container(self, uid: str, container: str, resource: str = "amd.com/gpu") -> None:
        """Make a container's run options: PreStartContainer. Raises StartError."""
        with self._changed:
            admitted = self._allocated.get((uid, container, resource))
            state = self._resources.get(resource)
            endpoint = state.endpoint if state else None
        if endpoint is None:
            raise StartError(f"no endpoint for {resource}")
        if not endpoint.options.pre_start_required:
            return
        ids = admitted.devices_ids if admitted else []
        try:
            endpoint.stub.PreStartContainer(
                pb.PreStartContainerRequest(devices_ids=ids), timeout=_PRE_START_SECONDS
            )
        except grpc.RpcError as error:
            raise StartError(
                f"device plugin PreStartContainer rpc failed with err: rpc error: "
                f"code = {error.code()} desc = {error.details()}"
            ) from error

    def remove(self, uid: str) -> None:
        """The pod is over for kubelet: its devices are free."""
        with self._changed:
            self._pods.pop(uid, None)
            for key in [key for key in self._allocated if key[0] == uid]:
                del self._allocated[key]
            self._keep()

    def pod_devices(self) -> list[podresources_pb2.PodResources]:
        """What PodResources answers."""
        with self._changed:
            pods = dict(self._pods)
            allocated = dict(self._allocated)
        answer = []
        for uid, pod in pods.items():
            item = podresources_pb2.PodResources(
                name=pod["metadata"]["name"], namespace=pod["metadata"]["namespace"]
            )
            for (owner, container, resource), admitted in allocated.items():
                if owner == uid:
                    devices = item.containers.add(name=container).devices.add(
                        resource_name=resource
                    )
                    devices.device_ids.extend(admitted.devices_ids)
            answer.append(item)
        return answer


class _Registration(RegistrationServicer):
    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        time.sleep(self._kubelet.slow)
        why = self._kubelet.register(request)
        if why is not None:
            context.abort(grpc.StatusCode.UNKNOWN, why)
        return pb.Empty()


class _PodResources(PodResourcesListerServicer):
    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    def List(  # noqa: N802
        self, request: podresources_pb2.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> podresources_pb2.ListPodResourcesResponse:
        time.sleep(self._kubelet.slow)
        return podresources_pb2.ListPodResourcesResponse(pod_resources=self._kubelet.pod_devices())


def _obey(kubelet: Kubelet, command: Json) -> Json:
    if "admit" in command:
        got = kubelet.admit(command["admit"])
        return {
            "containers": {
                name: {
                    "devices_ids": admitted.devices_ids,
                    "allocate_ms": round(admitted.allocate_seconds * 1000, 2),
                    **MessageToDict(admitted.response, preserving_proto_field_name=True),
                }
                for name, admitted in got.items()
            }
        }
    if "start" in command:
        kubelet.start_container(command["start"], command["container"])
        return {"started": command["container"]}
    if "remove" in command:
        kubelet.remove(command["remove"])
        return {"removed": command["remove"]}
    if "devices" in command:
        timeout = float(command.get("timeout", 30))
        return {"devices": kubelet.wait_devices(command["devices"], timeout=timeout)}
    if "restart" in command:
        kubelet.restart()
        return {"restarted": True}
    return {"error": f"unknown command {sorted(command)}"}


def main(argv: list[str]) -> int:
    options = argparse.ArgumentParser(prog="python -m tests.contract.peers.kubelet")
    options.add_argument(
        "--directory", type=Path, default=Path("/var/lib/kubelet"), help="kubelet's directory"
    )
    options.add_argument(
        "--second", choices=list(Second), default=Second.REPLACES, help="second registration"
    )
    arguments = options.parse_args(argv)
    with Kubelet(arguments.directory, Second(arguments.second)) as kubelet:
        for line in sys.stdin:
            try:
                answer = _obey(kubelet, json.loads(line))
            except (AdmissionError, StartError, TimeoutError, ValueError, KeyError) as error:
                answer = {"error": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
