# SPDX-License-Identifier: Apache-2.0
"""What each tracing tool adds to the calls it watches, within one run of the virtual node:

tests/testbed/run --kernel dmem -- python -m tests.bench.trace_guest
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from tests.vm.guest.caller import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = 300
_ROUNDS = 5
_FIONREAD = 0x541B
_HIP = "libamdhip64.so.5"


def main() -> int:
    """A line for each tool: microseconds of a call without and with it, and their ratio."""
    gpu = read_inventory(Roots())[0][0]
    render = f"/dev/dri/renderD{gpu.render}"
    driver = Driver()
    driver.open(render)
    library = ctypes.CDLL(None)
    hip = ctypes.CDLL(_HIP)
    reading, _ = os.pipe()
    count = ctypes.c_int()

    def buffer() -> None:
        driver.gem_close(render, driver.gem_create(render, 4096))

    def foreign() -> None:
        library.ioctl(reading, _FIONREAD, ctypes.byref(count))

    def call() -> None:
        hip.hipFree(None)

    print(f"{'tool':<11}{'watched call':<22}{'without us':>11}{'with us':>9}{'ratio':>7}")
    for tool, what, action, options in (
        ("vramsnoop", "buffer made and freed", buffer, ()),
        ("vramhist", "buffer made and freed", buffer, ()),
        ("dmemsnoop", "buffer made and freed", buffer, ()),
        ("gatesnoop", "ioctl of no GPU", foreign, ()),
        ("hipsnoop", "hipFree", call, ("--pid", str(os.getpid()))),
    ):
        measure(tool, what, action, options)
    return 0


def measure(tool: str, what: str, action: Callable[[], None], options: tuple[str, ...]) -> None:
    without = best(action)
    with subprocess.Popen(
        [sys.executable, "-m", f"bpf.tools.{tool}", *options], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        if not running.stdout.readline():
            print(f"{tool:<11}not on this kernel")
            return
        os.set_blocking(running.stdout.fileno(), False)
        traced = best(action, lambda: running.stdout and running.stdout.read())
        running.kill()
    print(f"{tool:<11}{what:<22}{without:>11.1f}{traced:>9.1f}{traced / without:>7.2f}", flush=True)


def best(action: Callable[[], None], between: Callable[[], object] = lambda: None) -> float:
    """Microseconds of a call, the least of some rounds."""
    times = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        for _ in range(_CALLS):
            action()
        times.append((time.perf_counter() - begun) / _CALLS * 1e6)
        between()
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
