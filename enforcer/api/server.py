# SPDX-License-Identifier: Apache-2.0
"""Serves the local API on a unix socket."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import grpc

from enforcer.api import convert
from enforcer.api import enforcer_pb2 as pb
from enforcer.api.enforcer_pb2_grpc import EnforcerServicer, add_EnforcerServicer_to_server
from enforcer.api.errors import NotFoundError, UntoldError
from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from enforcer.model import DeviceTest, ImageLibc, Protection, Snapshot

_THREADS = 8
_DEFAULT_WAIT = 10.0
_MARGIN = 0.25  # seconds left to answer in, before the caller's deadline


class Node(Protocol):
    """What the server asks: the daemon."""

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        """As the API's Prepare. Raises NotFoundError after waiting up to ``wait`` seconds."""

    def snapshot(self) -> Snapshot | None:
        """The last pass; None before the first one."""

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        """As the API's TestDevices, in ``wait`` seconds. Raises NotFoundError, UntoldError."""

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        """As the API's GetImageLibc, in ``wait`` seconds. Raises NotFoundError, UntoldError."""


class Server:
    """The API on ``socket``, from ``start`` to ``stop``.

    The socket appears ready-made, by rename: a client sees the dead predecessor's or this one, and
    the mode (0660) is set before anyone can connect.
    """

    def __init__(self, node: Node, socket: Path) -> None:
        self._socket = socket
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="api"),
            options=(("grpc.so_reuseport", 0),),
        )
        add_EnforcerServicer_to_server(_Servicer(node), self._server)

    def start(self) -> None:
        """Raises OSError when the socket cannot be made."""
        self._socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = self._socket.with_name(f"{self._socket.name}.{os.getpid()}")
        try:
            self._server.add_insecure_port(f"unix:{new}")
        except RuntimeError as error:
            raise OSError(f"{new}: cannot listen: {error}") from error
        new.chmod(0o660)
        self._server.start()
        new.rename(self._socket)

    def stop(self) -> None:
        """Let the calls under way end, then take the socket away."""
        self._server.stop(grace=1.0).wait()
        self._socket.unlink(missing_ok=True)


class _Servicer(EnforcerServicer):
    def __init__(self, node: Node) -> None:
        self._node = node

    def Prepare(  # noqa: N802 - the service's name
        self, request: pb.PrepareRequest, context: grpc.ServicerContext
    ) -> pb.PrepareResponse:
        if not request.pod_uid or not request.container:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected pod_uid and container")
        try:
            held = self._node.prepare(request.pod_uid, request.container, _wait(context))
        except NotFoundError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, printable(str(error)))
        except TimeoutError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, printable(str(error)))
        return pb.PrepareResponse(
            protections=[convert.protection_to_pb(one, whole=whole) for one, whole in held]
        )

    def GetHostSupport(  # noqa: N802 - the service's name
        self, _request: pb.GetHostSupportRequest, context: grpc.ServicerContext
    ) -> pb.HostSupport:
        return convert.support_to_pb(self._snapshot(context).support)

    def GetSnapshot(  # noqa: N802 - the service's name
        self, _request: pb.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> pb.Snapshot:
        return convert.snapshot_to_pb(self._snapshot(context))

    def TestDevices(  # noqa: N802 - the service's name
        self, request: pb.TestDevicesRequest, context: grpc.ServicerContext
    ) -> pb.TestDevicesResponse:
        try:
            tests = self._node.test_devices(tuple(request.bdfs), _wait(context))
        except NotFoundError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, printable(str(error)))
        except UntoldError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, printable(str(error)))
        return pb.TestDevicesResponse(
            tests=[pb.DeviceTest(path=one.path, error=one.error) for one in tests]
        )

    def GetImageLibc(  # noqa: N802 - the service's name
        self, request: pb.GetImageLibcRequest, context: grpc.ServicerContext
    ) -> pb.ImageLibc:
        try:
            found = self._node.image_libc(
                request.pod_uid, request.container, request.image, _wait(context)
            )
        except NotFoundError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, printable(str(error)))
        except UntoldError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, printable(str(error)))
        return pb.ImageLibc(
            libc=found.libc,
            version=found.version,
            tool_loads=found.tool_loads,
            auditor_loads=found.auditor_loads,
            notes=map(printable, found.notes),
        )

    def _snapshot(self, context: grpc.ServicerContext) -> Snapshot:
        snapshot = self._node.snapshot()
        if snapshot is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the first pass is not done yet")
        return snapshot


def _wait(context: grpc.ServicerContext) -> float:
    """Seconds that may be spent on the call."""
    left = context.time_remaining()
    return _DEFAULT_WAIT if left is None else min(max(0.0, left - _MARGIN), _DEFAULT_WAIT)
