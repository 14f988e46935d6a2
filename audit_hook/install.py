# SPDX-License-Identifier: Apache-2.0
"""Putting the hook's objects on a node, beside those that running pods have mounted.

``python -m audit_hook.install FROM TO`` leaves::

    TO/0f3a9c1d2b7e/libringfence-audit.so, libringfence-hsa.so
    TO/current -> 0f3a9c1d2b7e

Pods are given ``TO/current``, which a runtime resolves when it mounts it: a pod keeps the version
it was started with, and the next one gets the new. Older versions stay; each is about 250 KiB.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from audit_hook.check import Rule, auditor_rule, problems, read_elf, tool_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CURRENT = "current"
_OBJECT_MODE = 0o644
_DIRECTORY_MODE = 0o755


class InstallError(Exception):
    """Nothing was changed for pods; the message names the path and what to do."""


def _rules() -> tuple[Rule, ...]:
    return auditor_rule(), tool_rule()


def _read(source: Path) -> dict[str, bytes]:
    """The objects by name; raises InstallError for one that is missing or unfit."""
    objects = {}
    for rule in _rules():
        path = source / rule.soname
        try:
            if found := problems(read_elf(path), rule):
                raise InstallError(f"{path}: {'; '.join(found)}; build it again")
            objects[rule.soname] = path.read_bytes()
        except OSError as error:
            raise InstallError(
                f"{path}: {error.strerror}; `make -C audit_hook` builds it"
            ) from error
        except ValueError as error:
            raise InstallError(f"{error}; build it again") from error
    return objects


def version_of(objects: Mapping[str, bytes]) -> str:
    """A name for these contents: 12 hexadecimal digits, the same on every node."""
    whole = hashlib.sha256()
    for name in sorted(objects):
        whole.update(f"{name}\0{len(objects[name])}\0".encode())
        whole.update(objects[name])
    return whole.hexdigest()[:12]


@contextlib.contextmanager
def _alone(directory: int) -> Iterator[None]:
    """Two that install at once: the second waits. The kernel lets go of a dead one's lock."""
    fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)


def _same(directory: int, name: str, content: bytes) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as stream:
        right = os.fstat(descriptor).st_mode & 0o7777 == _OBJECT_MODE
        return right and stream.read(len(content) + 1) == content


def _write(directory: int, name: str, content: bytes) -> None:
    """Whole or not at all: what a process has mapped stays as it was."""
    new = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, _OBJECT_MODE, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(descriptor, _OBJECT_MODE)
            os.fsync(descriptor)
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        # A full disk is not to be left fuller.
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=directory)
        raise


def _point(directory: int, version: str) -> None:
    new = f".{CURRENT}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    os.symlink(version, new, dir_fd=directory)
    os.rename(new, CURRENT, src_dir_fd=directory, dst_dir_fd=directory)


@contextlib.contextmanager
def _opened(path: str | Path, parent: int | None = None) -> Iterator[int]:
    """The directory, made if it is not there; never by way of a link."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, _DIRECTORY_MODE, dir_fd=parent)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def install(source: Path, directory: Path) -> Path:
    """Install the objects in ``source`` below ``directory`` and return the version's directory.

    What is there already and right is left alone; what is damaged is replaced. ``current`` moves
    last, so it never names a version that is not whole. Raises InstallError.
    """
    objects = _read(source)
    version = version_of(objects)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _opened(directory) as top, _alone(top):
            with _opened(version, top) as own:
                os.fchmod(own, _DIRECTORY_MODE)
                for name, content in objects.items():
                    if not _same(own, name, content):
                        _write(own, name, content)
                os.fsync(own)
            _point(top, version)
            os.fsync(top)
    except OSError as error:
        raise InstallError(
            f"{directory}: the hook's version {version} was not installed: {error.strerror}; "
            "expected a directory root may write to, with 1 MiB free; pods keep the version before"
        ) from error
    return directory / version


def main(argv: Sequence[str] | None = None) -> int:
    """Install and print where; 1 with one line on standard error if it failed."""
    parser = argparse.ArgumentParser(prog="python -m audit_hook.install", description=__doc__)
    parser.add_argument("source", type=Path, metavar="FROM", help="directory of the built objects")
    parser.add_argument(
        "directory", type=Path, metavar="TO", help="the hook's directory, on a node"
    )
    arguments = parser.parse_args(argv)
    try:
        print(install(arguments.source, arguments.directory))
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
