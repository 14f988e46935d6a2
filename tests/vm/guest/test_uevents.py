# SPDX-License-Identifier: Apache-2.0
"""The kernel's own events of a GPU reach the enforcer's listener."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.host.uevents import Uevent, listen

if TYPE_CHECKING:
    from enforcer.model import Gpu


def test_a_change_of_a_gpu_is_heard_and_others_are_not(gpu: Gpu) -> None:
    heard: queue.Queue[Uevent] = queue.Queue()
    ready = threading.Event()

    def follow() -> None:
        for event in listen(ready.set):
            heard.put(event)

    threading.Thread(target=follow, daemon=True).start()
    assert ready.wait(60)
    Path("/sys/class/mem/null/uevent").write_text("change")
    Path(f"/sys/class/drm/card{gpu.card}/uevent").write_text("change")
    Path(f"/sys/bus/pci/devices/{gpu.bdf}/uevent").write_text("change")
    first, second = heard.get(timeout=20), heard.get(timeout=20)
    assert (first.action, first.subsystem) == ("change", "drm")
    assert (second.subsystem, second.bdf) == ("pci", gpu.bdf)
    assert heard.empty()
