# SPDX-License-Identifier: Apache-2.0
"""Kernel events of GPUs: devices that come, go or change (a reset is a change)."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_KERNEL_GROUP = 1  # the kernel's own messages, not udev's repetition of them
_BDF = re.compile(r"(?<=/)[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?=/|$)")
_ACTIONS = frozenset({"add", "remove", "change", "bind", "unbind"})


@dataclass(frozen=True, slots=True)
class Uevent:
    """One event of a DRM device or an amdgpu PCI function."""

    action: str
    subsystem: str
    path: str
    """Below /sys, with a leading slash."""
    bdf: str | None = None
    wedged: str | None = None
    """How the driver says the device can be recovered (``WEDGED=``, kernel 6.15)."""
    task: str = ""
    """Who is to blame for that, as ``name[pid]``, printable (kernel 6.18)."""


def uevent(message: Mapping[str, object]) -> Uevent | None:
    """The event of one uevent message's keys; None if it is not about a GPU."""
    action, subsystem = message.get("ACTION"), message.get("SUBSYSTEM")
    path = message.get("DEVPATH")
    if action not in _ACTIONS or not isinstance(path, str):
        return None
    # After an unbind the message no longer names the driver, so a PCI event is taken if it could
    # be a GPU's: an event only says "look again".
    of_gpu = subsystem == "drm" or (
        subsystem == "pci" and message.get("DRIVER", "amdgpu") == "amdgpu"
    )
    if not of_gpu:
        return None
    # A DRM device is told by its path alone; its PCI function is the last one in it.
    bdfs = _BDF.findall(path)
    wedged, task, pid = (message.get(key) for key in ("WEDGED", "TASK", "PID"))
    return Uevent(
        str(action),
        str(subsystem),
        path,
        bdfs[-1].lower() if bdfs else None,
        wedged if isinstance(wedged, str) else None,
        printable(f"{task}[{pid}]") if isinstance(task, str) and isinstance(pid, str) else "",
    )


def listen(ready: Callable[[], None]) -> Iterator[Uevent]:
    """GPU events as they happen, for ever; ``ready`` is called once none can be missed any more.

    Belongs to the thread that iterates it. Raises OSError where netlink is not allowed.
    """
    # Its import probes traffic control, and warns of kernels without it.
    logging.getLogger("pyroute2").propagate = False
    from pyroute2 import UeventSocket  # noqa: PLC0415 - 10 MiB that only a listener needs

    with UeventSocket() as socket:
        socket.bind(groups=_KERNEL_GROUP)
        ready()
        while True:
            for message in socket.get():
                event = uevent(message)
                if event is not None:
                    yield event
