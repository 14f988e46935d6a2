# SPDX-License-Identifier: Apache-2.0
"""The DevicePlugin service that kubelet calls."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import grpc

from deviceplugin.allocate import answer, decide, hook_installed
from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.api.v1beta1_pb2_grpc import DevicePluginServicer
from deviceplugin.apiserver import ApiServerError
from deviceplugin.devices import find_device
from deviceplugin.hold import slices_to_hold
from deviceplugin.pending import choose, owners, strangers, turns
from deviceplugin.preferred import prefer
from deviceplugin.refusal import RefusalError
from enforcer.model import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deviceplugin.allocate import Answer
    from deviceplugin.checkpoint import Checkpoint
    from deviceplugin.codec import NodeLock
    from deviceplugin.devices import Device
    from deviceplugin.health import Offer
    from deviceplugin.pending import Turn
    from deviceplugin.pod import Pod
    from deviceplugin.pods import PodCache
    from enforcer.model import Slice

_ALLOCATE_SECONDS = 1.0
_PREFER_SECONDS = 0.5
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


class Binding(Protocol):
    """What becomes of a pod's binding."""

    def fail(self, pod: Pod) -> None:
        """An Allocate of this pod was refused."""


class Hold(Protocol):
    """Who holds slices."""

    def hold(self, items: Sequence[Slice], timeout: float) -> str | None:
        """None once every slice is held; else why one is not."""


