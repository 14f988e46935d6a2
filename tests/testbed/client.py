# SPDX-License-Identifier: Apache-2.0
"""Builds the static GPU client that tests put into containers: it knows nothing of Ringfence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.cache import digest, digest_files

if TYPE_CHECKING:
    from tests.testbed.cache import Cache, Report, Step

SOURCE = Path(__file__).parents[1] / "vm" / "client" / "gpuclient.c"
_FLAGS = ("-static", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")


def prepare(cache: Cache, report: Report) -> Path:
    """The program, built if its source changed. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        parts = sorted(SOURCE.parent.glob("*.c"))
        step.run(["gcc", *_FLAGS, "-o", into / SOURCE.stem, *parts])

    sources = SOURCE.parent.glob("*.[ch]")
    key = digest(digest_files(sources, SOURCE.parent), *_FLAGS)
    return cache.ensure("client", SOURCE.stem, key, report, make) / SOURCE.stem
