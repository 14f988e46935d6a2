# SPDX-License-Identifier: Apache-2.0
"""VRAM that no HSA call stands for: ioctls of ROCm's own libraries, counted by the auditor."""

from __future__ import annotations

import pytest

from audit_hook.ledger import read_ledger
from enforcer.model import pci_key

from .build import rocr_is_5
from .container import GPU, MIB, PROGRAMS, THUNK, Container

ENOMEM = 12
KERNEL = {"LD_PRELOAD": str(THUNK / "libkernel.so"), "THUNK_IOCTL": "1"}


def own_mib() -> int:
    """What this machine's ROCr takes from the card for itself, by the calls that are counted."""
    return 2 if rocr_is_5() else 0


def test_memory_inside_rocr_is_within_the_slice(container: Container) -> None:
    container.give_mib(2048)
    process = container.start(
        PROGRAMS / "hip", "malloc=100", "say=up", "wait", env=KERNEL, stdin=-1
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    ledger = read_ledger(container.ledger)
    process.communicate("\n", timeout=30)
    assert ledger is not None
    (entry,) = ledger.processes
    key = pci_key(GPU)
    # ROCr's own block is in the driver's book only.
    assert entry.driver_bytes[key] >= (100 + own_mib()) * MIB
    assert 100 * MIB <= entry.pool_bytes[key] <= entry.driver_bytes[key]
    assert (entry.pool_bytes[key] < entry.driver_bytes[key]) == (own_mib() > 0)
    assert entry.held(key) == entry.driver_bytes[key]


def test_the_driver_call_is_refused_where_the_pool_call_was_not(container: Container) -> None:
    container.give_mib(2048)
    # 2047 MiB fit the slice by themselves, but not beside what ROCr took for itself.
    result = container.hip("malloc=2047", "free", "malloc=2040", env=KERNEL)
    expected = ["malloc 2", "free 0", "malloc 0"]
    assert result.lines == (expected if own_mib() else ["malloc 0", *expected[1:]])


def test_freeing_gives_back_in_both_books(container: Container) -> None:
    container.give_mib(2048)
    orders = ["malloc=1500", "free"] * 20
    result = container.hip(*orders, "malloc=1500", "malloc=1000", env=KERNEL)
    assert result.lines == [*["malloc 0", "free 0"] * 20, "malloc 0", "malloc 2"]


@pytest.mark.parametrize("refuses", ["hook", "kernel"])
def test_a_program_without_rocr_is_held_at_its_buffers(container: Container, refuses: str) -> None:
    node = graphics(container, refuses)
    orders = ["create=1500", "gtt=3000", "create=1000", "close", "create=400", "huge"]
    result = container.run("sh", "-c", f"{node} {' '.join(orders)}", env={"LD_PRELOAD": None})
    refused = ENOMEM if refuses == "hook" else 0
    expected = ["create 0", "gtt 0", f"create {refused}"]
    assert result.lines[:3] == expected
    if refuses == "hook":
        assert result.lines[3:] == ["close 0", "create 0", f"huge {ENOMEM}"]
        assert f"ringfence: GPU {GPU}: refused {1000 * MIB} bytes" in result.err


def graphics(container: Container, refuses: str) -> str:
    """A shell command that runs the graphics program on a render node of number 226:128."""
    container.give_mib(2048)
    text = container.slice_path.read_text()
    container.slice_path.write_text(text.replace("refuse hook", f"refuse {refuses}"))
    container.env.pop("HSA_TOOLS_LIB")
    kernel = THUNK / "libkernel.so"
    node = "/tmp/renderD128"
    return f"mknod {node} c 226 128 && LD_PRELOAD={kernel} {PROGRAMS / 'buffers'} {node}"
