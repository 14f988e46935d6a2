# SPDX-License-Identifier: Apache-2.0
"""Container images made here, for sandboxes and containers: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME = "localhost/testbed:local"
GLIBC = "localhost/testbed:glibc"
"""The same, and this machine's glibc in a layer of its own."""

_BUSYBOX = Path("/bin/busybox")
_APPLETS = ("cat", "env", "sh", "sleep", "true")
_FOLDERS = ("bin", "dev", "etc", "proc", "run", "sys", "tmp")
_LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def write_images(path: Path, programs: Iterable[Path]) -> None:
    """Write an archive of both as ``docker save`` does: busybox, and static programs in /bin."""
    base = _layer((*_FOLDERS, *_links()), {f"bin/{one.name}": one for one in (_BUSYBOX, *programs)})
    libc = _layer((("lib", "usr/lib"),), {f"usr{_LIBC}": _LIBC})
    manifest = []
    with tarfile.open(path, "w") as archive:
        for layer in (base, libc):
            _add(archive, f"{_digest(layer)}/layer.tar", layer)
        for name, layers in ((NAME, [base]), (GLIBC, [base, libc])):
            config = _config(layers)
            _add(archive, f"{_digest(config)}.json", config)
            manifest.append(
                {
                    "Config": f"{_digest(config)}.json",
                    "RepoTags": [name],
                    "Layers": [f"{_digest(layer)}/layer.tar" for layer in layers],
                }
            )
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _config(layers: Iterable[bytes]) -> bytes:
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            # What a sandbox runs; containers of tests bring a command of their own.
            "config": {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{_digest(layer)}" for layer in layers],
            },
            "history": [{"created": "2026-01-01T00:00:00Z"}],
        }
    ).encode()


def _links() -> list[tuple[str, str]]:
    return [(f"bin/{applet}", _BUSYBOX.name) for applet in _APPLETS]


def _layer(entries: Iterable[str | tuple[str, str]], files: Mapping[str, Path]) -> bytes:
    """``entries`` are folders, and links with their targets."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for one in entries:
            if isinstance(one, str):
                entry = tarfile.TarInfo(one)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            else:
                entry = tarfile.TarInfo(one[0])
                entry.type, entry.linkname = tarfile.SYMTYPE, one[1]
            layer.addfile(entry)
        for name, program in files.items():
            _add(layer, name, program.read_bytes())
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o755, len(data)
    archive.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
