# SPDX-License-Identifier: Apache-2.0
"""``ringfence demo``: a slice's whole life on real kernels in virtual machines, without a GPU."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_KERNELS = ("dmem", "nodmem")
_CHECKOUT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    """Show it on both kernel lines; 0 only if every line was true on both."""
    parser = argparse.ArgumentParser(
        prog="ringfence demo",
        description="Two pods share a simulated MI300X, on a kernel with dmem and on one without.",
    )
    parser.add_argument("--kernel", choices=_KERNELS, help="only this kernel line")
    wanted = parser.parse_args(argv).kernel
    if not (_CHECKOUT / "tests/testbed").is_dir():
        sys.stderr.write(
            f"ringfence demo: expected the testbed in {_CHECKOUT / 'tests/testbed'}, found none; "
            "the demo runs from a checkout: `make demo`\n"
        )
        return 1
    kernels = [wanted] if wanted else list(_KERNELS)
    statuses = {kernel: _run(kernel) for kernel in kernels}
    false = [kernel for kernel, status in statuses.items() if status]
    if false:
        sys.stdout.write(f"\nNot every line was true: {', '.join(false)}.\n")
        return 1
    sys.stdout.write("\nEvery line was true.\n")
    return 0


def _run(kernel: str) -> int:
    """The guest's half on one kernel line."""
    return subprocess.run(
        [sys.executable, "-m", "tests.testbed.demo", kernel], cwd=_CHECKOUT, check=False
    ).returncode
