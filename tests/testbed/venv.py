# SPDX-License-Identifier: Apache-2.0
"""The virtual environment: the distribution's Python with its packages, and what the project wants.

It is one for all checkouts: the project in it is the one of the directory it is used in.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.testbed.cache import Cache, Report, StepError, digest, write_whole

PYTHON = Path("/usr/bin/python3")
"""The distribution's, because python3-bpfcc is built for it."""

_OLDEST = (3, 11)
_STAMP = "ringfence-key"
_HERE = "import os, sys; sys.path.append(os.getcwd())\n"
"""For the programs of the environment; ``python -m`` looks there anyhow."""


def prepare(cache: Cache, project: Path, report: Report) -> Path:
    """The environment at <cache>/venv for the project, with its `dev` extra. Raises StepError.

    An environment cannot be moved, so this step is not built aside: a stamp, written last, tells a
    complete environment from one whose making was interrupted, and that one is made anew. When only
    the project's wishes changed, they are added to the one that is there.
    """
    place = cache.root / "venv"
    stamp = place / _STAMP
    key = digest(_HERE, _wishes(project), _version())
    if _text(stamp) == key:
        return place
    with cache.lock("venv", cache.step("venv", report, "venv.log")) as step:
        if _text(stamp) == key:
            return place
        if place.exists() and _text(stamp) is None:
            step.say("starting over: it was left unfinished")
            shutil.rmtree(place)
        stamp.unlink(missing_ok=True)
        step.say(f"installing what the project imports into {place}")
        step.run([PYTHON, "-m", "venv", "--system-site-packages", place])
        step.run([place / "bin/pip", "install", "--editable", f"{project}[dev]"])
        use_here(place)
        write_whole(stamp, key)
    return place


def use_here(place: Path) -> None:
    """Have the environment use the checkout it is run in, not the one it was installed from.

    The project's name, version and command stay installed.
    """
    for packages in place.glob("lib/python3*/site-packages"):
        for pointer in packages.glob("__editable__*"):
            pointer.unlink()
        (packages / "ringfence.pth").write_text(_HERE)


def _wishes(project: Path) -> str:
    """What pyproject.toml wants installed; its other tables change without a new environment."""
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    fields = ("version", "requires-python", "dependencies", "optional-dependencies", "scripts")
    return repr([table.get(field) for field in fields])


def _version() -> str:
    try:
        found = subprocess.run(
            [PYTHON, "-c", "import sys; print(*sys.version_info[:3], sep='.')"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise StepError(f"{PYTHON}: expected Python 3.11 or newer, found none that runs") from error
    if tuple(map(int, found.split(".")[:2])) < _OLDEST:
        raise StepError(f"{PYTHON}: expected Python 3.11 or newer, found {found}")
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
