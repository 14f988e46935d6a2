# SPDX-License-Identifier: Apache-2.0
"""The books of a container stay right whatever its processes do."""

from __future__ import annotations

import os
import signal
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from audit_hook.ledger import LEDGER_BYTES, read_ledger
from enforcer.model import pci_key

from .container import GPU, MIB, PROGRAMS, Container

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

POD = ["--pid", "--fork", "--mount-proc", "--kill-child"]


@contextmanager
def holding(container: Container, *orders: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has carried out these orders and now waits."""
    process = container.start(PROGRAMS / "hip", *orders, "say=up", "wait", stdin=-1)
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while not lines or lines[-1] not in {"up\n", ""}:
            lines.append(process.stdout.readline())
        assert lines[-1] == "up\n", process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def used_mib(container: Container) -> int:
    ledger = read_ledger(container.ledger)
    return 0 if ledger is None else ledger.used(pci_key(GPU)) // MIB


def test_two_processes_share_one_budget(container: Container) -> None:
    container.give_mib(2048)
    with holding(container, "malloc=1200"):
        assert container.hip("malloc=1200", "malloc=700").lines == ["malloc 2", "malloc 0"]
        assert 1200 <= used_mib(container) < 1300
    assert container.hip("malloc=1200").lines == ["malloc 0"]


def test_a_killed_process_gives_everything_back(container: Container) -> None:
    container.give_mib(2048)
    with holding(container, "malloc=1500") as process:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        assert container.hip("malloc=1500").lines == ["malloc 0"]
    assert used_mib(container) == 0


def test_a_child_that_exits_takes_nothing_of_its_parents_with_it(container: Container) -> None:
    container.give_mib(2048)
    orders = ["malloc=1500", "fork", "parent", "malloc=1500", "free", "malloc=1500"]
    assert container.hip(*orders).lines == [
        "malloc 0", "child 0", "malloc 2", "free 0", "malloc 0"
    ]  # fmt: skip


def test_a_killed_child_takes_nothing_of_its_parents_with_it(container: Container) -> None:
    container.give_mib(2048)
    orders = ["malloc=1500", "fork", "raise=9", "parent", "malloc=1500"]
    assert container.hip(*orders).lines == ["malloc 0", "child 9", "malloc 2"]


def test_a_child_forked_before_hip_starts_has_its_own_entry(container: Container) -> None:
    container.give_mib(2048)
    orders = ["fork", "malloc=1500", "malloc=1500", "parent", "malloc=1500", "malloc=1500"]
    assert container.hip(*orders).lines == [
        "malloc 0", "malloc 2", "child 0", "malloc 0", "malloc 2"
    ]  # fmt: skip


def test_exec_gives_back_what_the_old_program_held(container: Container) -> None:
    container.give_mib(2048)
    for program in ("hip", "hip-noplt"):
        orders = ["malloc=1500", f"exec={PROGRAMS / program}", "malloc=1500", "malloc=1500"]
        assert container.hip(*orders).lines == ["malloc 0", "malloc 0", "malloc 2"]


def test_a_zombie_holds_nothing(container: Container) -> None:
    container.give_mib(2048)
    with holding(container, "malloc=1500") as process:
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert container.hip("malloc=1500").lines == ["malloc 0"]


@pytest.mark.parametrize("raw", ["clone", "vfork"])
def test_a_child_of_a_raw_system_call_neither_holds_nor_frees(
    container: Container, raw: str
) -> None:
    container.give_mib(2048)
    result = container.run(PROGRAMS / "children", raw, "1500")
    assert result.lines == ["parent 0", "child 0", "parent 2"]
    # The child of `clone` is still there, with the parent's descriptors, when the parent is gone.
    result = container.run(PROGRAMS / "children", "orphan", "1500")
    assert result.lines == ["parent 0"]
    assert container.hip("malloc=1500").lines == ["malloc 0"]


def test_processes_of_other_pid_namespaces_count_while_they_live(container: Container) -> None:
    container.give_mib(2048)
    with holding(container, "malloc=1500"):
        result = container.run(PROGRAMS / "hip", "malloc=1500", "malloc=400", unshare=POD)
        assert result.lines == ["malloc 2", "malloc 0"]
    result = container.run(PROGRAMS / "hip", "malloc=1500", unshare=POD)
    assert result.lines == ["malloc 0"]


def test_a_reused_process_number_does_not_bring_a_dead_entry_back(container: Container) -> None:
    container.give_mib(2048)
    # Both are number 1 of their namespace.
    for _ in range(2):
        result = container.run(PROGRAMS / "hip", "malloc=1500", "raise=9", unshare=POD)
        assert result.lines == ["malloc 0"]


def test_processes_of_several_users_share_one_ledger(container: Container) -> None:
    container.give_mib(2048)
    with holding(container, "malloc=1500"):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        result = container.run(*nobody, PROGRAMS / "hip", "malloc=1500", "malloc=400")
        assert result.lines == ["malloc 2", "malloc 0"]


def test_an_entry_changed_by_another_process_is_put_right_and_noticed(container: Container) -> None:
    container.give_mib(2048)
    with holding(container, "malloc=1500") as process:
        path = container.ledger / "usage.v1"
        counts = 4096 + 1024 * 64
        with path.open("r+b") as file:
            file.seek(counts)
            assert struct.unpack("<Q", file.read(8))[0] >= 1500 * MIB
            file.seek(counts)
            file.write(struct.pack("<QQ", 0, 0))
        assert used_mib(container) == 0
        # Its next call notices.
        process.send_signal(0)
        result = container.hip("malloc=100")
        assert result.lines == ["malloc 0"]
    orders = ["malloc=1500", "say=up", "wait", "malloc=1000"]
    process = container.start(PROGRAMS / "hip", *orders, stdin=-1)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    with path.open("r+b") as file:
        file.seek(counts)
        file.write(struct.pack("<QQ", 0, 0))
    out, err = process.communicate("\n", timeout=30)
    assert out == "malloc 2\n"
    assert "another process changed this one's entry" in err
    ledger = read_ledger(container.ledger)
    assert ledger is not None
    assert ledger.tampered == 1


def test_a_deleted_ledger_is_noticed(container: Container) -> None:
    container.give_mib(2048)
    orders = ["malloc=1500", "say=up", "wait", "malloc=1000"]
    process = container.start(PROGRAMS / "hip", *orders, stdin=-1)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    (container.ledger / "usage.v1").unlink()
    out, err = process.communicate("\n", timeout=30)
    assert out == "malloc 2\n"
    assert "was deleted while in use" in err


def test_the_node_sees_an_empty_ledger_before_the_first_process(container: Container) -> None:
    assert read_ledger(container.ledger) is None
    (container.ledger / "usage.v1").write_bytes(bytes(LEDGER_BYTES))
    ledger = read_ledger(container.ledger)
    assert ledger is not None
    assert ledger.processes == ()
    container.give_mib(2048)
    assert container.hip("malloc=1500").lines == ["malloc 0"]


def test_under_hamis_variables_alone_processes_still_share_one_budget(container: Container) -> None:
    container.ledger.rmdir()
    container.env["HIP_DEVICE_MEMORY_LIMIT_0"] = "2g"
    with holding(container, "malloc=1500"):
        result = container.hip("malloc=1500", "malloc=400")
        assert result.lines == ["malloc 2", "malloc 0"]
    assert container.hip("malloc=1500").lines == ["malloc 0"]


def test_without_any_place_for_a_ledger_each_process_is_held_on_its_own(
    container: Container,
) -> None:
    container.ledger.rmdir()
    (container.root / "tmp" / "ringfence-usage.v1").mkdir()
    result = container.hip("malloc=1500", "malloc=1000", env={"HIP_DEVICE_MEMORY_LIMIT_0": "2g"})
    assert result.lines == ["malloc 0", "malloc 2"]
    assert "each process of this container is held to the limit on its own" in result.err


def storm(container: Container, *arguments: int, env: Mapping[str, str] | None = None) -> None:
    """Processes, threads and seconds of allocating near the limit, and being killed at random."""
    container.give_mib(1024)
    words = map(str, arguments)
    result = container.run(PROGRAMS / "storm", *words, env=env, timeout=arguments[2] + 120)
    # Held by all at once, as a counter of the test's own saw it, in MiB.
    peak = int(result.lines[-1].split()[1])
    assert 0 < peak <= 1024
    assert used_mib(container) == 0
    assert container.hip("malloc=1000").lines == ["malloc 0"]


def test_many_processes_near_the_limit_never_pass_it_and_leave_nothing(
    container: Container,
) -> None:
    storm(container, 6, 2, 4)
