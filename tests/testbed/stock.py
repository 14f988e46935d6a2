# SPDX-License-Identifier: Apache-2.0
"""The distribution's own kernels, unpacked and never installed, with their unmodified amdgpu.ko."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, Step, StepError, digest, write_whole
from tests.testbed.machine import Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAMES = ("6.1", "6.12", "newest")

_RECIPE = "1"
_DEBIAN_IMAGE = r"linux-image-(\d[\d.]*(?:-\d+)?)(?:\+deb\d+)?-amd64"
_UBUNTU_IMAGE = r"linux-image-(\d[\d.]*-\d+)-generic"
_UBUNTU = re.compile(_UBUNTU_IMAGE)
_FOLLOWED = ("linux-modules-", "linux-binary-")
"""Newer kernels come in parts; these hold the image and the modules."""


def ready(cache: Cache, name: str) -> Kernel | None:
    """The kernel if it was unpacked before. Asks no network."""
    try:
        key = str(json.loads(_record(cache, name).read_text())["key"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    place = cache.place("stock", name, key)
    return _kernel(name, place) if place.is_dir() else None


def prepare(cache: Cache, name: str, report: Report, *, refresh: bool = False) -> Kernel:
    """Download and unpack that kernel unless it is there. Raises StepError."""
    if not refresh and (found := ready(cache, name)):
        return found
    step = cache.step(f"stock {name}", report, f"stock-{name}-packages.log")
    archive = apt.open_archive(cache, step, refresh=refresh)
    names = archive.names("^linux-(image|modules-extra)-[0-9]")
    package = archive.show(choose(name, names))
    packages = [package, *(archive.show(part) for part in _parts(package, names))]
    key = digest(_RECIPE, *(f"{part.name}={part.version}" for part in packages))

    def make(into: Path, step: Step) -> None:
        download = into / "download"
        wanted = [f"{part.name}={part.version}" for part in packages]
        for file in archive.download(wanted, download, step):
            apt.unpack(file, into / "root", step)
            file.unlink()
        modules = _modules(into)
        step.say(f"indexing the modules of {modules.name}")
        step.run(["depmod", "-b", _base(modules), modules.name])

    place = cache.ensure("stock", name, key, report, make)
    write_whole(_record(cache, name), json.dumps({"key": key}) + "\n")
    return _kernel(name, place)


def choose(name: str, names: Sequence[str]) -> str:
    """The image package for a stock kernel: the newest of that line, or the newest of all.

    On Ubuntu, whose archive has other lines, each name is served by what is there.
    """
    if name not in NAMES:
        raise StepError(f"stock kernel: expected one of {', '.join(NAMES)}, found {name!r}")
    line = () if name == "newest" else apt.numbers(name)
    found = apt.newest(names, _DEBIAN_IMAGE, line=line)
    if apt.newest(names, _DEBIAN_IMAGE) is None:
        found = _of_ubuntu(name, names)
    if found is None:
        raise StepError(
            f"stock {name}: the archive in reach has no such linux-image package; "
            "`tests/testbed/prepare --refresh stock` looks again"
        )
    return found


def _of_ubuntu(name: str, names: Sequence[str]) -> str | None:
    """For 6.1 the oldest line, for 6.12 the newest whose amdgpu has no dmem, and the newest."""
    lines = sorted(apt.numbers(match[1])[:2] for match in map(_UBUNTU.fullmatch, names) if match)
    if not lines:
        return None
    if name == "6.1":
        return apt.newest(names, _UBUNTU_IMAGE, line=lines[0])
    return apt.newest(names, _UBUNTU_IMAGE, below=(6, 15) if name == "6.12" else None)


def _parts(package: apt.Package, names: Sequence[str]) -> list[str]:
    """The packages that hold its image and modules; on Ubuntu amdgpu is among the extra ones."""
    parts = [part for part in package.depends if part.startswith(_FOLLOWED)]
    extra = package.name.replace("linux-image-", "linux-modules-extra-")
    return [*parts, *({extra} & set(names) - set(parts))]


def _record(cache: Cache, name: str) -> Path:
    return cache.root / "stock" / f"{name}.json"


def _kernel(name: str, place: Path) -> Kernel:
    modules = _modules(place)
    return Kernel(f"stock {name}", _image(place, modules.name), modules)


def _modules(place: Path) -> Path:
    """The one /lib/modules/<release> of an unpacked kernel, before or after the /usr merge."""
    found = [
        path for path in sorted(place.glob("root/**/lib/modules/*")) if (path / "kernel").is_dir()
    ]
    if len(found) != 1:
        raise StepError(f"{place}: expected one lib/modules/<release> in it, found {len(found)}")
    return found[0]


def _base(modules: Path) -> Path:
    """The directory depmod is to take as the root."""
    return modules.parents[2]


def _image(place: Path, release: str) -> Path:
    found = sorted(place.glob(f"root/**/vmlinuz*{re.sub(r'[][*?]', '?', release)}")) or sorted(
        place.glob("root/**/vmlinuz")
    )
    if len(found) != 1:
        raise StepError(f"{place}: expected one vmlinuz for {release} in it, found {len(found)}")
    return found[0]
