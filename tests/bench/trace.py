# SPDX-License-Identifier: Apache-2.0
"""What each tracing tool adds to a call that it watches.

``tests/testbed/run -- python -m tests.bench.trace [TOOL...]``, and on a machine without a GPU
``python -m tests.bench.trace hipsnoop``.

The processor of the virtual node is emulated: its microseconds say nothing about a real one, the
ratio between two columns of one run does, roughly. hipsnoop needs no GPU, and can be measured on a
real processor. Rows are fastest rounds. A tool is stopped while rounds run: its probes work all the
same, and its printing is not counted as a part of the call.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from tests.vm.guest.caller import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from enforcer.model import Gpu

_CALLS: Final = 50
_ROUNDS: Final = 160
_AT_ONCE: Final = 20
"""Rounds whose events fit into the ring of every tool, which then prints them."""
_SETTLE_SECONDS: Final = 1.0
_HIP: Final = "int hipFree(void *from) { return from ? 0 : 1; }"


def main(wanted: Sequence[str]) -> int:
    """A line for each tool: microseconds of a call without and with it, and their ratio."""
    reading, _ = os.pipe()

    def foreign() -> None:
        fcntl.ioctl(reading, termios.FIONREAD, b"\0\0\0\0")

    print(f"{'tool':<11}{'call':<22}{'without us':>11}{'with us':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as directory:
        hip = _library(Path(directory))
        cases: list[tuple[str, str, Callable[[], None], tuple[str, ...]]] = [
            ("hipsnoop", "hipFree", lambda: hip.hipFree(None), ("--pid", str(os.getpid()))),
            ("gatesnoop", "ioctl of no GPU", foreign, ()),
        ]
        if gpus := read_inventory(Roots())[0]:
            buffer = _buffer(gpus[0])
            tools = ("gatesnoop", "dmemsnoop", "vramsnoop", "vramhist")
            cases += [(tool, "buffer made and freed", buffer, ()) for tool in tools]
        for tool, what, action, options in cases:
            if tool in wanted or not wanted:
                measure(tool, what, action, options)
    return 0


def measure(tool: str, what: str, action: Callable[[], None], options: tuple[str, ...]) -> None:
    """A line for one tool and one kind of call."""
    without = fastest(action)
    with placed(tool, options) as running:
        traced = fastest(action, running)
    # Once more, so that a machine that slows down meanwhile does not count as the tool's.
    without = min(without, fastest(action))
    print(f"{tool:<11}{what:<22}{without:>11.1f}{traced:>9.1f}{traced / without:>7.2f}", flush=True)


@contextmanager
def placed(tool: str, options: tuple[str, ...]) -> Iterator[int]:
    """The process of a tool that has its probes in place, which its first line tells."""
    with tempfile.TemporaryFile() as shown:
        running = subprocess.Popen(
            [sys.executable, "-m", f"bpf.tools.{tool}", *options], stdout=shown
        )
        try:
            while not os.fstat(shown.fileno()).st_size:
                if running.poll() is not None:
                    raise SystemExit(f"{tool} ended with status {running.returncode}")
                time.sleep(0.2)
            yield running.pid
        finally:
            running.kill()
            running.wait()


def fastest(action: Callable[[], None], watching: int | None = None) -> float:
    """Microseconds of a call in the fastest of many short rounds.

    The process ``watching`` works between some of them only.
    """
    times = []
    for number in range(_ROUNDS):
        if number % _AT_ONCE == 0:
            time.sleep(_SETTLE_SECONDS)
        if watching is not None:
            os.kill(watching, signal.SIGSTOP)
        begun = time.perf_counter()
        for _ in range(_CALLS):
            action()
        times.append((time.perf_counter() - begun) / _CALLS * 1e6)
        if watching is not None and number % _AT_ONCE == _AT_ONCE - 1:
            os.kill(watching, signal.SIGCONT)
    return min(times)


def _buffer(gpu: Gpu) -> Callable[[], None]:
    """Two calls of the driver: make a buffer, free it."""
    render = f"/dev/dri/renderD{gpu.render}"
    driver = Driver()
    driver.open(render)
    return lambda: driver.gem_close(render, driver.gem_create(render, 4096))


def _library(directory: Path) -> ctypes.CDLL:
    """One with HIP's name and a call of it: the real one would want a real GPU."""
    (directory / "hip.c").write_text(_HIP)
    path = directory / "libamdhip64.so.6"
    subprocess.run(["gcc", "-shared", "-o", path, directory / "hip.c"], check=True)
    return ctypes.CDLL(str(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
