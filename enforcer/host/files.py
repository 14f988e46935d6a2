# SPDX-License-Identifier: Apache-2.0
"""The five shapes a kernel file has, each with its reader.

Every reader raises FileVanished when the file, or the object behind it, is gone, and FileError when
it holds something else than its shape; both name the file and the line.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Value = TypeVar("_Value")

# A removed cgroup or device answers an open descriptor with ENODEV, an exited process with ESRCH.
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESRCH, errno.ENOTDIR})


class FileError(Exception):
    """A kernel file that cannot be read, or whose content is not of its shape."""


class FileVanished(FileError):  # noqa: N818 - a state of the world, not a fault
    """The file is not there: the object went away, or this kernel does not have it."""


def unreadable(path: Path | str, error: OSError) -> FileError:
    """What it means that a file cannot be read: only FileVanished is absence."""
    kind = FileVanished if error.errno in _GONE else FileError
    return kind(f"{path}: cannot read: {error.strerror}")


def read_text(path: Path) -> str:
    """The whole file; bytes that are not UTF-8 are kept as escapes."""
    try:
        return path.read_bytes().decode(errors="backslashreplace")
    except OSError as error:
        raise unreadable(path, error) from error


def read_line(path: Path) -> str:
    """The single line of the file, without surrounding blanks."""
    lines = read_text(path).strip().splitlines()
    if len(lines) != 1:
        raise FileError(f"{path}: expected one line, found {len(lines)}")
    return lines[0].strip()


def read_int(path: Path, base: int = 10) -> int:
    """The one integer in the file."""
    return parse_int(read_line(path), base, f"{path}:1")


def read_int_or_max(path: Path) -> int | None:
    """The one integer in the file; None stands for the kernel's ``max``."""
    line = read_line(path)
    return None if line == "max" else parse_int(line, 10, f"{path}:1")


def read_list(path: Path) -> tuple[str, ...]:
    """The blank-separated words of the file; empty for an empty file."""
    return tuple(read_text(path).split())


def read_map(path: Path) -> dict[str, int]:
    """``key value`` per line, integers only."""
    return parse_map(read_text(path), str(path))


def parse_map(text: str, where: str) -> dict[str, int]:
    """``key value`` per line, as ``read_map``; ``where`` names the source in errors."""
    values: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2:
            raise FileError(f"{where}:{number}: expected a key and an integer, found {line!r}")
        if words[0] in values:
            raise FileError(f"{where}:{number}: key {words[0]!r} appears twice")
        values[words[0]] = parse_int(words[1], 10, f"{where}:{number}")
    return values


def parse_int(word: str, base: int, where: str) -> int:
    """A kernel integer: digits with an optional sign, none of Python's own spellings."""
    digits = word.removeprefix("-").removeprefix("0x") if base == 16 else word.removeprefix("-")
    try:
        if not digits.isascii() or not digits.isalnum():
            raise ValueError
        return int(word, base)
    except ValueError:
        raise FileError(f"{where}: expected an integer, found {word!r}") from None


def optional(read: Callable[[Path], _Value], path: Path) -> _Value | None:
    """What ``read`` finds at ``path``, or None where this kernel or device has no such file."""
    try:
        return read(path)
    except FileVanished:
        return None
