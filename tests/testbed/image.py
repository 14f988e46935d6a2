# SPDX-License-Identifier: Apache-2.0
"""The block image with Python: thousands of small files are slow to read over 9p."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.cache import Cache, Report, Step, StepError, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RECIPE = "1"
_FILE = "python.erofs"

_UNUSED_AFTER_S = 3600.0
"""Each is 300 MB, and one that a machine has open outlives its name."""

_LEFT_OUT = (
    *("mypy", "mypyc", "*__mypyc.*.so", "helm_python", "kubernetes_validate", "ruff", "pip"),
    *("config-*", "test"),
)
"""Big, and used on the host only."""


@dataclass(frozen=True, slots=True)
class Image:
    """`file` holds each of `directories` at its own path."""

    file: Path
    directories: tuple[Path, ...]


def python_directories(venv: Path) -> tuple[Path, ...]:
    """The directories a virtual environment imports from: itself and the distribution's Python."""
    versions = sorted(path.name for path in (venv / "lib").glob("python3*"))
    system = [Path("/usr/lib", name) for name in versions]
    return (venv, *(path for path in [*system, Path("/usr/lib/python3")] if path.is_dir()))


def prepare(cache: Cache, directories: Sequence[Path], report: Report) -> Image:
    """The image of these directories as they are now, made if they changed. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        step.say(f"copying {', '.join(map(str, directories))} into a block image")
        stage = into / "stage"
        for directory in directories:
            target = stage / directory.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copytree(
                    directory,
                    target,
                    symlinks=True,
                    copy_function=_link_or_copy,
                    ignore=shutil.ignore_patterns(*_LEFT_OUT),
                )
            except OSError as error:
                raise StepError(
                    f"{step.name}: {directory} cannot be copied, or changed meanwhile (is "
                    f"something being installed?); try again. {error}"
                ) from error
        step.run(["mkfs.erofs", "--all-root", into / _FILE, stage])
        shutil.rmtree(stage)

    key = digest(_RECIPE, *_fingerprint(directories))
    place = cache.ensure("image", "python", key, report, make, unused_after_s=_UNUSED_AFTER_S)
    return Image(place / _FILE, tuple(directories))


def _fingerprint(directories: Sequence[Path]) -> Iterator[str]:
    """Name, size and time of each file: reading 200 MB at every run would be slow.

    Not of compiled files, which Python adds whenever a module is first imported.
    """
    for directory in directories:
        yield str(directory)
        for path, folders, names in os.walk(directory):
            folders[:] = sorted(
                name for name in folders if name != "__pycache__" and not _is_left_out(name)
            )
            for name in sorted(names):
                if not _is_left_out(name):
                    state = os.lstat(f"{path}/{name}")
                    yield f"{path}/{name} {state.st_size} {state.st_mtime_ns}"


def _is_left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _LEFT_OUT)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target
