# SPDX-License-Identifier: Apache-2.0
"""Against the running kernel's own type information."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bpf.btf import KernelTypes
from bpf.libbpf import BpfError, Libbpf

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/btf/vmlinux").exists(), reason="this kernel has no type information"
)


@pytest.fixture(scope="module")
def types() -> Iterator[KernelTypes]:
    with KernelTypes(Libbpf()) as opened:
        yield opened


def test_members_lie_where_the_abi_says(types: KernelTypes) -> None:
    assert types.offset("list_head", "next") == 0
    assert types.offset("list_head", "prev") == ctypes.sizeof(ctypes.c_void_p)


def test_members_of_anonymous_parts_are_found(types: KernelTypes) -> None:
    # struct page: the first word is flags, and `mapping` lies in an unnamed union's unnamed struct.
    assert types.offset("page", "mapping") > 0


@pytest.mark.parametrize(
    ("structure", "member"), [("list_head", "middle"), ("no_such_structure", "next")]
)
def test_what_is_not_there_is_named(types: KernelTypes, structure: str, member: str) -> None:
    with pytest.raises(BpfError, match=rf"^struct {structure}\.{member}: not in the type"):
        types.offset(structure, member)


def test_functions_are_told_from_other_names(types: KernelTypes) -> None:
    assert types.has_function("security_file_ioctl")
    assert not types.has_function("no_such_function")
    assert not types.has_function("list_head")


def test_modules_that_are_not_loaded_are_no_error() -> None:
    with KernelTypes(Libbpf(), modules=("no_such_module",)) as types:
        assert types.has_function("security_file_ioctl")
