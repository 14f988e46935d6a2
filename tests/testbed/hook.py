# SPDX-License-Identifier: Apache-2.0
"""Builds the hook and a HIP program that meets the virtual node's KFD, for the tests in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hook import build
from tests.testbed.cache import StepError, digest, digest_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed.cache import Cache, Report, Step

_TREE = Path(__file__).parents[2]
_BRIDGE = _TREE / "tests" / "vm" / "hook" / "bridge.c"
_FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


def _sources() -> Iterator[Path]:
    yield from (_BRIDGE, _BRIDGE.parents[1] / "client" / "abi.h")
    yield from (_TREE / "tests" / "hook" / name for name in ("build.py", "__init__.py"))
    for folder in ("audit_hook", "tests/hook/thunk", "tests/hook/programs"):
        yield from (
            path
            for path in sorted((_TREE / folder).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        )


def prepare(cache: Cache, report: Report) -> Path:
    """What ``tests.hook.build`` makes, and the bridge beside the stand-in thunk.

    Raises NotHere on a machine without the distribution's ROCm, StepError.
    """

    def make(into: Path, step: Step) -> None:
        try:
            build.build(into)
        except subprocess.CalledProcessError as error:
            raise StepError(str(error)) from error
        bridge = into / "thunk" / "libbridge.so"
        step.run(["gcc", *_FLAGS, "-o", bridge, _BRIDGE, "-lpthread"])

    key = digest(digest_files(_sources(), _TREE), *_FLAGS)
    return cache.ensure("hook", "hook", key, report, make)
