# SPDX-License-Identifier: Apache-2.0
"""Whether an image can load the hook, by the files of its C library."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_BANNER = rb"GNU C Library [^\n]*?(?:release|snapshot|development) version (\d+)\.(\d+)"
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


def _entries(root: Path, directory: str) -> list[str]:
    path = _resolve(root, directory)
    try:
        return sorted(entry.name for entry in path.iterdir()) if path is not None else []
    except OSError:
        return []


def _find(root: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """The files in the image's library directories whose names match."""
    for top in _LIB_DIRS:
        multiarch = fnmatch.filter(_entries(root, top), _MULTIARCH)
        for directory in (top, *(f"{top}/{name}" for name in multiarch)):
            for pattern in patterns:
                for name in fnmatch.filter(_entries(root, directory), pattern):
                    real = _resolve(root, f"{directory}/{name}")
                    if real is not None and real.is_file():
                        yield real


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
    its own, is outside this answer, and ``read_elf`` of it tells.
    """
    for libc in _find(root, ("libc.so.6",)):
        version = glibc_version(libc.read_bytes())
        return _glibc_image(root, version)
    if next(_find(root, ("ld-musl-*.so.1", "libc.musl-*.so.1")), None) is not None:
        return Image(
            libc=Libc.MUSL,
            version=None,
            tool_loads=False,
            auditor_loads=False,
            notes=("musl: no auditor, and ROCm does not build on it; only a kernel layer holds",),
        )
    return Image(
        libc=Libc.NONE,
        version=None,
        tool_loads=False,
        auditor_loads=False,
        notes=("no C library: static programs only, and only a kernel layer holds those",),
    )


def _glibc_image(root: Path, version: Version | None) -> Image:
    notes = []
    if version is None:
        notes.append("glibc of unknown version: its banner does not say")
    audits = version is not None and version >= _AUDIT_SINCE
    if version == _AUDIT_BACKPORT:
        loader = next(_find(root, ("ld-linux-*.so.*",)), None)
        audits = loader is not None and _offers_version_2(loader.read_bytes())
        notes.append("glibc 2.34: the auditor " + ("loads" if audits else "takes itself out"))
    elif version is not None and not audits:
        notes.append(
            "glibc below 2.35: the auditor takes itself out, the tools library holds the limit"
        )
    hungry = sorted({path.name for path in _find(root, _TLS_HUNGRY)})
    # The room is laid out before the auditor can take itself out.
    if hungry and version is not None and version < _TUNABLE_SINCE:
        notes.append(
            f"{', '.join(hungry)}: may not start while LD_AUDIT is set, and glibc has no tunable "
            'for it before 2.32; set LD_AUDIT="" in the pod, the tools library holds the limit'
        )
    elif hungry:
        notes.append(
            f"{', '.join(hungry)}: starts beside an auditor only with "
            "GLIBC_TUNABLES=glibc.rtld.optional_static_tls"
        )
    return Image(
        libc=Libc.GLIBC,
        version=version,
        tool_loads=version is None or version >= (2, 17),
        auditor_loads=audits,
        notes=tuple(notes),
    )
