# SPDX-License-Identifier: Apache-2.0
"""Reads BTF out of ELF files and kernel images: functions and structs, by name, as C text.

Format: Documentation/bpf/btf.rst of the kernel. Only what prototypes and members need is kept.
"""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import subprocess
from typing import TYPE_CHECKING, Final

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("<HBBIIIII")
_TYPE: Final = struct.Struct("<III")
_MEMBER: Final = struct.Struct("<III")
_PARAM: Final = struct.Struct("<II")
_ARRAY: Final = struct.Struct("<III")

_INT, _PTR, _ARRAY_KIND, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = range(1, 9)
_VOLATILE, _CONST, _RESTRICT, _FUNC, _FUNC_PROTO, _VAR, _DATASEC, _FLOAT = range(9, 17)
_DECL_TAG, _TYPE_TAG, _ENUM64 = range(17, 20)
_FOLLOWED_BY: Final = {_INT: 4, _VAR: 4, _DECL_TAG: 4}
_ITEMS_OF: Final = {_ENUM: 8, _ENUM64: 12, _DATASEC: 12}
"""Bytes behind a type that nothing here reads: once, and for each of its items."""
_QUALIFIERS: Final = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG)

_SETUP_SECTIONS: Final = 0x1F1
_SETUP_PAYLOAD: Final = 0x248
"""Offsets in a bzImage: Documentation/arch/x86/boot.rst."""


class BtfError(ValueError):
    """Not BTF, or not where it was expected; one line naming the file."""


class _Kind:
    """One type: its kind, its name, what it refers to, and its parts."""

    __slots__ = ("kind", "name", "parts", "size", "target")

    def __init__(
        self, kind: int, name: str, target: int, size: int, parts: list[tuple[str, int]]
    ) -> None:
        self.kind, self.name, self.target, self.size, self.parts = kind, name, target, size, parts


