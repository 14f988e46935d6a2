# SPDX-License-Identifier: Apache-2.0
"""A signal that asks us to end becomes an exception: every `finally` on the way out runs."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def stop_by_exception() -> None:
    """From now on Ctrl-C, SIGTERM and SIGHUP raise SystemExit(128 + number) in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
