# SPDX-License-Identifier: Apache-2.0
"""Every kind of memory HIP gives out, on two versions: answered as without the hook, and counted.

The stand-in thunk issues the driver's calls here, so that the auditor's book can be compared with
what the driver gave to the byte.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from audit_hook.ledger import read_ledger
from enforcer.model import pci_key

from .container import GPU, MIB, PROGRAMS, THUNK, Container

if TYPE_CHECKING:
    from collections.abc import Mapping

    from audit_hook.ledger import ProcessUse

KERNEL = {"LD_PRELOAD": str(THUNK / "libkernel.so"), "THUNK_IOCTL": "1"}
WITHOUT: dict[str, str | None] = {"LD_AUDIT": None, "HSA_TOOLS_LIB": None}
BOTH = ["container", "newer"]


@pytest.fixture(params=BOTH)
def either(request: pytest.FixtureRequest) -> Container:
    """A container of 2 GiB with HIP 5.2.3, and one with HIP 5.7.1."""
    made: Container = request.getfixturevalue(request.param)
    made.give_mib(2048)
    return made


def driver_bytes(container: Container) -> int:
    """Bytes of VRAM the driver has given out and not got back."""
    log = container.log.read_text() if container.log.exists() else ""
    used = re.findall(r"^(?:alloc|free) node=1 .*used=(\d+)$", log, re.M)
    return int(used[-1]) if used else 0


def after(
    container: Container, kinds: list[str], env: Mapping[str, str | None] = KERNEL
) -> tuple[list[str], ProcessUse, int]:
    """What a process printed for these kinds; while it lives, its entry and the driver's count."""
    process = container.start(PROGRAMS / "kinds", *kinds, "wait", env=env, stdin=-1)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().strip() for _ in kinds]
        ledger, given = read_ledger(container.ledger), driver_bytes(container)
    finally:
        process.communicate("\n", timeout=60)
    assert ledger is not None
    (entry,) = (one for one in ledger.processes if one.alive)
    return lines, entry, given


KINDS = [
    "malloc",
    "malloc free",
    "fine",
    "pitch",
    "3d",
    "array",
    "array free-array",
    "array-3d",
    "mipmap free-mipmap",
    "host",
    "host host-free",
    "managed",
    "async",
    "async free-async sync",
    "pool",
    "graph",
    "capture",
    "create",
    "create release",
    "create map retain release",
    "create map retain release unmap release-import",
    "create-shareable import",
    "create-shareable import release release-import",
]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_kind_is_answered_as_without_the_hook_and_counted(either: Container, kinds: str) -> None:
    check_kind(either, kinds)


def check_kind(container: Container, kinds: str) -> None:
    """What the made-up chip or this HIP cannot do must fail in the same way."""
    words = kinds.split()
    without = container.run(PROGRAMS / "kinds", *words, env={**KERNEL, **WITHOUT}).lines
    assert len(without) == len(words)
    container.log.unlink()
    lines, entry, given = after(container, words)
    assert lines == without
    assert entry.driver_bytes[pci_key(GPU)] == given == entry.held(pci_key(GPU))
    # Beside what came from its pools ROCr has a few blocks of its own.
    assert given - 16 * MIB <= entry.pool_bytes[pci_key(GPU)] <= given


def test_imported_memory_is_its_exporters(either: Container) -> None:
    either.give_mib(400)
    orders = ["malloc", "share", "wait"]
    exporter = either.start(PROGRAMS / "kinds", *orders, env=KERNEL, stdin=-1)
    assert exporter.stdout is not None
    assert [exporter.stdout.readline().split()[:2] for _ in orders[1:]] == [
        ["malloc", "0"], ["share", "0"]
    ]  # fmt: skip
    # Twice as much would not fit the slice.
    result = either.run(PROGRAMS / "kinds", "open", "close", "open", "malloc", env=KERNEL)
    exporter.communicate("\n", timeout=30)
    assert [line.split()[:2] for line in result.lines] == [
        ["open", "0"], ["close", "0"], ["open", "0"], ["malloc", "2"]
    ]  # fmt: skip
