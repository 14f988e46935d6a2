# SPDX-License-Identifier: Apache-2.0
"""Spoilt copies of an object for the ELF reader of the checks, as long as told.

``python -m tests.hook.fuzz.elf OBJECT SECONDS``, beside which it writes the copies.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from audit_hook import check

Changes = list[tuple[float, bytes]]
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6)
"""Where in a file, as a share of it, and what is written there."""


def spoilt(original: bytes, changes: Changes) -> bytes:
    """A copy with these changes."""
    raw = bytearray(original)
    for place, piece in changes:
        # Headers and section tables are where a reader breaks.
        at = int(place * 1024) if place < 0.5 else int(place * (len(raw) - 1))
        raw[at : at + len(piece)] = piece
    return bytes(raw)


def read(path: Path, raw: bytes) -> None:
    """Have the reader read it. Only an error that it promises passes."""
    path.write_bytes(raw)
    with contextlib.suppress(ValueError):
        check.read_elf(path)


def main(path: Path, seconds: float) -> None:
    """Print in the end how many copies were read. Raises what the reader must not raise."""
    original = path.read_bytes()
    runs = 0

    @settings(deadline=None, max_examples=100, database=None)
    @given(CHANGES)
    def one(changes: Changes) -> None:
        nonlocal runs
        runs += 1
        read(path.with_suffix(".spoilt"), spoilt(original, changes))

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one()
    print(f"stat::number_of_executed_units: {runs}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
