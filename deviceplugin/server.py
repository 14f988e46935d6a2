# SPDX-License-Identifier: Apache-2.0
"""The DevicePlugin service that kubelet calls."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

import grpc

from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.api.v1beta1_pb2_grpc import DevicePluginServicer
from deviceplugin.cdi import cdi_name
from deviceplugin.hold import holders_of, mistaken, slices_to_hold
from deviceplugin.preferred import BINPACK, prefer
from deviceplugin.refusal import RefusalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deviceplugin.allocate import Answer
    from deviceplugin.cdi import Cdi
    from deviceplugin.checkpoint import Checkpoint
    from deviceplugin.devices import Device
    from deviceplugin.health import Offer
    from deviceplugin.podresources import PodDevices
    from enforcer.model import Slice

_ALLOCATE_SECONDS = 1.0
_HOLD_SECONDS = 25.0
"""kubelet gives up on PreStartContainer after 30 s."""
_ACCOUNT_SECONDS = 2.0
"""A whole GPU has no limit to wait for: the enforcer is told, so that it accounts it at once."""
_STARTS = 20
"""Containers that wait for the enforcer at once; kubelet tries the others again."""
_STREAMS = 4
"""ListAndWatch streams at once; each holds a thread, and kubelet means only the newest."""
_STREAM_CHECK_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Giver(Protocol):
    """Who decides what a container gets."""

    def booked(self, resource: str, size: int) -> list[str]:
        """The keys of the devices that kubelet is about to ask for; empty if unknown."""

    def allocate(self, resource: str, device_ids: Sequence[str], deadline: float) -> Answer:
        """What the container gets that kubelet asks for. Raises RefusalError."""


class Hold(Protocol):
    """Who holds slices."""

    def hold(self, items: Sequence[Slice], timeout: float) -> str | None:
        """None once every slice is held; else why one is not."""

    def renumbered(self, items: Sequence[Slice], devices: Sequence[Device]) -> str | None:
        """Why kubelet gives a container of these slices what is not of its GPUs; None if none."""


class DevicePlugin(DevicePluginServicer):
    """kubelet's calls, answered from caches and the checkpoint."""

    def __init__(  # noqa: PLR0913 - each is another part of the node
        self,
        resource: str,
        offer: Offer,
        checkpoint: Checkpoint,
        giver: Giver,
        holder: Hold | None,
        held: Callable[[], PodDevices | None],
        *,
        cdi: Cdi | None = None,
        policy: str = BINPACK,
        fail_open: bool = False,
    ) -> None:
        """``held`` is kubelet's own record of who has which devices.

        ``holder`` None: nothing is limited, so that no start has anything to wait for.
        """
        self.resource = resource
        self._offer = offer
        self._checkpoint = checkpoint
        self._giver = giver
        self._holder = holder
        self._held = held
        self._cdi = cdi
        self._policy = policy
        self._fail_open = fail_open
        self._streams: list[int] = []
        self._streams_changing = threading.Lock()
        self._starts = threading.BoundedSemaphore(_STARTS)
        self._stream_ids = itertools.count()
        self._stopping = threading.Event()

    @property
    def options(self) -> pb.DevicePluginOptions:
        """What kubelet is to ask of this plugin."""
        return pb.DevicePluginOptions(
            pre_start_required=self._holder is not None, get_preferred_allocation_available=True
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of this resource."""
        return tuple(one for one in self._offer.devices if one.resource == self.resource)

    @property
    def healthy(self) -> int:
        """How many slots of them kubelet can give."""
        return sum(len(one.slots) for one in self.devices if one.healthy)

    @property
    def streams(self) -> int:
        """How many ListAndWatch streams are open."""
        return len(self._streams)

    def stop(self) -> None:
        """End the streams."""
        self._stopping.set()
        self._offer.wake()

    def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        return self.options

    def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        stream = next(self._stream_ids)
        with self._streams_changing:
            self._streams = [*self._streams, stream][-_STREAMS:]
        context.add_callback(self._offer.wake)
        try:
            sent = -1
            while context.is_active() and stream in self._streams and not self._stopping.is_set():
                version, devices = self._offer.snapshot()
                if version != sent:
                    sent = version
                    yield device_list([one for one in devices if one.resource == self.resource])
                self._offer.wait_change(sent, _STREAM_CHECK_SECONDS)
        finally:
            with self._streams_changing:
                self._streams = [one for one in self._streams if one != stream]

    def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        response = pb.PreferredAllocationResponse()
        for wanted in request.container_requests:
            picked = prefer(
                wanted.available_deviceIDs,
                wanted.must_include_deviceIDs,
                wanted.allocation_size,
                self._giver.booked(self.resource, wanted.allocation_size),
                self.devices,
                self._policy,
            )
            response.container_responses.add(deviceIDs=picked)
        return response

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        deadline = time.monotonic() + _ALLOCATE_SECONDS
        response = pb.AllocateResponse()
        try:
            for wanted in request.container_requests:
                given = self._giver.allocate(self.resource, wanted.devices_ids, deadline)
                by_name = self._cdi is not None and self._cdi.ready()
                response.container_responses.append(container_response(given, by_name=by_name))
        except RefusalError as error:
            _log.warning("Allocate refused: %s", error)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return response

    def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        if self._holder is None:
            return pb.PreStartContainerResponse()
        items = slices_to_hold(self._checkpoint.slices, request.devices_ids)
        holders = holders_of(request.devices_ids, self._held())
        if not items:
            absent = _no_slice(request.devices_ids, holders)
            _log.error("start refused: %s", absent)
            context.abort(grpc.StatusCode.NOT_FOUND, absent)
        mistake = mistaken(items, holders) or self._holder.renumbered(items, self._offer.devices)
        if mistake is not None:
            _log.error("start refused: %s", mistake)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, mistake)
        # A whole GPU has no limit that must be held. But where kubelet's record does not say whose
        # it is, the enforcer must have found the pod: it may be one bound past the scheduler.
        must = _sliced(items) or not holders
        why = self._hold(items, _HOLD_SECONDS if must else _ACCOUNT_SECONDS)
        if why is not None and must:
            if not self._fail_open:
                _log.warning("start refused: %s", why)
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
            _log.warning("started all the same, as --fail-open says: %s", why)
        return pb.PreStartContainerResponse()

    def _hold(self, items: Sequence[Slice], seconds: float) -> str | None:
        if self._holder is None:
            return None
        title = f"pod {items[-1].namespace}/{items[-1].pod}"
        if not self._starts.acquire(blocking=False):
            return (
                f"{title}: {_STARTS} other containers wait for the enforcer already: is it "
                "running? See `ringfence doctor`"
            )
        try:
            # Given for good, before anything runs with it.
            self._checkpoint.flush()
            return self._holder.hold(items, seconds)
        except OSError as error:
            return f"{title}: the checkpoint cannot be written: {error}; is the disk full?"
        finally:
            self._starts.release()


def _no_slice(device_ids: Sequence[str], holders: Sequence[tuple[str, str]]) -> str:
    of = f" of pod {' or '.join('/'.join(pod) for pod in holders)}" if device_ids else ""
    return (
        f"no slice was given for {', '.join(device_ids) or 'no device'}{of if holders else ''}: if "
        "it was lost, a new pod is given one: delete this one"
    )


def device_list(devices: Sequence[Device]) -> pb.ListAndWatchResponse:
    """Every slot of these devices, with its health and NUMA node."""
    response = pb.ListAndWatchResponse()
    for device in devices:
        health = "Healthy" if device.healthy else "Unhealthy"
        numa = device.gpu.numa_node
        topology = None
        if numa is not None and numa >= 0:
            topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])
        for slot in device.slots:
            response.devices.add(ID=slot, health=health, topology=topology)
    return response


def container_response(given: Answer, *, by_name: bool) -> pb.ContainerAllocateResponse:
    """An answer, as kubelet reads it; ``by_name``: with CDI names instead of device nodes."""
    if by_name:
        names = [pb.CDIDevice(name=cdi_name(device)) for device in given.gpus]
        return pb.ContainerAllocateResponse(
            envs=dict(given.envs), mounts=_mounts(given), cdi_devices=names
        )
    return pb.ContainerAllocateResponse(
        envs=dict(given.envs),
        mounts=_mounts(given),
        devices=[
            # With "rw" the device filters of some runtimes refuse access(F_OK), by which programs
            # look for their GPU. "m" lets a container make a node of a device that it has.
            pb.DeviceSpec(host_path=path, container_path=path, permissions="rwm")
            for path in given.devices
        ],
    )


def _mounts(given: Answer) -> list[pb.Mount]:
    return [
        pb.Mount(host_path=one.host, container_path=one.inside, read_only=one.read_only)
        for one in given.mounts
    ]


def _sliced(items: Sequence[Slice]) -> bool:
    return any(share.vram_bytes is not None for item in items for share in item.shares)
