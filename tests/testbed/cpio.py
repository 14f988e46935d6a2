# SPDX-License-Identifier: Apache-2.0
"""Archives in the one format the kernel unpacks as its first root: cpio "newc".

Format: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's sources.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALIGN = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: `name` without a leading slash, `mode` with its file type bits."""

    name: str
    mode: int
    content: bytes = b""


def directory(name: str, mode: int = 0o755) -> Entry:
    """A directory; its parents have to come before it."""
    return Entry(name, stat.S_IFDIR | mode)


def file(name: str, content: bytes, mode: int = 0o644) -> Entry:
    """A regular file; its directory has to come before it."""
    return Entry(name, stat.S_IFREG | mode, content)


def symlink(name: str, target: str) -> Entry:
    """A symbolic link."""
    return Entry(name, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[Entry]) -> bytes:
    """The entries as one archive. Archives may be concatenated: later members replace earlier."""
    members = [_member(inode, entry) for inode, entry in enumerate(entries, start=1)]
    return b"".join([*members, _member(0, Entry("TRAILER!!!", 0))])


def _member(inode: int, entry: Entry) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        inode,
        entry.mode,
        0,  # owner
        0,  # group
        links,
        0,  # modification time: the same input gives the same archive
        len(entry.content),
        0,
        0,
        0,
        0,
        len(name),
        0,
    )
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGN)
