# SPDX-License-Identifier: Apache-2.0
"""Which processes are in which cgroup."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from enforcer.host.files import FileError, parse_int, read_list, read_text

if TYPE_CHECKING:
    from pathlib import Path


def pids(cgroup: Path) -> tuple[set[int], list[str]]:
    """The processes in a cgroup and in every cgroup below it, and what could not be read.

    A container can make cgroups of its own, so its processes are found only in the whole tree. The
    processes of a threaded cgroup are listed by the one above it that is not.
    """
    found: set[int] = set()
    problems: list[str] = []
    pending = [cgroup]
    while pending:
        directory = pending.pop()
        path = directory / "cgroup.procs"
        try:
            # pid 0 is a process outside the reader's pid namespace.
            found.update(pid for word in read_list(path) if (pid := parse_int(word, 10, str(path))))
        except FileError as error:
            if not (directory != cgroup and _threaded(error)) and directory.exists():
                problems.append(str(error))
        try:
            pending.extend(child for child in directory.iterdir() if child.is_dir())
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{directory}: cannot list: {error.strerror}")
    return found, problems


def environment(proc: Path, pid: int) -> dict[str, str]:
    """The environment a process was started with; a variable set twice has its first value.

    Raises FileVanished when it has exited, FileError without the right to look.
    """
    found: dict[str, str] = {}
    for entry in read_text(proc / str(pid) / "environ").split("\0"):
        name, equals, value = entry.partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def gpu_devices(proc: Path, pid: int) -> tuple[str, ...]:
    """The GPU device files in a process's ``/dev``, by path as it sees them; none once it exited.

    What is no character device is left out, and links are not followed: the tree is the process's.
    """
    dev = proc / str(pid) / "root/dev"
    candidates = [dev / "kfd"]
    try:
        if not (dev / "dri").is_symlink():
            candidates += sorted((dev / "dri").iterdir())
    except OSError:
        pass
    return tuple(f"/dev/{path.relative_to(dev)}" for path in candidates if _is_device(path))


def _threaded(error: FileError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EOPNOTSUPP


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.lstat().st_mode)
    except OSError:
        return False
