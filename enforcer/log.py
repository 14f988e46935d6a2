# SPDX-License-Identifier: Apache-2.0
"""The log of a process that runs until stopped."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from enforcer.printable import printable

if TYPE_CHECKING:
    from types import TracebackType

    _ExcInfo = (
        tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    )


class LineFormatter(logging.Formatter):
    """A line for each record, whatever is in it; a traceback follows it, set in."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the parent's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - the parent's name
        # The message of an exception may hold a line that looks like one of the log.
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line)}" for line in lines)


def to_stderr(level: int | str, form: str) -> None:
    """Log to standard error from here on; ``form`` as of ``logging.Formatter``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])


def leave(status: int) -> NoReturn:
    """End this process, whose other threads may be in the middle of a line.

    The interpreter's own end would wait for the lock of standard error that such a thread holds,
    and abort. A record is written out when it is logged, so none is lost.
    """
    os._exit(status)
