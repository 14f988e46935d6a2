# SPDX-License-Identifier: Apache-2.0
"""What the hook costs: ratios of one run, with and without it taken in turns.

``python -m tests.hook.bench`` prints a line per figure; needs what the tests of this folder need.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from audit_hook.image import glibc_version
from tests.hook.build import NotHere, build
from tests.hook.container import HOOK, PROGRAMS, Container
from tests.hook.debian import libraries_of
from tests.hook.test_loaders import compile_for, start
from tests.testbed.cache import StepError

_TURNS = 5
_STARTS = 150
_WITHOUT: dict[str, str | None] = {"LD_AUDIT": None, "HSA_TOOLS_LIB": None}
_QUIET: dict[str, str | None] = {"THUNK_LOG": None}


def _speeds(container: Container, env: dict[str, str | None]) -> dict[str, float]:
    result = container.run(PROGRAMS / "speed", env={**_QUIET, **env}, timeout=300)
    return {name: float(value) for name, value in map(str.split, result.lines)}


def _start_us(hook: Path, audited: bool) -> float:
    """Microseconds to start and end an empty program; the best of many."""
    env = {"PATH": "/usr/bin:/bin"}
    if audited:
        env["LD_AUDIT"] = str(hook / "libringfence-audit.so")
    best = float("inf")
    for _ in range(_STARTS):
        began = time.perf_counter()
        subprocess.run(["/bin/true"], env=env, check=True)
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def _loaders(hook: Path, root: Path) -> None:
    """The cost of a call and of a start under each glibc at hand, oldest first."""
    programs = root / "loaders"
    programs.mkdir()
    for suite in ("bullseye", "bookworm", "trixie", "sid", "experimental"):
        try:
            libraries = libraries_of(suite)
            own = programs / suite
            own.mkdir()
            compile_for(suite, own)
        except (StepError, OSError, subprocess.CalledProcessError) as error:
            print(f"{suite:16} not measured: {str(error).splitlines()[0]}")
            continue
        release = glibc_version((libraries / "libc.so.6").read_bytes())
        calls = {audited: float("inf") for audited in (False, True)}
        starts = dict(calls)
        for _ in range(_TURNS):
            for audited in (False, True):
                env = {"LD_AUDIT": str(hook / "libringfence-audit.so")} if audited else {}
                call = float(start(libraries, own / "plt", env).stdout)
                calls[audited] = min(calls[audited], call)
                for _ in range(_STARTS // 5):
                    began = time.perf_counter()
                    start(libraries, own / "x", env)
                    starts[audited] = min(starts[audited], (time.perf_counter() - began) * 1e6)
        name = f"glibc {release[0]}.{release[1]}" if release else suite
        print(
            f"{name:16} a call {calls[False]:.2f} ns  with the auditor {calls[True]:.2f} ns;  "
            f"a start {starts[False]:.0f} us  +{starts[True] - starts[False]:.0f} us"
        )


def main() -> int:
    """Measure and print; 2 where something is missing."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        try:
            built = build(root / "built")
        except NotHere as missing:
            print(f"bench: {missing}", file=sys.stderr)
            return 2
        container = Container(root / "container", built)
        container.give_mib(4096)
        plain: dict[str, float] = {}
        hooked: dict[str, float] = {}
        starts = {False: float("inf"), True: float("inf")}
        for _ in range(_TURNS):
            for best, env in ((plain, _WITHOUT), (hooked, {})):
                for name, value in _speeds(container, env).items():
                    best[name] = min(best.get(name, value), value)
            for audited in (False, True):
                starts[audited] = min(starts[audited], _start_us(built / "hook", audited))
        for name, without in plain.items():
            cost = hooked[name] - without
            print(
                f"{name:16} {without:9.1f} ns  with the hook {hooked[name]:9.1f} ns"
                f"  +{cost:.1f} ns  x{hooked[name] / without:.3f}"
            )
        alone = min(
            float(
                container.run(PROGRAMS / "overhead", HOOK / "libringfence-hsa.so", env=_WITHOUT).out
            )
            for _ in range(_TURNS)
        )
        print(f"{'allocate + free':16} the tools library alone {alone:9.1f} ns")
        added = starts[True] - starts[False]
        print(
            f"{'start':16} {starts[False]:9.1f} us  with the auditor {starts[True]:6.1f} us"
            f"  +{added:.1f} us  x{starts[True] / starts[False]:.3f}"
        )
        _loaders(built / "hook", root)
        print(f"files: {HOOK}; slice of 4096 MiB; best of {_TURNS} turns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
