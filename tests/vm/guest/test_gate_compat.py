# SPDX-License-Identifier: Apache-2.0
"""The programs that are asked about 32-bit calls: without them nobody is."""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from bpf import call32, loader
from bpf.libbpf import BpfError, Libbpf
from enforcer.model import MIB
from tests.vm.guest.caller import PRIME_FD_TO_HANDLE
from tests.vm.guest.gatenode import OBJECTS, PINS, Node, settled

if TYPE_CHECKING:
    from pathlib import Path


GATE = OBJECTS / "gate.bpf.o"


def test_this_kernel_takes_such_calls() -> None:
    descriptor = os.open(os.devnull, os.O_RDWR)
    try:
        assert call32.ioctl_errno(descriptor, 0, 0) not in (0, None)
    finally:
        os.close(descriptor)


def test_a_gate_that_cannot_be_attached_there_is_none(
    gate: loader.Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Libbpf.attach_pinned

    def attach_all_but_one(self: Libbpf, program: int, name: str, path: Path) -> None:
        if name == "file_ioctl_compat":
            raise BpfError("no room for it")
        attach(self, program, name, path)

    monkeypatch.setattr(Libbpf, "attach_pinned", attach_all_but_one)
    with pytest.raises(BpfError, match="no room for it"):
        loader.load_gate(GATE, PINS)
    assert gate.self_test()


def test_an_import_is_counted_once(node: Node) -> None:
    maker = node.caller(node.cgroup("one", MIB))
    taker = node.caller(node.cgroup("other", MIB))
    buffer = maker.do("prime_export", node.render, maker.do("gem_create", node.render, 4096))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(taker.do, "take", "compat")
        maker.do("give", "compat", buffer)
        theirs = taken.result(30)
    before = node.counted("imported")
    taker.do("call32", node.render, PRIME_FD_TO_HANDLE, struct.pack("=IIi", 0, 0, theirs))
    assert node.counted("imported") == before + 1


def test_a_gate_that_is_not_asked_about_them_is_not_proven(gate: loader.Gate) -> None:
    assert gate.self_test()
    # The last test of the module: it is taken away with the rest.
    for link in PINS.glob("*/gate_file_ioctl_compat*"):
        link.unlink()
    assert settled(lambda: not gate.self_test())
