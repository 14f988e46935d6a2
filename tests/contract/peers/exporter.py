# SPDX-License-Identifier: Apache-2.0
"""AMD's Device Metrics Exporter, as far as the device plugin asks it: real gRPC on its socket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from deviceplugin.api import exporter_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path


class Exporter:
    """Answers from its creation until ``close``; ``states`` is PCI address -> health."""

    def __init__(self, socket: Path, states: dict[str, str]) -> None:
        self.states = states
        self._socket = socket
        method = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=pb.Empty.FromString,
            response_serializer=pb.GpuStates.SerializeToString,
        )
        self._server = grpc.server(ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("metricssvc.MetricsService", {"List": method}),)
        )
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def close(self, *, leave_socket: bool = False) -> None:
        """End; ``leave_socket`` leaves its file, as a kill does."""
        self._server.stop(0).wait()
        self._socket.unlink(missing_ok=True)
        if leave_socket:
            self._socket.touch()

    def _list(self, _request: pb.Empty, _context: grpc.ServicerContext) -> pb.GpuStates:
        return pb.GpuStates(
            states=[
                pb.GpuState(id=str(number), device=bdf, health=health)
                for number, (bdf, health) in enumerate(self.states.items())
            ]
        )
