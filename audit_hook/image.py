# SPDX-License-Identifier: Apache-2.0
"""Whether an image can load the hook, by the files of its C library."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# Bounded: else a file of nothing but its beginning takes days.
_BANNER = rb"GNU C Library [^\n]{0,200}?(?:release|snapshot|development) version (\d+)\.(\d+)"
_RELEASE = re.compile(_BANNER)

Version = tuple[int, int]


class Libc(StrEnum):
    """The C library of an image."""

    GLIBC = "glibc"
    MUSL = "musl"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Image:
    """What the hook can do in one image, as far as its files tell."""

    libc: Libc
    version: Version | None
    tool_loads: bool
    auditor_loads: bool
    notes: tuple[str, ...] = field(default=())


_LIB_DIRS = ("lib", "lib64", "usr/lib", "usr/lib64")
_MULTIARCH = "*-linux-gnu"
_MAX_LINKS = 40
_MOST_FILE_BYTES = 32 << 20
_MOST_ENTRIES = 50_000
"""In all of an image's library directories; the largest distributions have a tenth of it."""
_MOST_MULTIARCH = 16
_MOST_NAMED = 3
_NOT_GLIBC = ("*musl*", "libgcompat*")
"""What a libc.so.6 leads to where musl stands in for glibc."""
_TLS_HUNGRY = ("libjemalloc.so*", "libtcmalloc*.so*")
_TUNABLE_SINCE = (2, 32)
_AUDIT_SINCE = (2, 35)
_AUDIT_BACKPORT = (2, 34)


def _resolve(root: Path, name: str) -> Path | None:
    """Where a path of the image leads, links followed as the image's own root would have it."""
    pending = [part for part in reversed(name.split("/")) if part not in {"", "."}]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            del done[-1:]
            continue
        path = root.joinpath(*done, part)
        try:
            if not path.is_symlink():
                done.append(part)
                continue
            target = str(path.readlink())
        except OSError:
            return None
        links += 1
        if links > _MAX_LINKS:
            return None
        if target.startswith("/"):
            done.clear()
        pending += [part for part in reversed(target.split("/")) if part not in {"", "."}]
    return root.joinpath(*done)


class _Tree:
    """An unpacked image, of which no more is looked at than an honest one has."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[Path, list[str]] = {}
        self._left = _MOST_ENTRIES

    def find(self, patterns: Sequence[str]) -> Iterator[Path]:
        """The files in the library directories whose names match. Raises OSError."""
        for top in _LIB_DIRS:
            multiarch = fnmatch.filter(self._entries(top), _MULTIARCH)
            if len(multiarch) > _MOST_MULTIARCH:
                raise OSError(f"{top}: more than {_MOST_MULTIARCH} directories {_MULTIARCH}")
            for directory in (top, *(f"{top}/{name}" for name in multiarch)):
                for pattern in patterns:
                    for name in fnmatch.filter(self._entries(directory), pattern):
                        real = _resolve(self._root, f"{directory}/{name}")
                        if real is not None and real.is_file():
                            yield real

    def _entries(self, directory: str) -> list[str]:
        path = _resolve(self._root, directory)
        if path is None:
            return []
        # By where it is: /lib is most often /usr/lib.
        if path not in self._listed:
            self._listed[path] = self._list(path)
        return self._listed[path]

    def _list(self, path: Path) -> list[str]:
        try:
            listing = os.scandir(path)
        except OSError:
            return []
        names: list[str] = []
        with listing:
            for entry in listing:
                self._left -= 1
                if self._left < 0:
                    raise OSError(f"more than {_MOST_ENTRIES} files in the library directories")
                names.append(entry.name)
        return sorted(names)


def _read(path: Path) -> bytes:
    """A file of the image, if it is no larger than a C library can be. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_FILE_BYTES:
            raise OSError(f"{path.name}: a file that is too large, of {size >> 20} MiB")
        return file.read(size)


def glibc_version(libc: bytes) -> Version | None:
    """The release a libc.so.6 says it is in its banner; None where it has none."""
    match = _RELEASE.search(libc)
    return (int(match[1]), int(match[2])) if match else None


def _offers_version_2(loader: bytes) -> bool:
    """Whether a 2.34 loader has the branch's fix for bug 15533, by a name that came with it."""
    return b"_dl_audit_symbind_alt" in loader


def inspect_image(root: Path) -> Image:
    """What an unpacked image's C library means for the hook.

    Only files are looked at: a program of the image that is linked statically, or brings a libc of
    its own, is outside this answer, and ``read_elf`` of it tells. Raises OSError for an image with
    more, or larger, files than any honest one has.
    """
    tree = _Tree(root)
    musl = unknown = False
    for path in tree.find(("libc.so.6",)):
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in _NOT_GLIBC):
            musl = True
            continue
        version = glibc_version(_read(path))
        if version is not None:
            # Also beside musl: what uses a GPU is linked against glibc, as ROCm is.
            return _glibc_image(tree, version)
        unknown = True
    if musl or next(tree.find(("ld-musl-*.so.1", "libc.musl-*.so.1")), None) is not None:
        return Image(
            libc=Libc.MUSL,
            version=None,
            tool_loads=False,
            auditor_loads=False,
            notes=("musl: no auditor, and ROCm does not build on it; only a kernel layer holds",),
        )
    if unknown:
        return Image(
            libc=Libc.GLIBC,
            version=None,
            tool_loads=False,
            auditor_loads=False,
            notes=("glibc of unknown version: its banner does not say",),
        )
    return Image(
        libc=Libc.NONE,
        version=None,
        tool_loads=False,
        auditor_loads=False,
        notes=("no C library: static programs only, and only a kernel layer holds those",),
    )


def _names(paths: Iterator[Path]) -> str:
    """Fit to be shown, whatever the image calls its files; "" is none."""
    names = sorted({ascii(path.name)[1:-1] for path in paths})
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _glibc_image(tree: _Tree, version: Version) -> Image:
    notes = []
    audits = version >= _AUDIT_SINCE
    if version == _AUDIT_BACKPORT:
        loader = next(tree.find(("ld-linux-*.so.*",)), None)
        audits = loader is not None and _offers_version_2(_read(loader))
        notes.append("glibc 2.34: the auditor " + ("loads" if audits else "takes itself out"))
    elif not audits:
        notes.append(
            "glibc below 2.35: the auditor takes itself out, the tools library holds the limit"
        )
    hungry = _names(tree.find(_TLS_HUNGRY))
    # The room is laid out before the auditor can take itself out.
    if hungry and version < _TUNABLE_SINCE:
        notes.append(
            f"{hungry}: may not start while LD_AUDIT is set, and glibc has no tunable "
            'for it before 2.32; set LD_AUDIT="" in the pod, the tools library holds the limit'
        )
    elif hungry:
        notes.append(
            f"{hungry}: starts beside an auditor only with "
            "GLIBC_TUNABLES=glibc.rtld.optional_static_tls"
        )
    return Image(
        libc=Libc.GLIBC,
        version=version,
        tool_loads=version >= (2, 17),
        auditor_loads=audits,
        notes=tuple(notes),
    )
