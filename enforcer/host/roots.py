# SPDX-License-Identifier: Apache-2.0
"""Where the host's trees are mounted: the one place that spells them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Roots:
    """The trees of the host that readers start from."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    run: Path = Path("/run")
    dev: Path = Path("/dev")
    cgroup: Path = Path("/sys/fs/cgroup")
    share: Path = Path("/usr/share")
    docker: Path = Path("/var/lib/docker/containers")
    host: Path = Path("/proc/1/root")
    """All of them as the host's first process sees them, and what is mounted by no name here."""
