# SPDX-License-Identifier: Apache-2.0
"""Builds the BPF objects with other instructions than the Makefile does: another version's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.testbed.cache import digest, digest_files

if TYPE_CHECKING:
    from tests.testbed.cache import Cache, Report, Step

VARIABLE: Final = "RINGFENCE_OTHER_BUILD"
"""Names the directory of the objects to the tests that run on the virtual node."""

_BPF: Final = Path(__file__).parents[2] / "bpf"
_FLAGS: Final = ("-target", "bpf", "-mcpu=v3", "-O3", "-g", "-D__TARGET_ARCH_x86")


def prepare(cache: Cache, report: Report) -> Path:
    """A directory with the objects, built if their sources changed. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        system = f"/usr/include/{os.uname().machine}-linux-gnu"
        for source in _BPF.glob("*.bpf.c"):
            target = into / f"{source.stem}.o"
            include: list[str | Path] = ["-I", _BPF / "include", "-idirafter", system]
            step.run(["clang", *_FLAGS, *include, "-c", source, "-o", target])

    sources = [*_BPF.glob("*.c"), *_BPF.glob("include/*.h")]
    key = digest(digest_files(sources, _BPF), *_FLAGS)
    return cache.ensure("bpf", "other-build", key, report, make)
