# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own programs as processes of the guest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.vm.guest.services import Program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class GoProgram(Program):
    """A program written in Go, of those that the testbed built."""

    def __init__(self, programs: Path, name: str, options: Sequence[str], logs: Path) -> None:
        # All processors are one thread of the emulator: what one of them spends looking for work,
        # and on collecting garbage early, is taken from the others.
        tuned = {"GOMAXPROCS": "1", "GOGC": "400"}
        path = f"{programs}:{os.environ['PATH']}"
        super().__init__(name, [str(programs / name), *options], logs, {**tuned, "PATH": path})
