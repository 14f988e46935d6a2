# SPDX-License-Identifier: Apache-2.0
"""The kernel lines built from the distribution's linux-source packages with our fragments."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, Step, StepError, digest, write_whole
from tests.testbed.machine import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EVERYDAY = ("dmem", "nodmem")
"""What `prepare` builds when no line is named."""
LINES = (*EVERYDAY, "dmem-7.2")
"""`dmem-7.2`, for a soak tier alone, is the last that takes no dmem.max below what is in use."""

_HERE = Path(__file__).parent / "kernel"
_FRAGMENTS = {
    "dmem": ("base.config", "dmem.config", "aligned.config"),
    "nodmem": ("base.config",),
    "dmem-7.2": ("base.config", "dmem.config", "aligned.config"),
}
_RECIPE = "1"
"""Changes when this module builds differently from the same inputs."""

_NAME = r"linux-source-(\d[\d.]*)"
_LEFT_PACKED = ("Documentation/*/*", "drivers/gpu/drm/amd/include/asic_reg", "tools/testing")
"""Half of the unpacking time, and nothing that is compiled here."""

_KEPT = (
    *(".config", "Kbuild", "Kconfig", "Makefile", "Module.symvers", "System.map", "vmlinux"),
    *("include", "scripts", "arch/x86/include", "arch/x86/boot/bzImage"),
    *("tools/objtool/objtool", "tools/bpf/resolve_btfids/resolve_btfids"),
)
"""What building a module, booting and inspecting need, besides Makefiles and headers."""


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """`tree` is what `make -C` builds modules against; `boot` is what the VM runner takes."""

    line: str
    key: str
    release: str
    tree: Path
    boot: Kernel


def ready(cache: Cache, line: str) -> BuiltKernel | None:
    """The kernel of that line if it is built from the fragments as they are. Asks no network."""
    try:
        record = json.loads(_record(cache, line).read_text())
        package, version = str(record["package"]), str(record["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    key = _key(line, package, version)
    place = cache.place("kernel", line, key)
    return _built(line, key, place) if place.is_dir() else None


def prepare(cache: Cache, line: str, report: Report, *, refresh: bool = False) -> BuiltKernel:
    """Build the kernel of that line unless it is there. `refresh` looks for a newer source first.

    Raises StepError.
    """
    if not refresh and (found := ready(cache, line)):
        return found
    step = cache.step(f"kernel {line}", report, f"kernel-{line}-source.log")
    archive = apt.open_archive(cache, step, refresh=refresh)
    package = archive.show(choose(line, archive.names("^linux-source-[0-9.]+$")))
    key = _key(line, package.name, package.version)

    def make(into: Path, step: Step) -> None:
        _build(line, package, archive, into, step)

    place = cache.ensure("kernel", line, key, report, make)
    write_whole(
        _record(cache, line),
        json.dumps({"package": package.name, "version": package.version}) + "\n",
    )
    return _built(line, key, place)


def choose(line: str, names: Sequence[str]) -> str:
    """The source package for a line: `dmem` the newest, `nodmem` 6.12, `dmem-7.2` that line alone.

    Ubuntu has neither 7.2 nor 6.12 in its archive; there the newest that has the dmem controller
    at all (6.14), and the newest that has not, take the places of `dmem` and `nodmem`. Nothing
    takes that of `dmem-7.2`. Raises StepError.
    """
    match line:
        case "dmem":
            found = apt.newest(names, _NAME, at_least=(7, 2)) or apt.newest(
                names, _NAME, at_least=(6, 14)
            )
            wanted = "7.2 or newer"
        case "nodmem":
            found = apt.newest(names, _NAME, line=(6, 12)) or apt.newest(
                names, _NAME, at_least=(6, 1), below=(6, 14)
            )
            wanted = "6.12"
        case "dmem-7.2":
            found = apt.newest(names, _NAME, line=(7, 2))
            wanted = "7.2"
        case _:
            raise StepError(f"kernel {line}: expected one of {', '.join(LINES)}, found {line!r}")
    if found is None:
        raise StepError(
            f"kernel {line}: expected a package linux-source-{wanted} in the archive, found "
            f"{', '.join(names) or 'no linux-source package'}; "
            "`tests/testbed/prepare --refresh kernel` looks again"
        )
    return found


def fragment(line: str) -> str:
    """The options asked for, over tinyconfig."""
    return "".join((_HERE / name).read_text() for name in _FRAGMENTS[line])


def lost_options(wanted: str, config: str) -> list[str]:
    """The lines of a fragment that a finished .config does not carry."""
    have = set(config.splitlines())
    lost = []
    for line in wanted.splitlines():
        if match := re.fullmatch(r"# (CONFIG_\w+) is not set", line):
            if any(option.startswith(f"{match[1]}=") for option in have):
                lost.append(line)
        elif line.startswith("CONFIG_") and line not in have:
            lost.append(line)
    return lost


def is_kept(path: PurePosixPath) -> bool:
    """Whether a file of the tree (relative to it) stays after the build."""
    if path.suffix in (".o", ".a", ".ko", ".cmd", ".mod"):
        return False
    if any(path.is_relative_to(kept) for kept in _KEPT):
        return True
    if path.name.startswith(("Makefile", "Kbuild")) or path.suffix == ".h":
        return not path.is_relative_to("arch") or path.is_relative_to("arch/x86")
    return False


def _key(line: str, package: str, version: str) -> str:
    return digest(_RECIPE, line, package, version, fragment(line), (_HERE / "Kconfig").read_text())


def _record(cache: Cache, line: str) -> Path:
    return cache.root / "kernel" / f"{line}.json"


def _built(line: str, key: str, place: Path) -> BuiltKernel:
    release = (place / "release").read_text().strip()
    boot = Kernel(line, place / "bzImage", place / "lib" / "modules" / release)
    return BuiltKernel(line, key, release, place / "tree", boot)


def _build(line: str, package: apt.Package, archive: apt.Archive, into: Path, step: Step) -> None:
    tree = _unpacked(package, archive, into, step)
    with (tree / "drivers/gpu/drm/Kconfig").open("a") as kconfig:
        kconfig.write("\n" + (_HERE / "Kconfig").read_text())
    make: list[str | Path] = ["make", "-C", tree, f"-j{os.cpu_count() or 1}", *_reproducible()]
    step.run([*make, "-s", "tinyconfig"])
    with (tree / ".config").open("a") as config:
        config.write(fragment(line))
    step.run([*make, "-s", "olddefconfig"])
    if lost := lost_options(fragment(line), (tree / ".config").read_text()):
        raise StepError(
            f"{step.name}: {package.name} {package.version} does not take these options of "
            f"tests/testbed/kernel/: {'; '.join(lost)}"
        )
    step.say(f"compiling {package.name} {package.version} (about 6 minutes on 2 cores)")
    step.run([*make, "bzImage", "modules"])
    _finish(tree, into, make, step)


def _finish(tree: Path, into: Path, make: Sequence[str | Path], step: Step) -> None:
    """Take out of a compiled tree what boots, and reduce it to what modules are built against."""
    step.say("installing modules")
    step.run([*make, "-s", "modules_install", f"INSTALL_MOD_PATH={into}", "INSTALL_MOD_STRIP=1"])
    release = (tree / "include/config/kernel.release").read_text().strip()
    build_link = into / "lib/modules" / release / "build"
    build_link.unlink(missing_ok=True)
    build_link.symlink_to("../../../tree")
    shutil.copy2(tree / "arch/x86/boot/bzImage", into / "bzImage")
    # The type information (BTF) stays; DWARF is nine tenths of the file.
    step.run(["strip", "--strip-debug", tree / "vmlinux"])
    (into / "release").write_text(release + "\n")
    for path in list(_files(tree)):
        if not is_kept(PurePosixPath(path.relative_to(tree))):
            path.unlink()
    _remove_empty(tree)


def _unpacked(package: apt.Package, archive: apt.Archive, into: Path, step: Step) -> Path:
    download = into / "download"
    [file] = archive.download([f"{package.name}={package.version}"], download, step)
    step.say("unpacking")
    apt.unpack(file, download, step)
    tarballs = sorted(download.glob("usr/src/**/linux-source-*.tar.*"))
    if len(tarballs) != 1:
        raise StepError(
            f"{file.name}: expected one linux-source-*.tar.* in it, found {len(tarballs)}"
        )
    tree = into / "tree"
    tree.mkdir()
    excludes = [f"--exclude=*/{pattern}" for pattern in _LEFT_PACKED]
    step.run(["tar", "--strip-components=1", *excludes, "-xf", tarballs[0], "-C", tree])
    shutil.rmtree(download)
    return tree


def _reproducible() -> list[str]:
    return ["KBUILD_BUILD_USER=ringfence", "KBUILD_BUILD_HOST=testbed"]


def _files(tree: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(tree):
        for name in names:
            yield Path(directory, name)


def _remove_empty(tree: Path) -> None:
    for directory, _, _ in os.walk(tree, topdown=False):
        if not any(os.scandir(directory)):
            Path(directory).rmdir()
