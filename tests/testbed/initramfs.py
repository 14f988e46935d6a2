# SPDX-License-Identifier: Apache-2.0
"""The guest's first root: busybox, guest/init, and the modules a kernel needs to see its root."""

from __future__ import annotations

import lzma
import shlex
import subprocess
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tests.testbed import cpio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GUEST = Path(__file__).parent / "guest"
_BUSYBOX = Path("/bin/busybox")

ROOT_MODULES = (
    "crc32c_generic",
    "crc32c",
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
    "overlay",
    "erofs",
)
"""Modules guest/init relies on; those that are built in, or do not exist in a kernel, are no loss:
if one is really missing, guest/init says what it could not do."""


def loading_order(modules_dep: str, names: Sequence[str]) -> list[str]:
    """Files to load, dependencies first, for the modules in `names`.

    `modules_dep` is the text of depmod's modules.dep; names it does not know are left out.
    """
    needs: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for line in modules_dep.splitlines():
        path, colon, rest = line.partition(":")
        if not colon:
            raise ValueError(f"modules.dep: expected '<file>: <files it needs>', found {line!r}")
        needs[path] = rest.split()
        files[_module_name(path)] = path
    order: dict[str, None] = {}
    for name in names:
        if wanted := files.get(name.replace("-", "_")):
            # modules.dep lists what has to be loaded first last.
            order.update(dict.fromkeys([*reversed(needs[wanted]), wanted]))
    return list(order)


def fixed_part(modules: Path) -> bytes:
    """What is the same for every run of one kernel; `modules` is its /lib/modules/<release>."""
    order = loading_order((modules / "modules.dep").read_text(), ROOT_MODULES)
    names = [_module_name(path) + ".ko" for path in order]
    return cpio.archive(
        [
            *(cpio.directory(name) for name in ("bin", "etc", "etc/testbed", "modules")),
            cpio.file("bin/busybox", _BUSYBOX.read_bytes(), 0o755),
            cpio.symlink("bin/sh", "busybox"),
            cpio.file("init", (_GUEST / "init").read_bytes(), 0o755),
            cpio.file("etc/testbed/node", (_GUEST / "node").read_bytes(), 0o755),
            cpio.file("etc/testbed/modules", "".join(f"{name}\n" for name in names).encode()),
            *(
                cpio.file(f"modules/{name}", _module(modules / path))
                for name, path in zip(names, order, strict=True)
            ),
        ]
    )


def run_part(settings: Mapping[str, str], command: str) -> bytes:
    """What belongs to one run: the variables guest/init and guest/node read, and a shell script."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in settings.items()]
    return cpio.archive(
        [
            cpio.file("etc/testbed/run.conf", "".join(lines).encode()),
            cpio.file("etc/testbed/command", command.encode()),
        ]
    )


def _module_name(path: str) -> str:
    return PurePosixPath(path).name.split(".ko", 1)[0].replace("-", "_")


def _module(path: Path) -> bytes:
    """A module's bytes, uncompressed: the kernel cannot always unpack what a distribution packs."""
    match path.suffix:
        case ".ko":
            return path.read_bytes()
        case ".xz":
            return lzma.decompress(path.read_bytes())
        case ".zst":
            return subprocess.run(
                ["zstd", "-dcq", str(path)], check=True, stdout=subprocess.PIPE
            ).stdout
        case suffix:
            raise ValueError(f"{path}: expected a .ko, .ko.xz or .ko.zst file, found {suffix}")
