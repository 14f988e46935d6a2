# SPDX-License-Identifier: Apache-2.0
"""The node reads a container's ledger without trusting it."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit_hook import ledger
from audit_hook.ledger import LEDGER_BYTES, MAGIC, LedgerError, parse_ledger, read_ledger

HOOK = Path(__file__).resolve().parents[3] / "audit_hook"
GPU = 0x300
KEY = GPU | 1 << 63
SLOTS_AT = 4096
COUNTS_AT = SLOTS_AT + 1024 * 64


def content(
    *entries: tuple[int, int, int], keys: tuple[int, ...] = (KEY,), high_water: int | None = None
) -> bytearray:
    """A ledger of processes (pid, pool bytes, driver bytes), on the first GPU."""
    raw = bytearray(LEDGER_BYTES)
    top = len(entries) if high_water is None else high_water
    struct.pack_into("<QIIIIQ", raw, 0, MAGIC, 1024, 64, top, 0, 7)
    struct.pack_into(f"<{len(keys)}Q", raw, 64, *keys)
    for slot, (pid, pool, driver) in enumerate(entries):
        struct.pack_into(
            "<QQQQ16s", raw, SLOTS_AT + slot * 64, 5 << 32 | pid, 99, 1, 3, b"py\x1bthon"
        )
        struct.pack_into("<QQ", raw, COUNTS_AT + slot * 16, pool, driver)
    return raw


def test_a_ledger_says_who_holds_what() -> None:
    found = parse_ledger(bytes(content((7, 100, 40), (8, 10, 50))))
    assert found.tampered == 7
    assert [process.pid for process in found.processes] == [7, 8]
    assert [process.held(GPU) for process in found.processes] == [100, 50]
    assert found.used(GPU) == 150
    assert found.used(0x400) == 0
    assert found.processes[0].command == "py?thon"
    assert found.processes[0].refusals == 3


def test_only_the_living_are_counted() -> None:
    found = parse_ledger(bytes(content((7, 100, 0), (8, 50, 0))), lambda slot: slot == 1)
    assert [process.alive for process in found.processes] == [False, True]
    assert found.used(GPU) == 50


def test_an_all_zero_file_is_an_empty_ledger() -> None:
    assert parse_ledger(bytes(LEDGER_BYTES)).processes == ()


def test_a_gpu_named_twice_counts_once() -> None:
    assert parse_ledger(bytes(content((7, 100, 0), keys=(KEY, KEY)))).used(GPU) == 100


def test_a_count_of_slots_that_lies_stays_within_the_file() -> None:
    found = parse_ledger(bytes(content((7, 100, 0), high_water=2**32 - 1)))
    assert [process.pid for process in found.processes] == [7]


@pytest.mark.parametrize("size", [0, 1, LEDGER_BYTES - 1, LEDGER_BYTES + 1])
def test_another_size_is_no_ledger(size: int) -> None:
    with pytest.raises(LedgerError, match=f"found {size}"):
        parse_ledger(bytes(content((7, 1, 1)).ljust(size, b"\0")[:size]))


@pytest.mark.parametrize("at", [0, 8, 12])
def test_another_version_is_no_ledger(at: int) -> None:
    raw = content((7, 1, 1))
    raw[at] ^= 0xFF
    with pytest.raises(LedgerError, match="expected"):
        parse_ledger(bytes(raw))


@given(st.lists(st.tuples(st.integers(0, LEDGER_BYTES - 1), st.binary(max_size=64)), max_size=8))
def test_no_bytes_break_the_reader(changes: list[tuple[int, bytes]]) -> None:
    raw = content((7, 100, 40), (8, 10, 50))
    for at, piece in changes:
        raw[at : at + len(piece)] = piece
    try:
        found = parse_ledger(bytes(raw[:LEDGER_BYTES]))
    except LedgerError:
        return
    assert found.used(GPU) >= 0


def test_no_ledger_yet_is_none(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) is None


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "huge"])
def test_what_is_not_a_ledger_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ledger.LEDGER_NAME
    if kind == "link":
        (tmp_path / "target").write_bytes(bytes(LEDGER_BYTES))
        path.symlink_to(tmp_path / "target")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(LedgerError, match=str(path)):
        read_ledger(tmp_path)


def test_a_lock_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    path = tmp_path / ledger.LEDGER_NAME
    path.write_bytes(content((7, 100, 0), (8, 50, 0)))
    with path.open("r+b") as holder:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, SLOTS_AT + 64, 1, 0)
        fcntl.fcntl(holder, 37, lock)
        found = read_ledger(tmp_path)
    assert found is not None
    assert [process.alive for process in found.processes] == [False, True]
    assert found.used(GPU) == 50


def test_the_layout_is_that_of_the_c_header(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "tool/ledger.h"\n'
        'int main(void) { printf("%zu %zu %zu %zu %zu %zu %zu %llu %d", '
        "sizeof(struct rf_ledger_file), offsetof(struct rf_ledger_file, slots), "
        "offsetof(struct rf_ledger_file, counts), sizeof(struct rf_ledger_slot), "
        "sizeof(struct rf_ledger_count), offsetof(struct rf_ledger_header, gpu_keys), "
        "offsetof(struct rf_ledger_slot, command), (unsigned long long)RF_LEDGER_MAGIC, "
        "RF_LEDGER_SLOTS); return 0; }\n"
    )
    program = tmp_path / "layout"
    subprocess.run(["cc", f"-I{HOOK}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    expected = [LEDGER_BYTES, SLOTS_AT, COUNTS_AT, 64, 16, 64, 32, MAGIC, ledger.SLOTS]
    assert [int(word) for word in printed.split()] == expected
