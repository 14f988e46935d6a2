# SPDX-License-Identifier: Apache-2.0
"""Boots a node for `ringfence demo` and plays the guest's half on it."""

from __future__ import annotations

import os
import shutil
import sys

from tests.testbed import client
from tests.testbed.cache import Cache, Report, StepError
from tests.testbed.stopping import stop_by_exception
from tests.testbed.vm import NodeOptions, VmError, run_vm

_SECONDS = 1800.0


def main(kernel: str) -> int:
    """The exit status of the guest's half on kernel line ``kernel``."""
    stop_by_exception()
    cache = Cache.from_environment(os.environ)
    report = Report()
    logs = cache.root / "results" / f"demo-{kernel}"
    shutil.rmtree(logs, ignore_errors=True)
    try:
        return run_vm(
            ["python", "-m", "tests.vm.guest.demo"],
            NodeOptions(kernel=kernel, gpus=2),
            env={"RINGFENCE_CLIENT": str(client.prepare(cache, report))},
            out=logs,
            stdout=_show,
            stderr=sys.stderr.buffer.write,
            timeout_s=_SECONDS,
            cache=cache,
            report=report,
        ).returncode
    except (StepError, VmError, OSError) as error:
        print(f"ringfence demo: {error}", file=sys.stderr)
        return 1


def _show(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
