# SPDX-License-Identifier: Apache-2.0
"""An event that the handler of a signal may set: eventfd(2)."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class SignalSafeEvent:
    """As ``threading.Event``, without a lock; every method may be called from anywhere.

    A handler runs between any two steps of the main thread. That of ``threading.Event`` may hold
    the event's lock just then, and the handler that sets it waits for ever.
    """

    def __init__(self) -> None:
        """Raises OSError where no descriptor is left."""
        descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Closes it with this object.
        self._file = os.fdopen(descriptor, "r+b", buffering=0)

    def set(self) -> None:
        """Wake everybody who waits, or will, until it is cleared."""
        with suppress(BlockingIOError):  # it cannot be more set
            os.eventfd_write(self._file.fileno(), 1)

    def clear(self) -> None:
        """Let those wait who do from now on."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._file.fileno())

    def is_set(self) -> bool:
        """Whether it is set."""
        return self.wait(0.0)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most ``seconds``; whether it is."""
        # One of its own: a poll object is for one thread at a time.
        poll = select.poll()
        poll.register(self._file.fileno(), select.POLLIN)
        return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
