# SPDX-License-Identifier: Apache-2.0
"""A container image made here, for sandboxes and containers: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "localhost/testbed:local"

_BUSYBOX = Path("/bin/busybox")
_APPLETS = ("cat", "env", "sh", "sleep", "true")
_FOLDERS = ("bin", "dev", "etc", "proc", "run", "sys", "tmp")


def write_image(path: Path, programs: Iterable[Path]) -> None:
    """Write an archive as ``docker save`` does: busybox, and these static programs in /bin."""
    layer = _layer(programs)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            # What a sandbox runs; containers of tests bring a command of their own.
            "config": {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
            "history": [{"created": "2026-01-01T00:00:00Z"}],
        }
    ).encode()
    names = f"{_digest(config)}.json", f"{_digest(layer)}/layer.tar"
    manifest = json.dumps([{"Config": names[0], "RepoTags": [NAME], "Layers": [names[1]]}])
    with tarfile.open(path, "w") as archive:
        for name, data in (
            (names[0], config),
            (names[1], layer),
            ("manifest.json", manifest.encode()),
        ):
            _add(archive, name, data)


def _layer(programs: Iterable[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        for program in (_BUSYBOX, *programs):
            _add(layer, f"bin/{program.name}", program.read_bytes())
        for applet in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, _BUSYBOX.name
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o755, len(data)
    archive.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
