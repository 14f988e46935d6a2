# SPDX-License-Identifier: Apache-2.0
"""Files of other Debian suites: their ROCm, and headers to hold our ABI numbers against."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, Step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADERS = ("libhsa-runtime-dev",)


def unpacked(suite: str, packages: Sequence[str]) -> Path:
    """A directory with the files of these packages of a suite; nothing is installed.

    Raises StepError where the archive does not have them.
    """
    cache = Cache.from_environment(os.environ)
    report = Report()
    step = Step("hook packages", report, cache.root / "logs" / "hook-packages.log")
    step.log.parent.mkdir(parents=True, exist_ok=True)
    archive = apt.open_archive(cache, step, refresh=False)

    def make(into: Path, step: Step) -> None:
        fetched = into / "packages"
        fetched.mkdir()
        environment = {"APT_CONFIG": str(archive.root / "apt.conf"), "LC_ALL": "C"}
        names = [f"{name}/{suite}" for name in packages]
        step.run(["apt-get", "download", *names], cwd=fetched, env=environment)
        for package in sorted(fetched.glob("*.deb")):
            apt.unpack(package, into / "root", step)
            package.unlink()

    key = "-".join(sorted(packages)).replace("+", "")[:100]
    return cache.ensure("hook-packages", suite, key, report, make) / "root"
