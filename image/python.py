# SPDX-License-Identifier: Apache-2.0
"""The Python part of the image: our wheel, the locked wheels it needs, and all of it compiled."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from image.contents import PYTHON, SITE, Architecture
from tests.testbed.cache import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.testbed.cache import Step

PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
"""Kinds of wheels that the suite's libc can load."""
LOCK = Path(__file__).with_name("requirements.txt")
SOURCES = ("enforcer", "deviceplugin", "bpf", "audit_hook")
"""Our packages."""
_FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "Makefile", "README.md", "LICENSE")
_ZIP_EPOCH = "315532800"
"""1980, the first year that a wheel can name."""
_GENERATED = ("__pycache__", "*_pb2*.py*", "*.o", "*.so", "*.new")


def build_wheel(
    project: Path,
    into: Path,
    architecture: Architecture,
    version: str,
    optimise: str,
    epoch: int,
    step: Step,
) -> Path:
    """Our wheel, from a copy of the sources alone: what else lies in the tree has no part in it.

    ``version`` is the wheel's, whatever pyproject.toml says; ``optimise`` the compilers' level.
    """
    stage = into / "source"
    for name in SOURCES:
        shutil.copytree(project / name, stage / name, ignore=shutil.ignore_patterns(*_GENERATED))
    for name in _FILES:
        shutil.copy2(project / name, stage / name)
    wishes = stage / "pyproject.toml"
    named = re.compile(r'^version = ".*"$', re.MULTILINE)
    wishes.write_text(named.sub(f'version = "{version}"', wishes.read_text(), count=1))
    step.say("building the wheel: protobuf code, BPF objects, hook")
    wheels = into / "wheels"
    step.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", wheels),
            f"--config-settings=--build-option=--plat-name=linux_{architecture.machine}",
            stage,
        ],
        env={
            "SOURCE_DATE_EPOCH": str(epoch),
            "BPF_ARCH": architecture.bpf,
            "CC": architecture.compiler,
            "OPTIMISE": optimise,
        },
    )
    (wheel,) = wheels.glob("ringfence-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        if absent := sorted(generated(stage) - set(archive.namelist())):
            raise StepError(f"{wheel.name}: expected {', '.join(absent)}, found none")
    return wheel


def generated(source: Path) -> set[str]:
    """What a wheel must have that is in no commit, by the sources it is made from."""
    found = {"audit_hook/libringfence-audit.so", "audit_hook/libringfence-hsa.so"}
    for proto in source.glob("*/*/*.proto"):
        name = proto.relative_to(source).with_suffix("")
        found |= {f"{name}_pb2.py", f"{name}_pb2_grpc.py"}
    for program in source.glob("bpf/*.bpf.c"):
        found.add(str(program.relative_to(source).with_suffix(".o")))
    return found


def install_locked(root: Path, architecture: Architecture, step: Step) -> None:
    """Put the locked wheels below ``root``. Every hash is checked against the lock."""
    step.say("installing the locked wheels")
    step.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-compile", "--target", root / SITE, "--require-hashes"),
            *("--implementation", "cp", "--python-version", PYTHON),
            *(f"--platform={tag}_{architecture.machine}" for tag in PLATFORMS),
            *("--requirement", LOCK),
        ],
        # One of them is a source archive, of Python files only.
        env={"SOURCE_DATE_EPOCH": _ZIP_EPOCH},
    )


def install_ours(root: Path, wheel: Path) -> None:
    """Unpack our wheel. Raises StepError if a part of it belongs elsewhere, or is missing."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        astray = sorted({name.partition("/")[0] for name in names if ".data/" in name})
        missing = sorted({*SOURCES} - {name.partition("/")[0] for name in names})
        if astray or missing:
            raise StepError(
                f"{wheel.name}: expected {', '.join(SOURCES)} at its top, found "
                f"{', '.join(astray) or 'no data'} and not {', '.join(missing) or 'one missing'}"
            )
        archive.extractall(root / SITE)


def compile_all(root: Path, folders: Sequence[str], step: Step) -> None:
    """Compile below ``folders`` with the image's own Python: its root will be read-only.

    The bytecode carries a hash instead of a time and is not checked against its source, which
    nobody can change. Runs only where the processor can run what is in ``root``.
    """
    step.say(f"compiling {', '.join(folders)}")
    step.run(
        [
            *_as_root(),
            *("chroot", root, f"/usr/bin/python{PYTHON}", "-I", "-m", "compileall", "-q"),
            *("--invalidation-mode", "unchecked-hash", *(f"/{folder}" for folder in folders)),
        ],
        # Sets of names are written in the order of their hashes.
        env={"PYTHONHASHSEED": "0"},
    )


def distributions(root: Path) -> Iterator[tuple[str, str, str | None]]:
    """Name, version and licence expression of each distribution below ``root``."""
    for path in sorted((root / SITE).glob("*.dist-info/METADATA")):
        fields: dict[str, str] = {}
        for line in path.read_text().split("\n\n", 1)[0].splitlines():
            name, colon, value = line.partition(": ")
            if colon and not line[0].isspace():
                fields.setdefault(name, value)
        yield fields["Name"], fields["Version"], fields.get("License-Expression")


def _as_root() -> tuple[str, ...]:
    if os.geteuid() == 0:
        return ()
    if shutil.which("unshare") is None:
        raise StepError("image: expected root, or unshare to be root in a namespace of its own")
    return ("unshare", "--map-root-user")
