# SPDX-License-Identifier: Apache-2.0
"""What the guest sends: output streams that end in a mark, and lines on the control port."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class MarkedStream:
    """A byte stream that ends where `end` stands; the mark and what follows are no part of it.

    Bytes are handed out as early as possible: only a tail that may be the mark's beginning waits.
    """

    end: bytes
    ended: bool = False
    _held: bytes = field(default=b"")

    def feed(self, data: bytes) -> bytes:
        """Take bytes in, give back those that are certainly output."""
        if self.ended:
            return b""
        data = self._held + data
        position = data.find(self.end)
        if position >= 0:
            self.ended = True
            self._held = b""
            return data[:position]
        keep = _overlap(data, self.end)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def rest(self) -> bytes:
        """The bytes still held back, for a stream that was cut before its mark."""
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, mark: bytes) -> int:
    """Length of the longest tail of `data` that is a beginning of `mark`."""
    for length in range(min(len(mark) - 1, len(data)), 0, -1):
        if data.endswith(mark[:length]):
            return length
    return 0


@dataclass(slots=True)
class Control:
    """The guest's own words: `started`, `exit <status>`, `failed <reason>`, one per line."""

    started: bool = False
    status: int | None = None
    failure: str | None = None
    _partial: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        """Take bytes in; complete lines change the state.

        Raises ValueError for a line that is none of the three.
        """
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._line(line.decode(errors="replace"))

    def _line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "started" and not rest:
            self.started = True
        elif word == "exit" and rest.isascii() and rest.isdigit() and int(rest) < 256:
            self.status = int(rest)
        elif word == "failed":
            self.failure = rest
        else:
            raise ValueError(
                f"guest control port: expected started, exit or failed, found {line!r}"
            )
