# SPDX-License-Identifier: Apache-2.0
"""The devices on offer and their health, looked at again and again."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from deviceplugin.devices import GONE, WITHHELD, Device, devices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deviceplugin.terms import Terms
    from enforcer.model import Gpu

_SOON_SECONDS = 1.0

_log = logging.getLogger(__name__)


def merge(
    known: Sequence[Device], found: Sequence[Device], there: Iterable[str] = ()
) -> tuple[Device, ...]:
    """What is found now, and what was known and is not, as unhealthy: its slices still name it.

    A GPU that was split or put together again is not gone: it is offered as what it is now. One
    whose PCI address is ``there`` is not gone either.
    """
    present, there = {device.gpu.bdf for device in found}, set(there)
    gone = [
        replace(device, healthy=False, why=WITHHELD if device.gpu.bdf in there else GONE)
        for device in known
        if device.gpu.bdf not in present
    ]
    return tuple(
        sorted([*found, *gone], key=lambda device: (device.gpu.bdf, device.gpu.partition or 0))
    )


class Offer:
    """The devices, kept by a thread; every method may be called from any thread."""

    def __init__(
        self,
        read: Callable[[], tuple[list[Gpu], list[str]]],
        terms: Callable[[], tuple[Terms, Sequence[str]]],
        seconds: float,
        on_change: Callable[[], None],
        ailing: Callable[[], Mapping[str, str]] = dict,
        soon: Callable[[], bool] = bool,
    ) -> None:
        """``read`` gives the GPUs and the problems, ``terms`` how they are offered, and problems.

        ``ailing`` gives those that are there and unhealthy, by a device's key or a GPU's PCI
        address, and why. All are called every ``seconds``, and every second while it is ``soon``
        that there may be more to see.
        """
        self._on_change = on_change
        self._read = read
        self._terms = terms
        self._ailing = ailing
        self._seconds = seconds
        self._soon = soon
        self._changed = threading.Condition()
        self._devices: tuple[Device, ...] = ()
        self._problems: tuple[str, ...] = ()
        self._version = 0
        self.trouble = ""
        """Why the last look failed; empty if it did not."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inventory", daemon=True)

    def start(self) -> None:
        """Look once, then keep looking."""
        self._try_look()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopping.set()
        self._thread.join(timeout=10)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in order of PCI address."""
        with self._changed:
            return self._devices

    def snapshot(self) -> tuple[int, tuple[Device, ...]]:
        """The version, which grows with every change, and the devices."""
        with self._changed:
            return self._version, self._devices

    def wait_change(self, seen: int, timeout: float) -> None:
        """Wait for another version than ``seen`` or a ``wake``, at most ``timeout`` seconds."""
        with self._changed:
            if self._version == seen:
                self._changed.wait(timeout)

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def look(self) -> None:
        """Read the inventory now."""
        gpus, problems = self._read()
        terms, overruled = self._terms()
        offered, left_out = devices_of(gpus, terms)
        ailing = self._ailing()
        found = []
        for device in offered:
            why = ailing.get(device.key) or ailing.get(device.gpu.bdf)
            found.append(replace(device, healthy=False, why=why) if why else device)
        lines = (*problems, *overruled, *left_out)
        for line in lines:
            if line not in self._problems:
                _log.warning("%s", line)
        self._problems = lines
        with self._changed:
            devices = merge(self._devices, found, [gpu.bdf for gpu in gpus])
            if devices == self._devices:
                return
            _log_changes(self._devices, devices)
            self._devices = devices
            self._version += 1
            self._changed.notify_all()
        self._on_change()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause()):
            self._try_look()

    def _try_look(self) -> None:
        try:
            self.look()
        except OSError as error:
            if str(error) != self.trouble:
                self.trouble = str(error)
                _log.warning("inventory: %s; the last one stays", error)
        else:
            if self.trouble:
                self.trouble = ""
                _log.info("inventory: it can be read again")

    def _pause(self) -> float:
        return min(_SOON_SECONDS, self._seconds) if self._soon() else self._seconds


def _log_changes(before: Sequence[Device], after: Sequence[Device]) -> None:
    known = {device.key: device for device in before}
    for device in after:
        old = known.get(device.key)
        if old is None or (device.healthy and not old.healthy):
            _log.info("GPU %s (%s) is offered %d times", device.key, device.id, len(device.slots))
        elif old.healthy and not device.healthy:
            _log.warning("GPU %s (%s) is unhealthy: %s", device.key, device.id, device.why)
