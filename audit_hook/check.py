# SPDX-License-Identifier: Apache-2.0
"""Whether an image can load the hook, and whether the hook's own objects are fit to be loaded.

``python -m audit_hook.check auditor|tool FILE`` is the build's last step; ``... image DIR`` says
what the libc of an unpacked image means for the hook.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from audit_hook.image import inspect_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from audit_hook.image import Version

_HERE = Path(__file__).resolve().parent
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_EXECUTE = 1
_SMALLEST = 16
"""Bytes of the smallest thing a file has a number of: an entry of its needed versions."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one of our objects may be."""

    soname: str
    exports: frozenset[str]
    needed: frozenset[str]
    ceiling: Version | None
    """Highest glibc symbol version it may ask for; None: no versioned symbol at all."""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Elf:
    """The facts of an ELF file that decide where it loads."""

    machine: str
    soname: str | None
    interpreter: str | None
    needed: tuple[str, ...]
    versions: tuple[str, ...]
    exports: tuple[str, ...]
    undefined: tuple[str, ...]
    tls_bytes: int
    static_tls: bool
    executable_stack: bool
    writable_code: bool


def exports_of(version_script: Path) -> frozenset[str]:
    """The names a linker version script lists as global.

    Raises ValueError for a script without a global section: that would export everything.
    """
    match = re.search(r"global:(.*?)local:", version_script.read_text(), re.DOTALL)
    if match is None:
        raise ValueError(f"{version_script}: expected `global:` names before `local:`")
    return frozenset(re.findall(r"(\w+);", match[1]))


def auditor_rule() -> Rule:
    """The auditor has a namespace of its own, without a libc: it may need nothing."""
    return Rule(
        soname="libringfence-audit.so",
        exports=exports_of(_HERE / "audit" / "exports.map"),
        needed=frozenset(),
        ceiling=None,
    )


def tool_rule() -> Rule:
    """The tools library loads wherever ROCr does: glibc 2.17 is older than any ROCm."""
    return Rule(
        soname="libringfence-hsa.so",
        exports=exports_of(_HERE / "tool" / "exports.map"),
        needed=frozenset({"libc.so.6"}),
        ceiling=(2, 17),
    )


def read_elf(path: Path) -> Elf:
    """Read an ELF file.

    Raises ValueError, naming the file, for anything else, also for one cut short or garbled.
    """
    content = path.read_bytes()
    try:
        # In memory a hostile offset is a value out of range, not a system call that fails.
        return _read(ELFFile(io.BytesIO(content)), len(content) // _SMALLEST)
    except Exception as error:
        # A garbled file breaks the reader anywhere, in assertions too.
        raise ValueError(f"{path}: expected an ELF file, found {error or type(error)}") from error


def _dynamic(elf: Any) -> Iterator[Any]:
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            yield from section.iter_tags()


def _versions(elf: Any, most: int) -> Iterator[str]:
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, wanted in section.iter_versions():
                most -= 1
                for auxiliary in wanted:
                    most -= 1
                    if most < 0:
                        break
                    yield auxiliary.name
                if most < 0:
                    raise ValueError("more needed versions than it has room for")


def _symbols(elf: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    exports: list[str] = []
    undefined: list[str] = []
    section = elf.get_section_by_name(".dynsym")
    if isinstance(section, SymbolTableSection):
        for symbol in section.iter_symbols():
            if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
                continue
            if symbol["st_shndx"] != "SHN_UNDEF":
                exports.append(symbol.name)
            elif symbol["st_info"]["bind"] != "STB_WEAK":
                undefined.append(symbol.name)
    return tuple(exports), tuple(undefined)


def _read(elf: Any, most: int) -> Elf:
    # Their number is a word of the file, of 64 bits for sections.
    if elf.num_sections() > most or elf.num_segments() > most:
        raise ValueError("more sections or segments than it has room for")
    tags = list(_dynamic(elf))
    interpreter = None
    tls_bytes = 0
    # The kernel gives a file without the header an executable stack.
    executable_stack = True
    writable_code = False
    for segment in elf.iter_segments():
        kind, flags = segment["p_type"], segment["p_flags"]
        if kind == "PT_INTERP":
            interpreter = segment.get_interp_name()
        elif kind == "PT_TLS":
            tls_bytes += segment["p_memsz"]
        elif kind == "PT_GNU_STACK":
            executable_stack = bool(flags & _EXECUTE)
        elif kind == "PT_LOAD":
            writable_code |= flags & 3 == 3
    exports, undefined = _symbols(elf)
    return Elf(
        machine=elf.get_machine_arch(),
        soname=next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), None),
        interpreter=interpreter,
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        versions=tuple(_versions(elf, most)),
        exports=exports,
        undefined=undefined,
        tls_bytes=tls_bytes,
        static_tls=any(tag.entry.d_tag == "DT_FLAGS" and tag.entry.d_val & 0x10 for tag in tags),
        executable_stack=executable_stack,
        writable_code=writable_code,
    )


def _above(version: str, ceiling: Version | None) -> bool:
    match = _GLIBC.fullmatch(version)
    return ceiling is None or match is None or (int(match[1]), int(match[2])) > ceiling


def problems(elf: Elf, rule: Rule) -> list[str]:
    """Why an object must not be shipped, a line each; none: it may be."""
    found = []
    if elf.soname != rule.soname:
        found.append(f"its name is {elf.soname}, expected {rule.soname}")
    if extra := set(elf.needed) - rule.needed:
        found.append(f"needs {', '.join(sorted(extra))}: an image may not have it")
    if high := sorted({version for version in elf.versions if _above(version, rule.ceiling)}):
        floor = "none" if rule.ceiling is None else "GLIBC_{}.{}".format(*rule.ceiling)
        found.append(f"asks for {', '.join(high)}, expected at most {floor}")
    if not rule.needed and elf.undefined:
        found.append(f"leaves {', '.join(sorted(elf.undefined))} undefined")
    if (elf.tls_bytes or elf.static_tls) and not rule.tls:
        found.append(f"has {elf.tls_bytes} bytes of thread-local storage, expected none")
    if extra := set(elf.exports) - rule.exports:
        found.append(f"exports {', '.join(sorted(extra))}, which exports.map does not")
    if missing := rule.exports - set(elf.exports):
        found.append(f"does not export {', '.join(sorted(missing))}")
    if elf.executable_stack:
        found.append("asks for an executable stack")
    if elf.writable_code:
        found.append("has code that can be written")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is wrong with an object, or what an image means; 1 if an object is unfit."""
    parser = argparse.ArgumentParser(prog="check", description=__doc__)
    parser.add_argument("what", choices=("auditor", "tool", "image"))
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.what == "image":
        if not arguments.path.is_dir():
            parser.error(f"{arguments.path}: expected the directory of an unpacked image")
        try:
            image = inspect_image(arguments.path)
        except OSError as error:
            parser.error(f"{arguments.path}: {error}")
        version = "" if image.version is None else " {}.{}".format(*image.version)
        print(f"{image.libc}{version}")
        for name, loads in (("auditor", image.auditor_loads), ("tool", image.tool_loads)):
            print(f"{name}: {'loads' if loads else 'does not load'}")
        for note in image.notes:
            print(note)
        return 0
    rule = auditor_rule() if arguments.what == "auditor" else tool_rule()
    try:
        lines = problems(read_elf(arguments.path), rule)
    except (OSError, ValueError) as error:
        lines = [str(error)]
    for line in lines:
        print(f"{arguments.path}: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
