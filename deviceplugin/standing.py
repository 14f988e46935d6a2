# SPDX-License-Identifier: Apache-2.0
"""How each resource stands with kubelet, in a file for `ringfence doctor`.

A JSON object ``{"resource": {"state": ..., "why": ..., "since": <RFC 3339>}}``.
"""

from __future__ import annotations

import json
import logging
import threading
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "registration.json"

_log = logging.getLogger(__name__)


class State(StrEnum):
    """What became of a registration."""

    WAITING = "waiting"
    """There is no kubelet to register with."""
    REFUSED = "refused"
    """kubelet did not take it; in newer versions because another plugin has the resource."""
    UNHEARD = "unheard"
    """kubelet took it, and listens to another plugin, or to nobody yet."""
    REGISTERED = "registered"


class Standings:
    """The file, and what is in it. Every method may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[str, tuple[State, str, str]] = {}
        self._telling = threading.Lock()
        self._trouble = ""

    def tell(self, resource: str, state: State, why: str = "") -> None:
        """Write it down where it is news. One that fails is tried again by the next call."""
        with self._telling:
            known = self._told.get(resource)
            if known is not None and known[:2] == (state, why):
                return
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            told = {**self._told, resource: (state, why, now)}
            if self._write(told):
                self._told = told

    def _write(self, told: Mapping[str, tuple[State, str, str]]) -> bool:
        text = json.dumps(
            {
                resource: {"state": state.value, "why": why, "since": since}
                for resource, (state, why, since) in sorted(told.items())
            },
            indent=1,
        )
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(f"{text}\n")
            new.replace(self._path)
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("%s: what doctor would read cannot be written: %s", self._path, error)
            return False
        self._trouble = ""
        return True
