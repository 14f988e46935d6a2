# SPDX-License-Identifier: Apache-2.0
"""Asks the enforcer of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import grpc

from enforcer.api import convert
from enforcer.api import enforcer_pb2 as pb
from enforcer.api.enforcer_pb2_grpc import EnforcerStub
from enforcer.model import DeviceTest, ImageLibc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from enforcer.model import HostSupport, Protection, Snapshot

_Answer = TypeVar("_Answer")

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # The socket is replaced when the enforcer restarts: do not sit out a minute of back-off.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
)


class EnforcerError(Exception):
    """The enforcer did not give the answer; the message says why, in one line."""

    def __init__(self, message: str, *, not_found: bool = False) -> None:
        super().__init__(message)
        self.not_found = not_found
        """What was asked for is not there (yet): the slice, its pod's cgroup, a GPU, an image."""


class Client:
    """A connection to the enforcer's socket, made at the first call and again after a restart.

    Every call has a deadline in seconds and raises EnforcerError. Safe to use from many threads.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._stub = EnforcerStub(self._channel)

    def prepare(
        self, pod_uid: str, container: str, timeout: float
    ) -> list[tuple[Protection, bool]]:
        """Hold the pod-level limit of one container's slice.

        One (protection, is a whole GPU) per GPU, judged by reading back. A limit that no layer
        holds is an answer, not an error.
        """
        request = pb.PrepareRequest(pod_uid=pod_uid, container=container)
        answer = self._call(lambda: self._stub.Prepare(request, timeout=timeout))
        return self._convert(
            lambda: [convert.protection_from_pb(one) for one in answer.protections]
        )

    def host_support(self, timeout: float) -> HostSupport:
        """What this node can hold."""
        request = pb.GetHostSupportRequest()
        answer = self._call(lambda: self._stub.GetHostSupport(request, timeout=timeout))
        return self._convert(lambda: convert.support_from_pb(answer))

    def snapshot(self, timeout: float) -> Snapshot:
        """The node as of the enforcer's last pass."""
        request = pb.GetSnapshotRequest()
        answer = self._call(lambda: self._stub.GetSnapshot(request, timeout=timeout))
        return self._convert(lambda: convert.snapshot_from_pb(answer))

    def test_devices(self, bdfs: Iterable[str] = (), *, timeout: float) -> list[DeviceTest]:
        """Whether ``/dev/kfd`` and the render nodes of these GPUs, or of all, can be opened."""
        request = pb.TestDevicesRequest(bdfs=bdfs)
        answer = self._call(lambda: self._stub.TestDevices(request, timeout=timeout))
        return [DeviceTest(one.path, one.error) for one in answer.tests]

    def image_libc(
        self, pod_uid: str, container: str, image: str = "", *, timeout: float
    ) -> ImageLibc:
        """What the C library of a container's image means for the hook.

        ``image``: its name in the pod, for a container that is not there yet.
        """
        request = pb.GetImageLibcRequest(pod_uid=pod_uid, container=container, image=image)
        answer = self._call(lambda: self._stub.GetImageLibc(request, timeout=timeout))
        return ImageLibc(
            answer.libc,
            answer.version,
            answer.tool_loads,
            answer.auditor_loads,
            tuple(answer.notes),
        )

    def close(self) -> None:
        """End the connection; calls under way fail."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call()
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            hint = (
                "; is `ringfence enforcer` running on this node?"
                if code is grpc.StatusCode.UNAVAILABLE
                else ""
            )
            raise EnforcerError(
                f"enforcer at {self._socket}: {code.name.lower()}: {details}{hint}",
                not_found=code is grpc.StatusCode.NOT_FOUND,
            ) from error

    def _convert(self, make: Callable[[], _Answer]) -> _Answer:
        try:
            return make()
        except ValueError as error:
            raise EnforcerError(
                f"enforcer at {self._socket}: an answer of another version: {error}"
            ) from error
