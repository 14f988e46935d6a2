# SPDX-License-Identifier: Apache-2.0
"""The lines, and the descriptors that bring them; the real ones are tried in the VM."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.host import smi
from enforcer.host.smi import SmiEvent, SmiKind, SmiListener, parse
from tests.unit.enforcer.host.kfd_events import Driver

NAMES = (b"a\n3 1 x", b"a\n4 1", b"a\n3 1 x\n1 2:b", b"\n3 9\n")
"""What a task that wants a reset to begin or to end calls itself."""


@pytest.fixture(params=[8192, 8], ids=["whole lines", "eight bytes at a time"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver(at_once=request.param)
    monkeypatch.setattr(smi.fcntl, "ioctl", driver.ioctl)
    yield driver
    driver.close()


@pytest.fixture
def kfd(tmp_path: Path) -> Path:
    path = tmp_path / "kfd"
    path.touch()
    return path


def resets(listener: SmiListener) -> list[SmiEvent]:
    return [event for one in listener.resets for event in listener.read(one)]


def faults(listener: SmiListener) -> list[SmiEvent]:
    return [event for one in listener.faults for event in listener.read(one)]


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("1 1267:python3", SmiKind.VM_FAULT, "1267:python3"),
        ("3 2 job hang", SmiKind.PRE_RESET, "2 job hang"),
        ("4 2", SmiKind.POST_RESET, "2"),
        ("4 2 ", SmiKind.POST_RESET, "2"),
    ],
)
def test_an_event_is_read_with_what_the_driver_adds(line: str, kind: SmiKind, text: str) -> None:
    assert parse(line, 7) == SmiEvent(7, kind, text)


@pytest.mark.parametrize("line", ["", "2 1:0", "a 1 -2 3", "x 1", "ffffffffffffffffffff 1", "-3 1"])
def test_other_lines_are_passed_over(line: str) -> None:
    assert parse(line, 7) is None


def test_a_task_cannot_move_a_readers_cursor() -> None:
    assert parse("1 7:a\x1b[2J", 7) == SmiEvent(7, SmiKind.VM_FAULT, "7:a?[2J")


def test_resets_and_faults_are_asked_for_on_descriptors_of_their_own(
    driver: Driver, kfd: Path
) -> None:
    with SmiListener(kfd) as listener:
        assert listener.listen([7, 8]) == {}
        assert len(listener.resets) == len(listener.faults) == 2
        every = 1 << 63
        assert driver.masks() == [
            (7, every | 0b1100), (7, every | 0b0001), (8, every | 0b1100), (8, every | 0b0001),
        ]  # fmt: skip


def test_each_event_is_read_once_with_its_node(driver: Driver, kfd: Path) -> None:
    with SmiListener(kfd) as listener:
        listener.listen([7, 8])
        assert (resets(listener), faults(listener)) == ([], [])
        driver.reset(8, 1, "job hang", ended=False)
        driver.fault(7, 0x4F3, b"python3")
        driver.reset(8, 1, "job hang", ended=True)
        assert resets(listener) == [
            SmiEvent(8, SmiKind.PRE_RESET, "1 job hang"),
            SmiEvent(8, SmiKind.POST_RESET, "1 job hang"),
        ]
        assert faults(listener) == [SmiEvent(7, SmiKind.VM_FAULT, "4f3:python3")]
        assert (resets(listener), faults(listener)) == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_a_task_that_faults_begins_and_ends_no_reset_by_its_name(
    driver: Driver, kfd: Path, name: bytes
) -> None:
    with SmiListener(kfd) as listener:
        listener.listen([7])
        driver.fault(7, 99, name)
        driver.fault(7, 99, b"after")
        assert resets(listener) == []
        told = faults(listener)
        assert {event.kind for event in told} == {SmiKind.VM_FAULT}
        assert told[-1] == SmiEvent(7, SmiKind.VM_FAULT, "63:after")


def test_no_more_is_read_at_once_than_the_kernel_keeps(
    monkeypatch: pytest.MonkeyPatch, kfd: Path
) -> None:
    driver = Driver()
    monkeypatch.setattr(smi.fcntl, "ioctl", driver.ioctl)
    with SmiListener(kfd) as listener:
        listener.listen([7])
        driver.fault(7, 0x4F3, b"python3", times=1000)
        first = len(faults(listener))
        assert first <= 8192 // len("1 4f3:python3\n")
        assert first + len(faults(listener)) == 1000
    driver.close()


def test_without_the_device_there_is_nothing_to_listen_to(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SmiListener(tmp_path / "kfd")


def test_a_node_that_is_not_kfds_costs_only_itself(kfd: Path) -> None:
    with SmiListener(kfd) as listener:
        assert list(listener.listen([7, 8])) == [7, 8]
        assert (listener.resets, listener.faults) == ((), ())


def test_a_node_with_one_descriptor_of_two_is_not_listened_to(
    driver: Driver, kfd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 3

    def ioctl(kfd: int, request: int, arguments: bytes) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(24, os.strerror(24))
        return driver.ioctl(kfd, request, arguments)

    monkeypatch.setattr(smi.fcntl, "ioctl", ioctl)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted only
    with SmiListener(kfd) as listener:
        assert list(listener.listen([7, 8])) == [8]
        assert len(listener.resets) == len(listener.faults) == 1
    driver.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - counted only
