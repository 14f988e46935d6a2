# SPDX-License-Identifier: Apache-2.0
"""What AMD's Device Metrics Exporter says of the GPUs' health, where it runs on the node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc

from deviceplugin.api import exporter_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Exporter:
    """The exporter behind a socket that may not be there.

    Only what it calls unhealthy is: anything else, a health it does not know among it, is no
    opinion. While it does not answer its last opinion stays, as a restart of it heals no GPU; with
    its socket the opinion goes.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._ailing: Mapping[str, str] = {}
        self._silent = False

    def ailing(self) -> Mapping[str, str]:
        """PCI address -> why, of each GPU that is unhealthy."""
        if not self._socket.exists():
            self._ailing = {}
            return {}
        try:
            states = self._ask()
        except grpc.RpcError as error:
            if not self._silent:
                self._silent = True
                _log.warning(
                    "the metrics exporter at %s does not answer (%s): what it said last stays",
                    self._socket,
                    error.code().name.lower(),
                )
            return self._ailing
        self._silent = False
        self._ailing = {
            state.device.lower(): f"the metrics exporter says {state.health}"
            for state in states
            if state.health.lower() == "unhealthy"
        }
        return self._ailing

    def _ask(self) -> list[pb.GpuState]:
        # A new connection each time: one that is kept would not notice a replaced socket.
        with grpc.insecure_channel(f"unix:{self._socket}") as channel:
            call = channel.unary_unary(
                "/metricssvc.MetricsService/List",
                request_serializer=pb.Empty.SerializeToString,
                response_deserializer=pb.GpuStates.FromString,
            )
            answer: pb.GpuStates = call(pb.Empty(), timeout=_SECONDS)
            return list(answer.states)
