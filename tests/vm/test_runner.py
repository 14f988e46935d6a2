# SPDX-License-Identifier: Apache-2.0
"""The VM runner itself: what it carries out of the machine, and how it ends."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.testbed import kernels, run_cli
from tests.testbed.vm import (
    PROJECT,
    NodeOptions,
    VmError,
    VmPanicError,
    VmResult,
    VmTimeoutError,
    run_vm,
)

pytestmark = pytest.mark.vm

BARE = NodeOptions(driver=False, gpus=0)
RUN = PROJECT / "tests/testbed/run"


@pytest.mark.parametrize(
    ("script", "status"),
    [("true", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9), ("exec /no/such/program", 127)],
)
def test_exit_status_is_the_command_s(script: str, status: int) -> None:
    assert run_vm(["sh", "-c", script], BARE).returncode == status


def test_each_gpu_is_a_line_of_dmem_capacity() -> None:
    node = NodeOptions(kernel="dmem", gpus=3, vram_gib=16)
    result = run_vm(["cat", "/sys/fs/cgroup/dmem.capacity"], node)
    lines = [line.split() for line in result.stdout.decode().splitlines()]
    assert len({name for name, _ in lines}) == 3
    assert all(re.fullmatch(r"drm/0000:[0-9a-f]{2}:[0-9a-f]{2}\.0/vram", name) for name, _ in lines)
    assert {size for _, size in lines} == {str(16 << 30)}


def test_a_node_has_what_a_kubernetes_node_has() -> None:
    script = (
        "uname -r; id -u; pwd; cat /sys/fs/cgroup/cgroup.controllers;"
        "cat /sys/kernel/security/lsm; echo;"
        "stat -f -c %T /sys/fs/cgroup /sys/fs/bpf /sys/kernel/tracing /sys/kernel/debug"
        " /run /tmp /var/lib/kubelet /dev/shm; python -c 'import sys; print(sys.prefix)'"
    )
    for line in kernels.EVERYDAY:
        node = dataclasses.replace(BARE, kernel=line)
        result = run_vm(["sh", "-c", script], node)
        assert result.returncode == 0, result.stderr
        release, user, cwd, controllers, lsm, *rest = result.stdout.decode().splitlines()
        assert release.startswith("6.12." if line == "nodmem" else "7.")
        assert user == "0"
        assert Path(cwd) == PROJECT
        wanted = {"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "misc"}
        assert set(controllers.split()) == wanted | ({"dmem"} if line == "dmem" else set())
        assert "bpf" in lsm.split(",")
        assert rest == [
            *("cgroup2fs", "bpf_fs", "tracefs", "debugfs", "tmpfs", "tmpfs", "tmpfs", "tmpfs"),
            str(Path(os.environ.get("VIRTUAL_ENV") or sys.prefix)),
        ]


def test_a_node_without_bpf_among_its_security_modules() -> None:
    result = run_vm(
        ["cat", "/sys/kernel/security/lsm"], dataclasses.replace(BARE, lsm="capability")
    )
    assert "bpf" not in result.stdout.decode().split(",")


def test_output_arrives_whole_and_apart() -> None:
    script = (
        "head -c 1048577 /dev/urandom >/tmp/data; sha256sum </tmp/data >&2; cat /tmp/data; "
        "printf '\\000\\377no newline at the end'"
    )
    result = run_vm(["sh", "-c", script], BARE)
    tail = b"\0\xffno newline at the end"
    assert result.stdout.endswith(tail)
    data = result.stdout.removesuffix(tail)
    assert len(data) == 1048577
    assert hashlib.sha256(data).hexdigest() == result.stderr.decode().split()[0]


def test_output_is_whole_while_a_process_left_behind_holds_the_pipe() -> None:
    result = run_vm(["sh", "-c", "sleep 1000 & echo done"], BARE, timeout_s=60)
    assert result.stdout == b"done\n"


def test_output_comes_while_the_command_runs() -> None:
    seen: list[float] = []
    run_vm(
        ["sh", "-c", "echo one; sleep 2; echo two"],
        BARE,
        stdout=lambda _data: seen.append(time.monotonic()),
    )
    assert seen[-1] - seen[0] > 1


def test_the_command_has_no_input_and_default_signals() -> None:
    script = "cat; readlink /proc/self/fd/0; grep SigIgn /proc/self/status"
    result = run_vm(["sh", "-c", script], BARE, timeout_s=60)
    assert result.stdout.split() == [b"/dev/null", b"SigIgn:", b"0000000000000000"]


def test_what_the_command_writes_reaches_the_host_through_the_shared_directory_only(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    mark = PROJECT / "written-in-the-guest"
    script = f'echo result >"$RINGFENCE_OUT/file"; touch {mark}; test -e {mark}; ls {out}'
    result = run_vm(["sh", "-c", script], BARE, out=out)
    assert result.stdout == b"file\n"
    assert (out / "file").read_text() == "result\n"
    assert not mark.exists()


def test_the_deadline_ends_the_machine_and_keeps_what_came_before() -> None:
    output = bytearray()
    started = time.monotonic()
    # Long enough to boot in on a busy machine: another tier's node runs beside this one.
    with pytest.raises(VmTimeoutError, match="still running after 30 s") as caught:
        run_vm(["sh", "-c", "echo begun; sleep 1000"], BARE, timeout_s=30, stdout=output.extend)
    assert time.monotonic() - started < 45
    assert bytes(output) == b"begun\n"
    assert "Linux version" in caught.value.log


def test_a_panic_is_reported_with_the_kernel_s_words() -> None:
    started = time.monotonic()
    with pytest.raises(VmPanicError, match="sysrq triggered crash") as caught:
        run_vm(["sh", "-c", "echo c >/proc/sysrq-trigger"], BARE, timeout_s=120)
    assert time.monotonic() - started < 60
    assert "Kernel panic" in str(caught.value)


def test_a_machine_that_powers_off_by_itself_is_an_error() -> None:
    with pytest.raises(VmError, match="before the command did"):
        run_vm(["busybox", "poweroff", "-f"], BARE, timeout_s=120)


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    results: dict[str, VmResult] = {}

    def one(word: str) -> None:
        script = f"echo {word} >/tmp/word; sleep 2; cat /tmp/word"
        results[word] = run_vm(["sh", "-c", script], BARE, out=tmp_path / word)

    threads = [threading.Thread(target=one, args=(word,)) for word in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {word: result.stdout for word, result in results.items()} == {
        "first": b"first\n",
        "second": b"second\n",
    }


def _machines_of(parent: int) -> list[int]:
    """The QEMU processes a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().rsplit(") ", 1)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "qemu" in name and int(fields.split()[1]) == parent:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_no_machine_behind(number: signal.Signals) -> None:
    with subprocess.Popen(
        [RUN, "--no-driver", "--", "sh", "-c", "echo up; sleep 1000"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        machines = _machines_of(process.pid)
        assert len(machines) == 1
        process.send_signal(number)
        assert process.wait(20) == (-9 if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{machines[0]}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{machines[0]}").exists()


def test_the_script_s_own_statuses_are_told_apart() -> None:
    late = subprocess.run(
        [RUN, "--no-driver", "--timeout", "10", "--", "sleep", "1000"],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert late.returncode == run_cli.EXIT_TIMEOUT
    assert b"last 40 lines of the kernel log" in late.stderr
    broken = subprocess.run(
        [RUN, "--no-driver", "--", "sh", "-c", "echo c >/proc/sysrq-trigger"],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert broken.returncode == run_cli.EXIT_NODE_FAILED
    assert b"the kernel panicked" in broken.stderr


def test_gpus_sit_on_the_numa_nodes_in_turn() -> None:
    script = (
        "for d in /sys/bus/pci/devices/*; do "
        '[ "$(cat $d/vendor)" = 0x1002 ] && cat $d/numa_node; done; '
        "cat /sys/devices/system/node/online"
    )
    node = dataclasses.replace(BARE, gpus=4, numa=True)
    result = run_vm(["sh", "-c", script], node)
    assert sorted(result.stdout.decode().split()) == ["0", "0", "0-1", "1", "1"]
