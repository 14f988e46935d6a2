# SPDX-License-Identifier: Apache-2.0
"""What this machine answers; that a gate answers them is in tests/vm."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from bpf import call32

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = 0x5246F5C5
"""One that no driver has."""


@pytest.fixture
def null() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_the_errno_is_the_kernels_where_it_takes_such_calls(null: int) -> None:
    assert call32.ioctl_errno(null, COMMAND, 1) in (errno.ENOTTY, None)


def test_a_kernel_that_ends_who_makes_such_calls_ends_only_a_child(
    null: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call32, "CODE", bytes.fromhex("0f0b"))  # ud2
    assert call32.ioctl_errno(null, COMMAND, 1) is None


def test_another_machine_has_none(null: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    assert call32.ioctl_errno(null, COMMAND, 1) is None
