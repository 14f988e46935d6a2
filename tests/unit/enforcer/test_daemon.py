# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process. Its kernel layers need a kernel that has them: see tests/vm."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.api.client import Client, EnforcerError
from enforcer.daemon import main
from enforcer.host.heartbeat import LIVE_SECONDS, READY_SECONDS, Verdict, read_verdict
from enforcer.model import Why
from tests.testbed.trees import GpuSpec, NodeSpec, write_cgroup, write_sys

RUN = "import sys; from enforcer.cli import main; sys.exit(main(sys.argv[1:]))"


class Daemon:
    """A node's directories, and daemons started on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "run/ringfence/enforcer.sock"
        write_sys(directory / "sys", NodeSpec((GpuSpec("0000:03:00.0", 5, 1, 128),)))
        write_cgroup(directory / "cgroup", controllers="cpu")
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> subprocess.Popen[str]:
        folders = {
            "--state-dir": "state",
            "--sys": "sys",
            "--proc": "proc",
            "--run": "run",
            "--share": "share",
            "--cgroup-root": "cgroup",
            "--bpffs": "bpf",
            "--bpf-objects": "no-objects",
            "--socket": "run/ringfence/enforcer.sock",
        }
        arguments = [part for flag, name in folders.items() for part in (flag, self._path(name))]
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, "enforcer", *arguments, "--metrics-address", "", *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def _path(self, name: str) -> str:
        return str(self.directory / name)

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + 20
        with Client(self.socket) as client:
            while True:
                try:
                    client.snapshot(1)
                    return
                except EnforcerError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)


@pytest.fixture
def daemon(short_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(short_path)
    yield daemon
    for process in daemon.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, log = process.communicate(timeout=20)
    return process.returncode, log


def test_one_pass_says_what_the_node_can_hold(daemon: Daemon) -> None:
    process = daemon.start("--once")
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"gate off: {Why.NOT_LOADED}, dmem off: {Why.NO_REGION}, ledger sysfs" in log
    assert "no such BPF object" in log
    assert not daemon.socket.exists()


def test_it_serves_until_told_to_stop_and_leaves_no_socket(daemon: Daemon) -> None:
    process = daemon.start()
    daemon.wait_until_serving()
    with Client(daemon.socket) as client:
        assert [gpu.bdf for gpu in client.snapshot(5).gpus] == ["0000:03:00.0"]
    status, log = _end(process)
    assert (status, daemon.socket.exists()) == (0, False)
    assert "the limits stay in force" in log


def test_runtimes_are_looked_for_on_the_host_that_proc_is_of(daemon: Daemon) -> None:
    daemon.start()
    daemon.wait_until_serving()
    host = daemon.directory / "proc/1/root"
    with (
        Client(daemon.socket) as client,
        pytest.raises(EnforcerError, match=f"no container runtime: .* below {host}"),
    ):
        client.image_libc("uid", "train", "debian:12", timeout=10)


def test_a_second_one_waits_and_takes_over_when_the_first_ends(daemon: Daemon) -> None:
    first = daemon.start()
    daemon.wait_until_serving()
    second = daemon.start()
    assert second.stderr is not None
    assert "another enforcer is running on this node, waiting" in second.stderr.readline()
    time.sleep(0.5)
    assert second.poll() is None
    daemon.wait_until_serving()
    assert _end(first)[0] == 0
    daemon.wait_until_serving()
    status, log = _end(second)
    assert (status, daemon.socket.exists()) == (0, False)
    assert "another enforcer" not in log


def test_it_is_ready_at_work_and_in_line_and_not_alive_when_it_hangs(daemon: Daemon) -> None:
    first, second = (daemon.directory / name for name in ("first", "second"))

    def line(file: Path, wanted: str, later: float = 0) -> Verdict:
        deadline = time.monotonic() + 20
        while wanted not in (found := read_verdict(file, time.monotonic() + later)).line:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    process = daemon.start(f"--heartbeat={first}", "--interval=0.5")
    assert line(first, "at work").ready
    successor = daemon.start(f"--heartbeat={second}")
    assert line(second, "in line for").ready
    time.sleep(10)
    # Neither's last word is old, as both go on.
    for file in (first, second):
        assert read_verdict(file, time.monotonic() + READY_SECONDS - 10).ready
    process.send_signal(signal.SIGSTOP)
    assert not line(first, "its loop has not come by for", READY_SECONDS).ready
    assert not read_verdict(first, time.monotonic() + LIVE_SECONDS).live
    process.kill()
    assert not line(first, "has ended").live
    assert line(second, "at work").ready
    assert _end(successor)[0] == 0
    line(second, "has ended")


def test_one_that_waits_leaves_when_told_and_the_first_serves_on(daemon: Daemon) -> None:
    daemon.start()
    daemon.wait_until_serving()
    second = daemon.start()
    assert second.stderr is not None
    second.stderr.readline()
    status, log = _end(second)
    assert status == 0
    assert "stopped while waiting" in log
    daemon.wait_until_serving()


def test_a_single_pass_beside_another_enforcer_is_refused(daemon: Daemon) -> None:
    daemon.start()
    daemon.wait_until_serving()
    second = daemon.start("--once")
    _, log = second.communicate(timeout=20)
    assert second.returncode == 1
    assert "another enforcer is running" in log
    daemon.wait_until_serving()


def test_a_killed_one_is_followed_by_the_next(daemon: Daemon) -> None:
    for _ in range(2):
        process = daemon.start()
        daemon.wait_until_serving()
        status, _ = _end(process, signal.SIGKILL)
        assert status == -signal.SIGKILL
        assert daemon.socket.exists()
    process = daemon.start()
    daemon.wait_until_serving()
    assert _end(process)[0] == 0


def test_one_whose_process_apart_is_killed_ends_and_the_next_one_has_another(
    daemon: Daemon,
) -> None:
    process = daemon.start()
    daemon.wait_until_serving()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    (apart,) = map(int, children.read_text().split())
    os.kill(apart, signal.SIGKILL)
    _, log = process.communicate(timeout=60)
    assert (process.returncode, daemon.socket.exists()) == (1, False)
    assert "looks into devices and images ended by signal 9: ending too" in log
    assert "the limits stay in force" in log
    process = daemon.start()
    daemon.wait_until_serving()
    with Client(daemon.socket) as client:
        assert [one.path for one in client.test_devices(timeout=30)][:1] == ["/dev/kfd"]
    assert _end(process)[0] == 0


def test_metrics_are_no_reason_not_to_enforce(daemon: Daemon) -> None:
    process = daemon.start("--metrics-address", "nowhere")
    daemon.wait_until_serving()
    status, log = _end(process)
    assert status == 0
    assert "expected [HOST]:PORT, found 'nowhere'; going on without" in log


def test_metrics_are_served(daemon: Daemon, unused_port: int) -> None:
    daemon.start("--metrics-address", f"127.0.0.1:{unused_port}", "--node-name", "node-a")
    daemon.wait_until_serving()
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/metrics") as answer:
                text = answer.read().decode()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert 'hami_vgpumonitor_collect_success{node="node-a"} 0' in text
    assert 'ringfence_host_layer{layer="gate",reason="gate not loaded"} 0' in text


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "soon"])
def test_an_interval_that_is_none_is_refused(daemon: Daemon, interval: str) -> None:
    process = daemon.start("--interval", interval)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "--interval" in log


def test_a_socket_has_the_longest_path_there_can_be(daemon: Daemon) -> None:
    daemon.socket = Path(f"{daemon.directory}/".ljust(99, "x"))
    daemon.start("--socket", str(daemon.socket))
    daemon.wait_until_serving()


def test_a_longer_path_for_the_socket_is_refused(daemon: Daemon) -> None:
    path = f"{daemon.directory}/".ljust(100, "x")
    process = daemon.start("--socket", path)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert f"--socket: {path}: expected at most 99 bytes, found 100" in errors


@pytest.mark.parametrize("layers", ["dmem", "none"])
@pytest.mark.parametrize("flag", ["--cu-masks=enforce", "--refuse-imports", "--refuse-passed"])
def test_what_only_the_gate_can_hold_is_not_asked_of_other_layers(
    capsys: pytest.CaptureFixture[str], flag: str, layers: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--once", "--layers", layers, flag])
    assert caught.value.code == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "error" in one]
    assert "--layers leaves out the gate, and nothing else can hold" in line
    assert flag.replace("=", " ") in line


def test_what_only_the_gate_can_hold_is_taken_beside_it(daemon: Daemon) -> None:
    for layers in ("auto", "gate", "gate,dmem"):
        flags = "--cu-masks=enforce", "--refuse-imports", "--refuse-passed"
        process = daemon.start("--once", "--layers", layers, *flags)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_a_place_it_cannot_use_is_named(daemon: Daemon) -> None:
    (daemon.directory / "run").write_text("")
    process = daemon.start()
    _, log = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "run/ringfence: cannot be used: Not a directory\n" in log


def test_nothing_is_removed_under_a_running_enforcer(daemon: Daemon) -> None:
    daemon.start()
    daemon.wait_until_serving()
    process = daemon.start("--unload")
    _, log = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "another enforcer is running" in log


def test_removing_what_is_not_there_is_no_error(daemon: Daemon) -> None:
    process = daemon.start("--unload")
    process.communicate(timeout=20)
    assert process.returncode == 0
