# SPDX-License-Identifier: Apache-2.0
"""Whoever is asked about a call after the gate can refuse it, and takes nothing from the tenant.

Here that is a BPF program at the gate's own hook: the kernel asks the one attached last first.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from enforcer.model import MIB
from tests.vm.guest.caller import GEM_CREATE
from tests.vm.guest.gatenode import fresh_node, loaded_parts
from tests.vm.guest.services import is_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu

_INSTRUCTION: Final = struct.Struct("=BBhi")
_REFUSE: Final = (
    (0x79, 0x12, 8, 0),  # r2 = the context's second word, the command
    (0xB7, 0x00, 0, 0),  # r0 = 0
    (0x56, 0x02, 1, ctypes.c_int32(GEM_CREATE).value),  # skip one unless r2 is it
    (0xB7, 0x00, 0, -13),  # r0 = -EACCES
    (0x95, 0x00, 0, 0),  # return r0
)


class _Options(ctypes.Structure):
    """``struct bpf_prog_load_opts``, as far as it is needed."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("attach_type", ctypes.c_int),
        ("btf_fd", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("interface", ctypes.c_uint32),
        ("kernel_version", ctypes.c_uint32),
        ("attach_to", ctypes.c_uint32),
        ("attach_program", ctypes.c_uint32),
        ("attach_btf", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


@contextmanager
def refusing_gem_create(section: str) -> Iterator[None]:
    """A program at ``section`` that answers EACCES to everybody's GEM_CREATE."""
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    kind, attach_type = ctypes.c_int(), ctypes.c_int()
    found = library.libbpf_prog_type_by_name(
        section.encode(), ctypes.byref(kind), ctypes.byref(attach_type)
    )
    assert found == 0
    function = section.partition("/")[2].encode()
    attach_to = library.libbpf_find_vmlinux_btf_id(function, attach_type)
    assert attach_to > 0, section
    options = _Options(
        size=ctypes.sizeof(_Options), attach_type=attach_type.value, attach_to=attach_to
    )
    code = b"".join(_INSTRUCTION.pack(*one) for one in _REFUSE)
    program = library.bpf_prog_load(
        kind, b"refuses", b"GPL", code, ctypes.c_size_t(len(_REFUSE)), ctypes.byref(options)
    )
    assert program >= 0, os.strerror(ctypes.get_errno())
    link = library.bpf_raw_tracepoint_open(None, program)
    assert link >= 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        os.close(link)
        os.close(program)


def test_what_the_next_one_refuses_is_given_back_at_once(gpus: list[Gpu]) -> None:
    section = "lsm/file_ioctl" if is_module() else "fmod_ret/security_file_ioctl"
    with refusing_gem_create(section), loaded_parts(), fresh_node(gpus) as node:
        box = node.cgroup("box", MIB)
        caller = node.caller(box)
        given_back = node.counted("given_back")
        assert caller.refused("gem_create", node.render, MIB) == "EACCES"
        row = node.usage(box)
        assert row.peak == MIB, "the gate was not asked first"
        assert (row.requested, row.reserved) == (0, 0)
        assert node.counted("given_back") == given_back + 1
