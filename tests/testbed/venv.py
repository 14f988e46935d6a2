# SPDX-License-Identifier: Apache-2.0
"""The virtual environment: the distribution's Python with its packages, and the project in it."""

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


def prepare(cache: Cache, project: Path, report: Report) -> Path:
    """The environment at <cache>/venv with the project and its `dev` extra. Raises StepError.

    An environment cannot be moved, so this step is not built aside: a stamp, written last, tells a
    complete environment from one whose making was interrupted, and that one is made anew. When only
    the project's wishes changed, they are added to the one that is there.
    """
    place = cache.root / "venv"
    stamp = place / _STAMP
    key = digest(str(project), _wishes(project), _version())
    if _text(stamp) == key:
        return place
    with cache.lock("venv", cache.step("venv", report, "venv.log")) as step:
        if _text(stamp) == key:
            return place
        if place.exists() and _text(stamp) is None:
            step.say("starting over: it was left unfinished")
            shutil.rmtree(place)
        stamp.unlink(missing_ok=True)
        step.say(f"installing the project and what it imports into {place}")
        step.run([PYTHON, "-m", "venv", "--system-site-packages", place])
        step.run([place / "bin/pip", "install", "--editable", f"{project}[dev]"])
        write_whole(stamp, key)
    return place


def _wishes(project: Path) -> str:
    """What pyproject.toml wants installed; its other tables change without a new environment."""
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    fields = ("requires-python", "dependencies", "optional-dependencies", "scripts")
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
