# SPDX-License-Identifier: Apache-2.0
"""What the plugin says of itself to the probes of its container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING

from enforcer.api.server import Server
from enforcer.host.heartbeat import LIVE_SECONDS, READY_SECONDS, Verdict, read_verdict
from tests.contract.conftest import RESOURCE, eventually, running_bench
from tests.contract.peers.kubelet import Second
from tests.contract.test_health import Enforcer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.conftest import Bench

_BETWEEN = 10.0
"""Longer than between two words of a plugin that has no news."""


def start(bench: Bench, name: str, *options: str, wait: bool = True) -> subprocess.Popen[bytes]:
    return bench.start(f"--heartbeat={bench.root / name}", *options, wait=wait)


def says(bench: Bench, name: str, later: float = 0.0) -> Verdict:
    """What a probe would be answered in so many seconds, if nothing happened until then."""
    return read_verdict(bench.root / name, time.monotonic() + later)


def is_ready(bench: Bench, name: str, why: str = "") -> bool:
    found = says(bench, name)
    return found.live and found.ready and why in found.line


def health(bench: Bench, name: str, *options: str) -> tuple[int, str]:
    """The command's exit status and line."""
    command = ("health", *options, "device-plugin", f"--heartbeat={bench.root / name}")
    run = "import sys; from enforcer.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run, *command], check=False, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_a_registered_plugin_is_ready_and_one_that_hangs_is_not_even_alive(bench: Bench) -> None:
    plugin = start(bench, "beat")
    eventually(lambda: is_ready(bench, "beat"))
    status, line = health(bench, "beat")
    assert status == 0
    assert line.startswith("device-plugin: ready: at work for ")
    time.sleep(_BETWEEN)
    # Its last word is not older than this, as it goes on.
    assert says(bench, "beat", READY_SECONDS - _BETWEEN).ready
    os.kill(plugin.pid, signal.SIGSTOP)
    time.sleep(_BETWEEN)
    assert not says(bench, "beat", READY_SECONDS - _BETWEEN).ready
    assert says(bench, "beat", READY_SECONDS).live
    hung = says(bench, "beat", LIVE_SECONDS)
    assert not hung.live
    assert "its loop has not come by" in hung.line
    os.kill(plugin.pid, signal.SIGCONT)
    eventually(lambda: says(bench, "beat", READY_SECONDS - _BETWEEN).ready)
    bench.kill(plugin)
    assert not says(bench, "beat").live
    assert health(bench, "beat", "--live")[0] == 1


def test_one_in_line_is_ready_and_takes_over(bench: Bench) -> None:
    first = start(bench, "first")
    start(bench, "second", wait=False)
    eventually(lambda: is_ready(bench, "second", "in line"))
    time.sleep(_BETWEEN)
    assert says(bench, "second", READY_SECONDS - _BETWEEN).ready
    assert bench.terminate(first) == 0
    eventually(lambda: is_ready(bench, "second", "at work"))


def test_a_kubelet_that_is_away_or_refuses_makes_no_plugin_unfit(bench: Bench) -> None:
    bench.kubelet.stop()
    (bench.kubelet.plugins / "kubelet.sock").unlink(missing_ok=True)
    plugin = start(bench, "beat", wait=False)
    eventually(lambda: is_ready(bench, "beat", f"{RESOURCE} waiting: "))
    # As one that was killed leaves it.
    with socket(AF_UNIX) as left:
        left.bind(str(bench.kubelet.plugins / "kubelet.sock"))
    eventually(lambda: is_ready(bench, "beat", f"{RESOURCE} refused: "))
    bench.kill(plugin)
    bench.kubelet.start()
    bench.kubelet.second = Second.REFUSED
    (bench.root / "elsewhere").mkdir()
    start(bench, "owner", f"--state-dir={bench.root / 'elsewhere'}")
    start(bench, "beat", wait=False)
    eventually(lambda: is_ready(bench, "beat", f"{RESOURCE} refused: "))


def test_one_that_kubelet_took_and_never_asked_is_alive_and_not_ready(bench: Bench) -> None:
    bench.kubelet.deaf = True
    start(bench, "beat", wait=False)
    eventually(lambda: f"{RESOURCE} unheard: " in says(bench, "beat").line)
    assert says(bench, "beat") == says(bench, "beat")._replace(live=True, ready=False)
    # Once proven, it is not to blame for what becomes of it.
    bench.kubelet.deaf = False
    bench.kubelet.restart()
    eventually(lambda: is_ready(bench, "beat"))
    bench.kubelet.deaf = True
    bench.kubelet.restart()
    eventually(lambda: is_ready(bench, "beat", f"{RESOURCE} unheard: "))


def test_a_node_without_a_gpu_is_ready_for_one_if_the_enforcer_says_so(short_path: Path) -> None:
    with running_bench(short_path, ()) as one:
        start(one, "beat", "--health-pulse=1", wait=False)
        dark = "no GPU in sight here, and no answer from the enforcer"
        eventually(lambda: dark in says(one, "beat").line)
        assert says(one, "beat") == says(one, "beat")._replace(live=True, ready=False)
        server = Server(Enforcer(one.root), one.root / "enforcer.sock")
        server.start()
        eventually(lambda: is_ready(one, "beat", "at work"))
        server.stop()
