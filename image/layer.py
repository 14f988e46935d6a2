# SPDX-License-Identifier: Apache-2.0
"""A directory as a layer of an image: the same tree gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO


_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """A compressed layer on disk. ``digest`` is of the file, ``diff_id`` of the tar within.

    ``size`` is the file's, ``unpacked`` that of the files within, both in bytes.
    """

    path: Path
    digest: str
    diff_id: str
    size: int
    unpacked: int


def write_layer(
    root: Path, path: Path, epoch: int, leave_out: Callable[[str], bool] = lambda _: False
) -> Layer:
    """Write what is below ``root``, owned by root, with no time later than ``epoch`` (seconds).

    Names are sorted; modes keep their bits; hard links become files. Raises OSError, and ValueError
    for a device, a socket or a pipe, which no image of ours has a use for.
    """
    with (
        path.open("wb") as file,
        # No name and no time in gzip's header either.
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in _names(root, leave_out):
            _add(archive, root, name, epoch)
    return read_layer(path)


def read_layer(path: Path) -> Layer:
    """A layer that ``write_layer`` wrote. Raises OSError."""
    digest, plain = hashlib.sha256(), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        size = file.tell()
    with gzip.open(path) as packed:
        while chunk := packed.read(_CHUNK):
            plain.update(chunk)
    with tarfile.open(path) as archive:
        unpacked = sum(entry.size for entry in archive)
    return Layer(
        path, f"sha256:{digest.hexdigest()}", f"sha256:{plain.hexdigest()}", size, unpacked
    )


def _names(root: Path, leave_out: Callable[[str], bool]) -> Iterator[str]:
    """Relative paths, a directory before what is in it; directories left empty are left out."""
    kept: set[str] = set()
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if (os.path.islink(f"{folder}/{name}"))]  # noqa: PTH114
        # An empty directory is there on purpose (/tmp).
        own = [] if folders or files or folder == str(root) else [""]
        for name in [*own, *files, *links]:
            path = os.path.normpath(os.path.relpath(f"{folder}/{name}", root))
            if not leave_out(path):
                kept.add(path)
    for path in list(kept):
        while path := os.path.dirname(path):  # noqa: PTH120
            kept.add(path)
    return iter(sorted(kept))


def _add(archive: tarfile.TarFile, root: Path, name: str, epoch: int) -> None:
    path = root / name
    state = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mode = stat.S_IMODE(state.st_mode)
    entry.mtime = min(int(state.st_mtime), epoch)
    entry.uname = entry.gname = "root"
    content: BinaryIO | None = None
    if stat.S_ISLNK(state.st_mode):
        entry.type = tarfile.SYMTYPE
        entry.linkname = os.readlink(path)  # noqa: PTH115 - as it stands
    elif stat.S_ISDIR(state.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(state.st_mode):
        entry.size = state.st_size
        content = path.open("rb")
    else:
        raise ValueError(f"{path}: expected a file, a directory or a link, found another kind")
    if content is None:
        archive.addfile(entry)
        return
    with content:
        archive.addfile(entry, content)
