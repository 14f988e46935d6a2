# SPDX-License-Identifier: Apache-2.0
"""A thread that looks again whenever the watch cache changed."""

from __future__ import annotations

import logging
import threading
import traceback
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deviceplugin.pods import PodCache

_MISTAKE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Follower(ABC):
    """Work that follows from the whole state, done again after each change of the cache."""

    def __init__(self, name: str, cache: PodCache) -> None:
        self._cache = cache
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.mistake = ""
        """What keeps the work from being done, in a line; empty while it is done."""

    @abstractmethod
    def work(self) -> float:
        """Do what is to be done; the seconds until it is due again without any change."""

    def start(self) -> None:
        """Start working."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the work under way, and do no more; what is left is found at the next start."""
        self._stopping.set()
        self._cache.wake()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        known = ""
        while not self._stopping.is_set():
            seen = self._cache.version
            try:
                pause = self.work()
            except Exception as error:
                # It starts from the whole state each time. A process that ended by it would end
                # again at every start, and its node would have no GPU for any pod.
                # Where, as there can be a number in the message.
                place = str(traceback.extract_tb(error.__traceback__)[-1:])
                self.mistake = f"{self._thread.name}: {error!r:.200}"
                if place != known:
                    known = place
                    _log.exception(
                        "%s: a mistake in it; trying again, report it with what follows",
                        self._thread.name,
                    )
                self._stopping.wait(_MISTAKE_SECONDS)
                continue
            if known:
                known = self.mistake = ""
                _log.info("%s: works again", self._thread.name)
            self._cache.wait_change(seen, pause)
