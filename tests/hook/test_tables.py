# SPDX-License-Identifier: Apache-2.0
"""Tables of ROCr are used as far as their version and size say they reach, and no further."""

from __future__ import annotations

import pytest

from .container import HOOK, PROGRAMS, Container, Result

CORE = "core 5 6 7 9 28 33 34"
PREFIX = "amd 10 11 13 14"


def load(container: Container, core: tuple[int, int], amd: tuple[int, int]) -> Result:
    container.give_mib(1024)
    numbers = [str(number) for number in (*core, *amd)]
    tool = str(HOOK / "libringfence-hsa.so")
    env = {"LD_AUDIT": None, "HSA_TOOLS_LIB": None}
    return container.run(PROGRAMS / "tables", tool, *numbers, env=env)


@pytest.mark.parametrize(
    ("amd", "replaced"),
    [
        ((1, 400), f"{PREFIX} 17 35"),
        # ROCr 5.3 to 5.7 laid the rest out in more than one way.
        ((1, 424), PREFIX),
        ((1, 136), PREFIX),
        ((2, 560), f"{PREFIX} 19 37 57 58 65"),
        ((2, 592), f"{PREFIX} 19 37 57 58 65"),
        ((2, 1000), f"{PREFIX} 19 37 57 58 65"),
        ((2, 552), PREFIX),
    ],
)
def test_a_known_table_is_used_up_to_its_end(
    container: Container, amd: tuple[int, int], replaced: str
) -> None:
    result = load(container, (1, 1016), amd)
    assert result.lines == ["loaded 1", CORE, replaced]
    assert result.err == ""


@pytest.mark.parametrize(
    ("core", "amd"),
    [((3, 1016), (2, 560)), ((2, 1016), (3, 592)), ((2, 288), (2, 560)), ((2, 1016), (2, 128))],
)
def test_an_unknown_table_is_left_alone_and_reported(
    container: Container, core: tuple[int, int], amd: tuple[int, int]
) -> None:
    result = load(container, core, amd)
    assert result.lines == ["loaded 0", "core", "amd"]
    assert "of no version this library knows" in result.err


def test_the_library_adds_little_to_an_allocation(container: Container) -> None:
    container.give_mib(1024)
    tool = str(HOOK / "libringfence-hsa.so")
    env = {"LD_AUDIT": None, "HSA_TOOLS_LIB": None}
    added = float(container.run(PROGRAMS / "overhead", tool, env=env).out)
    # 35 ns on a quiet machine; a system call for each would be several times as much as this.
    assert 0 < added < 500