class Btf:
    """The types of one file. `base` holds those it shares with the kernel (split BTF)."""

    def __init__(self, data: bytes, name: str, base: Btf | None = None) -> None:
        if len(data) < _HEADER.size or struct.unpack_from("<H", data)[0] != _MAGIC:
            raise BtfError(f"{name}: expected BTF, found something else")
        _, _, _, header, type_at, type_size, string_at, string_size = _HEADER.unpack_from(data)
        self._base = base
        self._first = base.count if base else 1
        self._first_string = base.string_size if base else 0
        self._strings = data[header + string_at : header + string_at + string_size]
        self._types: list[_Kind] = []
        try:
            self._read(data[header + type_at : header + type_at + type_size])
        except (struct.error, IndexError) as error:
            raise BtfError(f"{name}: its BTF ends in the middle of a type") from error
        self.functions: dict[str, int] = {}
        self.structs: dict[str, int] = {}
        for number, kind in enumerate(self._types, self._first):
            if kind.kind == _FUNC:
                self.functions[kind.name] = kind.target
            elif kind.kind in (_STRUCT, _UNION) and kind.name:
                self.structs[kind.name] = number

    @property
    def count(self) -> int:
        """One more than the highest type number."""
        return self._first + len(self._types)

    @property
    def string_size(self) -> int:
        return self._first_string + len(self._strings)

    def prototype(self, function: str) -> str | None:
        """`int (struct file *, unsigned int)`; None if there is no such function."""
        number = self.functions.get(function)
        return None if number is None else self._text(number)

    def members(self, name: str) -> dict[str, str] | None:
        """Type of each member, those of unnamed structs inside it too; None: no such struct."""
        number = self.structs.get(name)
        if number is None:
            return self._base.members(name) if self._base else None
        return dict(self._members(number))

    def _members(self, number: int) -> list[tuple[str, str]]:
        found = []
        for name, target in self._at(number).parts:
            if name:
                found.append((name, self._text(target)))
            else:
                found += self._members(self._bare(target))
        return found

    def _bare(self, number: int) -> int:
        """The type without typedefs and qualifiers: BPF does not see those."""
        while number and self._at(number).kind in _QUALIFIERS:
            number = self._at(number).target
        return number

    def _text(self, number: int) -> str:
        number = self._bare(number)
        if not number:
            return "void"
        kind = self._at(number)
        if kind.kind == _PTR:
            target = self._text(kind.target)
            return f"{target}*" if target.endswith("*") else f"{target} *"
        if kind.kind == _ARRAY_KIND:
            return f"{self._text(kind.target)} [{kind.size}]"
        if kind.kind == _FUNC_PROTO:
            params = ", ".join(self._text(target) for _, target in kind.parts)
            return f"{self._text(kind.target)} ({params or 'void'})"
        return f"{_words(kind)}{kind.name or '(unnamed)'}"

    def _at(self, number: int) -> _Kind:
        if number >= self._first:
            return self._types[number - self._first]
        if self._base is None:
            raise BtfError(f"type {number}: not in this BTF, which has no base")
        return self._base._at(number)

    def _string(self, at: int) -> str:
        if at < self._first_string:
            return self._base._string(at) if self._base else ""
        at -= self._first_string
        return self._strings[at : self._strings.index(b"\0", at)].decode()

    def _read(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            name, info, last = _TYPE.unpack_from(data, at)
            at += _TYPE.size
            kind, length = info >> 24 & 0x1F, info & 0xFFFF
            target, size, parts = last, last, []
            if kind in (_STRUCT, _UNION, _FUNC_PROTO):
                part = _PARAM if kind == _FUNC_PROTO else _MEMBER
                for _ in range(length):
                    label, of = part.unpack_from(data, at)[:2]
                    parts.append((self._string(label), of))
                    at += part.size
            elif kind == _ARRAY_KIND:
                target, _, size = _ARRAY.unpack_from(data, at)
                at += _ARRAY.size
            elif not _INT <= kind <= _ENUM64:
                raise BtfError(f"kind {kind}: unknown; expected {_INT} to {_ENUM64}")
            else:
                at += _FOLLOWED_BY.get(kind, 0) + length * _ITEMS_OF.get(kind, 0)
            self._types.append(_Kind(kind, self._string(name), target, size, parts))


def _words(kind: _Kind) -> str:
    words = {_STRUCT: "struct ", _UNION: "union ", _ENUM: "enum ", _ENUM64: "enum "}
    # A forward declaration is a struct whose body is elsewhere; nearly never a union.
    return "struct " if kind.kind == _FWD else words.get(kind.kind, "")


def read_kernel(path: Path) -> Btf:
    """BTF of a kernel: vmlinux, or a compressed x86 image of it. Raises BtfError, OSError."""
    data = path.read_bytes()
    if not data.startswith(b"\x7fELF"):
        data = _unpack(_payload(data, path), path)
    return Btf(_needed(data, ".BTF", path), str(path))


def read_module(path: Path, kernel: Btf) -> Btf:
    """BTF of a module (.ko, .ko.xz, .ko.zst, .ko.gz) of that kernel. Raises BtfError, OSError.

    A module built outside the tree carries the part of the kernel's types it needs itself.
    """
    data = _unpack(path.read_bytes(), path)
    own = _section(data, ".BTF.base", path)
    base = kernel if own is None else Btf(own, f"{path} .BTF.base")
    return Btf(_needed(data, ".BTF", path), str(path), base)


def _payload(image: bytes, path: Path) -> bytes:
    if len(image) < _SETUP_PAYLOAD + 8 or image[0x202:0x206] != b"HdrS":
        raise BtfError(f"{path}: expected an ELF file or a bzImage, found neither")
    setup = (image[_SETUP_SECTIONS] or 4) + 1
    offset, length = struct.unpack_from("<II", image, _SETUP_PAYLOAD)
    start = setup * 512 + offset
    return image[start : start + length]


def _unpack(data: bytes, path: Path) -> bytes:
    if data.startswith(b"\x7fELF"):
        return data
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(data)
    if data.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=io.BytesIO(data)).read()
    tools = {b"\x28\xb5\x2f\xfd": "zstd", b"\x02\x21\x4c\x18": "lz4", b"BZh": "bzip2"}
    for magic, tool in tools.items():
        if data.startswith(magic):
            # What follows the compressed data (the image appends its length) is not its own.
            done = subprocess.run([tool, "-dc"], input=data, capture_output=True, check=False)
            if done.stdout:
                return done.stdout
            raise BtfError(f"{path}: {tool} cannot unpack it: {done.stderr.decode().strip()}")
    raise BtfError(f"{path}: packed in a way unknown here; it begins with {data[:6].hex()}")


def _needed(data: bytes, name: str, path: Path) -> bytes:
    found = _section(data, name, path)
    if found is None:
        raise BtfError(f"{path}: has no section {name}; expected a build with type information")
    return found


def _section(data: bytes, name: str, path: Path) -> bytes | None:
    try:
        section = ELFFile(io.BytesIO(data)).get_section_by_name(name)
    except ELFError as error:
        raise BtfError(f"{path}: not an ELF file: {error}") from error
    return None if section is None else bytes(section.data())
