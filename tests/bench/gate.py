# SPDX-License-Identifier: Apache-2.0
"""What the gate and the ledger add to an ioctl: `make bench`.

The same loop of calls, in one boot of the virtual node, without any program attached and with both,
by a process that is no tenant and by one that is. The node's processor is emulated: its nanoseconds
say nothing about a real one, the ratio between two columns of one run does, roughly. Rows are
fastest rounds; "without" is measured before and after, so that drift shows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.testbed.cache import Cache, Report, StepError, digest, digest_files
from tests.testbed.vm import NodeOptions, VmError, run_vm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.testbed.cache import Step

SOURCE: Final = Path(__file__).with_name("ioctls.c")
CALLS: Final = ("foreign", "query", "allocation")
_FLAGS: Final = ("-static", "-O2", "-Wall", "-Wextra", "-Werror")


def prepare(cache: Cache, report: Report) -> Path:
    """The program that makes the calls, built if its source changed. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        step.run(["gcc", *_FLAGS, "-o", into / SOURCE.stem, SOURCE])

    key = digest(digest_files([SOURCE], SOURCE.parent), *_FLAGS)
    return cache.ensure("bench", SOURCE.stem, key, report, make) / SOURCE.stem


def table(measured: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Rows of (what was attached, ns by call), the first of them the base of all ratios."""
    base = measured[0][1]
    lines = [f"{'':28}" + "".join(f"{call:>22}" for call in CALLS)]
    lines.extend(
        f"{name:28}"
        + "".join(f"{found[call]:12.0f} ns {found[call] / base[call]:5.2f} x" for call in CALLS)
        for name, found in measured
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run on each kernel line and print a table."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=("dmem", "nodmem"))
    options = parser.parse_args(argv)
    cache, report = Cache.from_environment(os.environ), Report()
    try:
        program = prepare(cache, report)
        for kernel in options.kernel or ("dmem", "nodmem"):
            for lsm in (None, "capability"):  # the kernel's own list, and one without bpf
                result = run_vm(
                    ["python3", "-m", "tests.bench.gate_guest", str(program)],
                    NodeOptions(kernel=kernel, gpus=1, lsm=lsm),
                    timeout_s=300,
                )
                if result.returncode != 0:
                    print(result.stderr.decode(), file=sys.stderr)
                    return 1
                found = json.loads(result.stdout)
                print(f"{found['release']}, asked by {found['asked_by']}")
                print(table(found["measured"]))
    except (StepError, VmError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
