# SPDX-License-Identifier: Apache-2.0
"""The distribution's Prometheus and promtool, unpacked and never installed: no service runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.testbed.cache import Step

VARIABLE = "RINGFENCE_PROMETHEUS"
"""Names the directory of the programs where they cannot be prepared: in the virtual node."""
_RECIPE = "2"
_PROGRAMS = ("prometheus", "promtool")


def prepare(cache: Cache, report: Report) -> Path:
    """The directory with both programs, downloaded unless they are there. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        for name in _PROGRAMS:
            # Since Debian 13 the second has a package of its own, of its name.
            if (into / "usr/bin" / name).exists():
                continue
            step.say(f"downloading {name}")
            step.run(["apt-get", "download", name], cwd=into)
            for file in into.glob("*.deb"):
                apt.unpack(file, into, step)
                file.unlink()

    release = apt.parse_os_release(Path("/etc/os-release").read_text())
    key = digest(_RECIPE, release.id, release.codename)
    return cache.ensure("prometheus", "programs", key, report, make) / "usr/bin"


def program(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """``prometheus`` or ``promtool``. Raises StepError, and FileNotFoundError for another name."""
    if (given := environment.get(VARIABLE)) is not None:
        directory = Path(given)
    else:
        directory = prepare(Cache.from_environment(environment), Report())
    found = directory / name
    if not found.is_file():
        raise FileNotFoundError(f"{found}: no such program")
    return found