class DevicePlugin(DevicePluginServicer):
    """kubelet's calls, answered from caches and the checkpoint."""

    def __init__(  # noqa: PLR0913 - each is another part of the node
        self,
        offer: Offer,
        cache: PodCache,
        checkpoint: Checkpoint,
        binding: Binding,
        holder: Hold,
        *,
        node: str,
        hook_dir: Path,
        fail_open: bool,
    ) -> None:
        self._offer = offer
        self._cache = cache
        self._checkpoint = checkpoint
        self._binding = binding
        self._holder = holder
        self._node = node
        self._hook_dir = hook_dir
        self._fail_open = fail_open
        self._streams: list[int] = []
        self._streams_changing = threading.Lock()
        self._starts = threading.BoundedSemaphore(_STARTS)
        self._stream_ids = itertools.count()
        self._stopping = threading.Event()

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
        return options()

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
                    yield device_list(devices)
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
                self._booked(wanted.allocation_size),
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
                response.container_responses.append(self._allocate(wanted.devices_ids, deadline))
        except RefusalError as error:
            _log.warning("Allocate refused: %s", error)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return response

    def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        items = slices_to_hold(self._checkpoint.slices, request.devices_ids)
        if not items:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no slice was given for {', '.join(request.devices_ids) or 'no device'}",
            )
        why = self._hold(items)
        if why is not None and _sliced(items):
            if not self._fail_open:
                _log.warning("start refused: %s", why)
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
            _log.warning("started without its limit, as --fail-open says: %s", why)
        return pb.PreStartContainerResponse()

    def _hold(self, items: Sequence[Slice]) -> str | None:
        if not self._starts.acquire(blocking=False):
            return f"{_STARTS} other containers wait for the enforcer already"
        try:
            seconds = _HOLD_SECONDS if _sliced(items) else _ACCOUNT_SECONDS
            return self._holder.hold(items, seconds)
        finally:
            self._starts.release()

    def _allocate(self, device_ids: Sequence[str], deadline: float) -> pb.ContainerAllocateResponse:
        if not self._checkpoint.giving.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RefusalError("another Allocate takes too long, see the log of ringfence")
        try:
            item = self._give(device_ids, deadline)
            hook = self._hook_dir if hook_installed(self._hook_dir) else None
            given = answer(item, self._offer.devices, hook)
        except KeyError as error:
            raise RefusalError(f"GPU {error} of the slice is not on this node any more") from error
        except RefusalError as error:
            if error.pod is not None:
                self._take_back(error.pod)
            raise
        finally:
            self._checkpoint.giving.release()
        self._cache.wake()
        return container_response(given)

    def _give(self, device_ids: Sequence[str], deadline: float) -> Slice:
        """The slice kubelet asks for, in the checkpoint. Raises RefusalError."""
        left = deadline - time.monotonic()
        lock, candidates, unanswered = self._candidates(len(device_ids), left * 0.8)
        self._refuse_strangers(len(device_ids))
        try:
            turn = choose(candidates, lock, device_ids, self._offer.devices)
        except RefusalError as error:
            item = None if unanswered else self._given_before(device_ids)
            if item is None:
                raise RefusalError(f"{error}{unanswered}", error.pod) from error
            _log.info("pod %s/%s: kubelet asks again, same answer", item.namespace, item.pod)
            return item
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        item = decide(turn, device_ids, self._offer.devices, self._checkpoint.slices, created)
        try:
            self._checkpoint.add(item)
        except OSError as error:
            raise turn.refuse(f"the checkpoint cannot be written: {error}") from error
        _log.info("pod %s, container %s: %s", turn.pod.title, item.container, _describe(item))
        return item

    def _refuse_strangers(self, count: int) -> None:
        others = strangers(self._cache.pods(), self._node, count)
        if others:
            raise RefusalError(
                f"{', '.join(pod.title for pod in others)} asks for {count} GPUs and was not "
                "placed by the scheduler that books them: nothing is given while kubelet may mean "
                "this pod"
            )

    def _candidates(self, count: int, timeout: float) -> tuple[NodeLock | None, list[Turn], str]:
        """The lock, who may ask for ``count`` GPUs, and why that may be old news.

        The cache is believed where its lock names one of them; everything else is a guess, and
        for that the API server is asked once, within ``timeout`` seconds.
        """
        lock, candidates = self._known_candidates()
        if owners(candidates, lock, count):
            return lock, candidates, ""
        unanswered = ""
        try:
            self._cache.refresh(max(0.05, timeout))
        except ApiServerError as error:
            unanswered = f" ({error})"
        return *self._known_candidates(), unanswered

    def _known_candidates(self) -> tuple[NodeLock | None, list[Turn]]:
        node = self._cache.node()
        lock = node.lock() if node is not None else None
        return lock, turns(self._cache.pods(), self._node, self._checkpoint.slices)

    def _given_before(self, device_ids: Sequence[str]) -> Slice | None:
        """The slice of a pod with exactly these ids, of which kubelet lost its record.

        None if any other pod may be meant: the limits would be the wrong pod's.
        """
        pods = [pod for pod in self._cache.pods() if not (pod.ended or pod.deleted)]
        served = {item.key for item in self._checkpoint.slices}
        for pod in pods:
            for claim in pod.claims:
                if (pod.uid, claim.container) not in served and not pod.acknowledged:
                    return None
        alive = {pod.uid for pod in pods}
        same = [
            item
            for item in slices_to_hold(self._checkpoint.slices, device_ids)
            if item.pod_uid in alive
        ]
        shares = {item.shares for item in same}
        return same[-1] if len(shares) == 1 else None

    def _booked(self, size: int) -> list[str]:
        """The GPUs booked for the container that kubelet is about to ask for; empty if unknown."""
        lock, candidates, _ = self._candidates(size, _PREFER_SECONDS)
        fitting = [turn for turn in candidates if turn.claim.count == size]
        likely = owners(candidates, lock, size) or fitting
        if len(likely) != 1:
            return []
        try:
            entry = likely[0].entry()
        except RefusalError:
            return []
        booked = [find_device(self._offer.devices, share.id) for share in entry]
        return [device.gpu.bdf for device in booked if device is not None]

    def _take_back(self, pod: Pod) -> None:
        """A refused pod never starts: what its other containers got is free again."""
        try:
            self._checkpoint.remove_pod(pod.uid)
        except OSError as error:
            _log.warning("pod %s: its slices stay for now: %s", pod.title, error)
        self._binding.fail(pod)


def options() -> pb.DevicePluginOptions:
    """What kubelet is to ask of this plugin."""
    return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def device_list(devices: Sequence[Device]) -> pb.ListAndWatchResponse:
    """Every slot of every device, with its health and NUMA node."""
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


def container_response(given: Answer) -> pb.ContainerAllocateResponse:
    """An answer, as kubelet reads it."""
    return pb.ContainerAllocateResponse(
        envs=dict(given.envs),
        mounts=[
            pb.Mount(host_path=host, container_path=inside, read_only=True)
            for host, inside in given.mounts
        ],
        devices=[
            pb.DeviceSpec(host_path=path, container_path=path, permissions="rw")
            for path in given.devices
        ],
    )


def _sliced(items: Sequence[Slice]) -> bool:
    return any(share.vram_bytes is not None for item in items for share in item.shares)


def _describe(item: Slice) -> str:
    return "; ".join(
        f"GPU {share.bdf} whole"
        if share.vram_bytes is None
        else f"GPU {share.bdf} {share.vram_bytes // MIB} MiB, CUs {share.cus or 'all'}"
        for share in item.shares
    )
