# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import lzma
import struct
from typing import TYPE_CHECKING

import pytest

from tests.testbed.btf import Btf, BtfError, read_kernel, read_module

if TYPE_CHECKING:
    from pathlib import Path

INT, PTR, ARRAY, STRUCT, _, _, FWD, TYPEDEF = range(1, 9)
CONST, FUNC, PROTO = 10, 12, 13


class Writer:
    """Puts BTF together; type numbers and string offsets may continue a base's."""

    def __init__(self, first: int = 1, strings: bytes = b"\0", offset: int = 0) -> None:
        self._types: list[bytes] = []
        self._strings, self._offset, self._first = strings, offset, first

    def _name(self, name: str) -> int:
        if not name:
            return 0
        self._strings += name.encode() + b"\0"
        return self._offset + len(self._strings) - len(name) - 1

    def add(self, kind: int, name: str = "", last: int = 0, tail: bytes = b"", n: int = 0) -> int:
        self._types.append(struct.pack("<III", self._name(name), kind << 24 | n, last) + tail)
        return self._first + len(self._types) - 1

    def number(self, name: str) -> int:
        return self.add(INT, name, 4, struct.pack("<I", 32))

    def struct(self, name: str, **members: int) -> int:
        tail = [struct.pack("<III", self._name(key), of, 0) for key, of in members.items()]
        return self.add(STRUCT, name, 8, b"".join(tail), len(tail))

    def unnamed(self, name: str, inner: int) -> int:
        return self.add(STRUCT, name, 8, struct.pack("<III", 0, inner, 0), 1)

    def function(self, name: str, returns: int, *params: int) -> None:
        tail = b"".join(struct.pack("<II", 0, of) for of in params)
        self.add(FUNC, name, self.add(PROTO, "", returns, tail, len(params)))

    def done(self) -> bytes:
        types = b"".join(self._types)
        header = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._strings)
        )
        return header + types + self._strings


def elf(**sections: bytes) -> bytes:
    """A file with these sections (names without their dot, `_` for a further one)."""
    named = [("", b""), *((f".{key.replace('_', '.')}", data) for key, data in sections.items())]
    names = b"".join(name.encode() + b"\0" for name, _ in named) + b".shstrtab\0"
    body, table, at, name_at = b"", b"", 64, 0
    for index, (name, data) in enumerate([*named, (".shstrtab", names)]):
        kind = 0 if not index else 3 if name == ".shstrtab" else 1
        table += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, at, len(data), 0, 0, 1, 0)
        body, at, name_at = body + data, at + len(data), name_at + len(name) + 1
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = len(named) + 1
    head += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, count, count - 1)
    return head + body + table


def sample() -> bytes:
    w = Writer()
    number = w.number("int")
    alias = w.add(TYPEDEF, "s32", number)
    bo = w.struct("bo", size=alias, places=w.add(ARRAY, "", 0, struct.pack("<III", number, 1, 3)))
    pointer = w.add(PTR, "", w.add(CONST, "", bo))
    w.unnamed("outer", bo)
    w.function("create", number, pointer, w.add(PTR, "", pointer), alias)
    w.function("drop", 0)
    w.function("later", 0, w.add(PTR, "", w.add(FWD, "file")))
    return w.done()


def test_a_prototype_is_c_text_without_typedefs_and_qualifiers() -> None:
    btf = Btf(sample(), "sample")
    assert btf.prototype("create") == "int (struct bo *, struct bo **, int)"
    assert btf.prototype("drop") == "void (void)"
    assert btf.prototype("later") == "void (struct file *)"
    assert btf.prototype("absent") is None


def test_members_of_unnamed_parts_belong_to_the_struct() -> None:
    btf = Btf(sample(), "sample")
    assert btf.members("outer") == btf.members("bo") == {"size": "int", "places": "int [3]"}
    assert btf.members("absent") is None


def test_a_module_builds_on_its_kernel_s_types(tmp_path: Path) -> None:
    kernel = Writer()
    number = kernel.number("int")
    kernel.struct("mm", users=number)
    base = kernel.done()
    (tmp_path / "vmlinux").write_bytes(elf(BTF=base))
    parsed = read_kernel(tmp_path / "vmlinux")
    module = Writer(first=parsed.count, strings=b"", offset=parsed.string_size)
    module.function("probe", number, module.add(PTR, "", number + 1))
    (tmp_path / "m.ko.xz").write_bytes(lzma.compress(elf(BTF=module.done())))
    btf = read_module(tmp_path / "m.ko.xz", parsed)
    assert btf.prototype("probe") == "int (struct mm *)"
    assert btf.members("mm") == {"users": "int"}


def test_a_module_s_own_base_comes_before_the_kernel_s(tmp_path: Path) -> None:
    own = Writer()
    number = own.number("long")
    own_btf = Btf(own.done(), "own")
    module = Writer(first=own_btf.count, strings=b"", offset=own_btf.string_size)
    module.function("probe", number)
    (tmp_path / "m.ko").write_bytes(elf(BTF=module.done(), BTF_base=own.done()))
    btf = read_module(tmp_path / "m.ko", Btf(sample(), "kernel"))
    assert btf.prototype("probe") == "long (void)"


@pytest.mark.parametrize("data", [b"", b"\x9f\xeb", b"no BTF at all, but long enough for it"])
def test_what_is_not_btf_is_named(data: bytes) -> None:
    with pytest.raises(BtfError, match="sample"):
        Btf(data, "sample")


def test_btf_cut_short_is_named() -> None:
    data = bytearray(sample())
    size = struct.unpack_from("<I", data, 12)[0]
    struct.pack_into("<I", data, 12, size - 5)
    with pytest.raises(BtfError, match="middle of a type"):
        Btf(bytes(data), "sample")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "bzImage"),
        (b"MZ" + bytes(2000), "bzImage"),
        (elf(text=b"x"), "no section .BTF"),
        (b"\x7fELF", "not an ELF file"),
    ],
)
def test_a_kernel_without_types_is_named(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "vmlinuz").write_bytes(data)
    with pytest.raises(BtfError, match=expected) as error:
        read_kernel(tmp_path / "vmlinuz")
    assert "vmlinuz" in str(error.value)


def test_an_image_is_unpacked(tmp_path: Path) -> None:
    payload = lzma.compress(elf(BTF=sample()))
    image = bytearray(1024)
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 0, len(payload))
    (tmp_path / "vmlinuz").write_bytes(bytes(image) + payload + b"\1\2\3\4")
    assert read_kernel(tmp_path / "vmlinuz").prototype("drop") == "void (void)"


def test_an_unknown_packing_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.ko.new").write_bytes(b"\1\2\3\4\5\6\7\10")
    with pytest.raises(BtfError, match="packed in a way unknown"):
        read_module(tmp_path / "m.ko.new", Btf(sample(), "kernel"))
