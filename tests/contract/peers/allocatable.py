# SPDX-License-Identifier: Apache-2.0
"""How long a kubelet has no healthy device of a resource."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.contract.peers.kubelet import Kubelet

_PAUSE_SECONDS = 0.02


class Allocatable(threading.Thread):
    """Counts from its start until told to finish."""

    def __init__(self, kubelet: Kubelet, resource: str) -> None:
        super().__init__(daemon=True)
        self._kubelet = kubelet
        self._resource = resource
        self._over = threading.Event()
        self.seconds = 0.0

    def run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_PAUSE_SECONDS):
            now = time.monotonic()
            devices = self._kubelet.wait_devices(self._resource, lambda _: True)
            if "Healthy" not in devices.values():
                self.seconds += now - before
            before = now

    def finish(self) -> float:
        """The seconds without one."""
        self._over.set()
        self.join(60)
        return self.seconds
