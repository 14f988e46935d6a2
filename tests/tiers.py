# SPDX-License-Identifier: Apache-2.0
"""`make test`: runs every tier of tests, says which ran, and accepts no skip in any of them."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.testbed import client
from tests.testbed.cache import Cache, Report, StepError
from tests.testbed.vm import PROJECT, NodeOptions, VmError, run_vm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PYTEST = ("python", "-m", "pytest", "-p", "no:cacheprovider")
_GUEST_SECONDS = 1500.0


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests; ``node`` is the virtual node it runs on, None is this machine."""

    name: str
    what: str
    paths: tuple[str, ...]
    node: NodeOptions | None = None


TIERS = (
    Tier("unit", "pure functions, readers and writers on made-up trees", ("tests/unit",)),
    Tier("contract", "the device plugin against peers of the real protocols", ("tests/contract",)),
    Tier("hook", "the in-process hook over the distribution's ROCm", ("tests/hook",)),
    Tier(
        "vm",
        "the runner, and every BPF object on the unmodified amdgpu of stock kernels",
        ("tests/vm", "--ignore=tests/vm/guest"),
    ),
    Tier(
        "guest-dmem",
        "slices held on a kernel with dmem",
        ("tests/vm/guest",),
        NodeOptions(kernel="dmem", gpus=2),
    ),
    Tier(
        "guest-nodmem",
        "slices held on a kernel without dmem",
        ("tests/vm/guest",),
        NodeOptions(kernel="nodmem", gpus=2),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tier came to; ``error`` says why it did not come to its end."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def green(self) -> bool:
        """Every test ran and passed, and there was one."""
        return self.passed > 0 and not (self.failed or self.skipped or self.error)


def outcome(junit: Path, status: int, seconds: float) -> Outcome:
    """A tier's outcome from pytest's JUnit file and exit status."""
    try:
        suites = list(ElementTree.parse(junit).getroot().iter("testsuite"))  # noqa: S314 - our own
    except (OSError, ElementTree.ParseError) as error:
        return Outcome(seconds=seconds, error=f"exit status {status}, no result: {error}")
    counts = {
        name: sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    return Outcome(
        passed=counts["tests"] - failed - counts["skipped"],
        failed=failed,
        skipped=counts["skipped"],
        seconds=seconds,
        error="" if failed or status == 0 else f"exit status {status}",
    )


def table(results: Mapping[str, Outcome]) -> str:
    """The tiers that ran, a line each, and the closing line."""
    lines = ["", f"{'tier':<14}{'passed':>7}{'failed':>7}{'skipped':>8}{'seconds':>9}"]
    for name, one in results.items():
        counts = f"{one.passed:>7}{one.failed:>7}{one.skipped:>8}{one.seconds:>9.0f}"
        lines.append(f"{name:<14}{counts}  {'ok' if one.green else one.error or 'NOT OK'}")
    passed = sum(one.passed for one in results.values())
    # A tier that fell over, or skipped what it should have run, counts as a failure.
    failed = sum(max(one.failed, int(not one.green)) for one in results.values())
    return "\n".join([*lines, "", f"{passed} passed, {failed} failed"])


def main(argv: Sequence[str]) -> int:
    """Run the tiers named, or all; 0 if every one of them is green."""
    parser = argparse.ArgumentParser(prog="python -m tests.tiers", description=__doc__)
    names = [tier.name for tier in TIERS]
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"{', '.join(names)}; default all")
    wanted = parser.parse_args(argv).tiers or names
    if unknown := set(wanted) - set(names):
        parser.error(f"expected {', '.join(names)}, found {', '.join(sorted(unknown))}")
    cache = Cache.from_environment(os.environ)
    report = Report()
    results = {}
    for tier in TIERS:
        if tier.name not in wanted:
            continue
        report(f"tier {tier.name}: {tier.what}")
        try:
            results[tier.name] = _run(tier, cache, report)
        except (StepError, VmError) as error:
            results[tier.name] = Outcome(error=str(error).splitlines()[0])
            report(f"tier {tier.name}: {error}")
    print(table(results), flush=True)
    return 0 if all(one.green for one in results.values()) else 1


def _run(tier: Tier, cache: Cache, report: Report) -> Outcome:
    results = cache.root / "results" / tier.name
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    junit = results / "junit.xml"
    command = [*_PYTEST, *tier.paths, f"--junit-xml={junit}"]
    environment = {"RINGFENCE_CLIENT": str(client.prepare(cache, report))}
    started = time.monotonic()
    if tier.node is None:
        status = subprocess.run(
            [sys.executable, *command[1:]],
            cwd=PROJECT,
            env={**os.environ, **environment},
            check=False,
        ).returncode
    else:
        status = run_vm(
            command,
            tier.node,
            env=environment,
            out=results,
            stdout=sys.stdout.buffer.write,
            stderr=sys.stderr.buffer.write,
            timeout_s=_GUEST_SECONDS,
            log=results / "kernel.log",
            cache=cache,
            report=report,
        ).returncode
    return outcome(junit, status, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
