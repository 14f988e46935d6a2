# SPDX-License-Identifier: Apache-2.0
"""The running kernel's own description of its types and functions (BTF), modules included."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

from bpf.libbpf import BpfError

if TYPE_CHECKING:
    from typing import Self

    from bpf.libbpf import Libbpf

MODULES: Final = ("amdgpu", "ttm", "drm")
"""Where the driver's functions and types live, besides the kernel proper."""

_KIND_STRUCT: Final = 4
_KIND_UNION: Final = 5
_KIND_FUNC: Final = 12


class _Type(ctypes.Structure):
    """``struct btf_type`` (include/uapi/linux/btf.h)."""

    _fields_ = (("name", ctypes.c_uint32), ("info", ctypes.c_uint32), ("size", ctypes.c_uint32))


class _Member(ctypes.Structure):
    """``struct btf_member``, which follow their structure."""

    _fields_ = (("name", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32))


class KernelTypes:
    """BTF of the kernel and of those modules that are loaded and have any."""

    def __init__(self, library: Libbpf, modules: tuple[str, ...] = MODULES) -> None:
        self._lib = library.lib
        with library.listening():
            base = self._lib.btf__load_vmlinux_btf()
            if not base:
                raise library.failure(
                    "/sys/kernel/btf/vmlinux: no type information; expected a kernel built with "
                    "CONFIG_DEBUG_INFO_BTF",
                    ctypes.get_errno(),
                )
            loaded = [self._lib.btf__load_module_btf(name.encode(), base) for name in modules]
        self._all: list[int] = [base, *(btf for btf in loaded if btf)]
        self._modules = modules

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for btf in reversed(self._all):  # modules refer to the base
            self._lib.btf__free(btf)
        self._all = []

    def has_function(self, name: str) -> bool:
        """Whether programs can attach to it by fentry, fexit or fmod_ret."""
        return any(self._find(btf, name, _KIND_FUNC) for btf in self._all)

    def offset(self, structure: str, member: str) -> int:
        """Bytes from the start of a structure to a member, anonymous parts looked through.

        Raises BpfError if no structure of that name has it.
        """
        for btf in self._all:
            number = self._find(btf, structure, _KIND_STRUCT)
            found = self._bits(btf, number, member) if number else None
            if found is not None:
                return found // 8
        raise BpfError(
            f"struct {structure}.{member}: not in the type information (BTF) of the kernel, "
            f"{', '.join(self._modules)}"
        )

    def _find(self, btf: int, name: str, kind: int) -> int:
        return max(0, int(self._lib.btf__find_by_name_kind(btf, name.encode(), kind)))

    def _bits(self, btf: int, number: int, wanted: str) -> int | None:
        address = self._lib.btf__type_by_id(btf, number)
        info = _Type.from_address(address).info
        if info >> 24 & 0x1F not in (_KIND_STRUCT, _KIND_UNION):
            return None
        members = (_Member * (info & 0xFFFF)).from_address(address + ctypes.sizeof(_Type))
        for member in members:
            # With bit fields in the structure the upper byte is a width (kind_flag).
            offset: int = member.offset & 0xFFFFFF if info >> 31 else member.offset
            name = self._lib.btf__name_by_offset(btf, member.name).decode()
            if name == wanted:
                return offset
            inner = None if name else self._bits(btf, member.type, wanted)
            if inner is not None:
                return offset + inner
        return None
