# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING

import pytest

from enforcer.host.sockets import socket_path

if TYPE_CHECKING:
    from pathlib import Path


def long(directory: Path, size: int) -> str:
    """A path below the directory, of so many bytes."""
    return f"{directory}/".ljust(size, "x")


def test_the_longest_path_is_one_that_the_kernel_takes(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(OSError, match="too long"):
        one.bind(long(short_path, 108))
    path = socket_path(long(short_path, 107))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    assert path.is_socket()


def test_a_longer_one_is_named_with_its_length_and_the_limit(short_path: Path) -> None:
    text = long(short_path, 108)
    with pytest.raises(argparse.ArgumentTypeError) as error:
        socket_path(text)
    assert str(error.value) == (
        f"{text}: expected at most 107 bytes, found 108: a Unix socket's path has 107"
    )


def test_what_is_put_behind_it_counts(short_path: Path) -> None:
    assert str(socket_path(long(short_path, 102), ".1234")) == long(short_path, 102)
    with pytest.raises(argparse.ArgumentTypeError, match=r"at most 102 .* 107, \.1234 behind it"):
        socket_path(long(short_path, 103), ".1234")


def test_bytes_are_counted_not_letters() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="found 120"):
        socket_path("\N{GREEK SMALL LETTER ALPHA}" * 60)


def test_no_path_is_told() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a path, found none"):
        socket_path("")
