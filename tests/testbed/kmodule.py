# SPDX-License-Identifier: Apache-2.0
"""Builds the simulated amdgpu.ko for one kernel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.cache import Cache, Report, Step, StepError, digest, digest_files
from tests.testbed.machine import Driver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.testbed.kernels import BuiltKernel

SOURCES = Path(__file__).parent / "driver"
MODULE = "amdgpu.ko"

_RECIPE = "3"
_NO_BTF = "no-btf"
_SOURCE_NAMES = ("Kbuild", "Makefile", "*.c", "*.h", "*.S")


def prepare(
    cache: Cache,
    kernel: BuiltKernel,
    report: Report,
    *,
    module_btf: bool = True,
    options: Mapping[str, str] | None = None,
) -> Driver:
    """The module for that kernel, built if its sources or the kernel changed.

    `module_btf=False` gives the same module without its type information, as a module has that was
    built where no vmlinux was at hand (ROCm's own driver packages). Raises StepError.
    """
    sources = [path for name in _SOURCE_NAMES for path in SOURCES.rglob(name)]
    if not (SOURCES / "Kbuild").is_file():
        raise StepError(f"driver: expected {SOURCES / 'Kbuild'}, found no such file")
    key = digest(_RECIPE, kernel.key, digest_files(sources, SOURCES))

    def make(into: Path, step: Step) -> None:
        copy = into / "source"
        for path in sources:
            target = copy / path.relative_to(SOURCES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        step.say(f"compiling {MODULE} for {kernel.release}")
        step.run(["make", "-C", kernel.tree, f"M={copy}", "-j2", "modules"])
        built = copy / MODULE
        if not built.is_file():
            raise StepError(f"{step.name}: the sources built no {MODULE}; see {step.log}")
        step.run(["objcopy", "--strip-debug", built, into / MODULE])
        shutil.rmtree(copy)
        if ".BTF" not in _sections(into / MODULE):
            raise StepError(
                f"{step.name}: {MODULE} has no type information; expected pahole (package dwarves) "
                f"to add it, see {step.log}"
            )
        (into / _NO_BTF).mkdir()
        without = ["--remove-section=.BTF", "--remove-section=.BTF.base"]
        step.run(["objcopy", *without, into / MODULE, into / _NO_BTF / MODULE])
        _write_lines(into / "depends", _modinfo(into / MODULE, "depends").strip().split(","))
        parameters = _modinfo(into / MODULE, "parm").splitlines()
        _write_lines(into / "parameters", [line.partition(":")[0] for line in parameters])

    place = cache.ensure("driver", kernel.line, key, report, make)
    check_options(options or {}, (place / "parameters").read_text().split())
    module = place / MODULE if module_btf else place / _NO_BTF / MODULE
    return Driver(module, (place / "depends").read_text().split(), options or {})


def check_options(options: Mapping[str, str], parameters: Sequence[str]) -> None:
    """Raises StepError for an option that is no parameter: the kernel would load and ignore it."""
    for name in options:
        if name not in parameters:
            known = ", ".join(sorted(parameters)) or "none"
            raise StepError(f"driver: it has no parameter {name!r}; those it has: {known}")


def _modinfo(module: Path, field: str) -> str:
    return subprocess.run(
        ["modinfo", "-F", field, str(module)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines if line))


def _sections(module: Path) -> set[str]:
    found = subprocess.run(
        ["objdump", "-h", str(module)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return {word for line in found.splitlines() for word in line.split()[1:2]}
