# SPDX-License-Identifier: Apache-2.0
"""Hostile files and variables under libFuzzer, with address and undefined-behaviour sanitizers.

Half a minute for each target; ``RINGFENCE_FUZZ_SECONDS=3600`` gives each an hour.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from audit_hook.slice import GpuShare, SliceFile, format_slice

_FUZZ = Path(__file__).resolve().parent / "fuzz"
_HOOK = _FUZZ.parents[2] / "audit_hook"
_SECONDS = int(os.environ.get("RINGFENCE_FUZZ_SECONDS", "30"))
_FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
)
_SLICE = ("slice/slice.c", "audit/tool_path.c", "tool/cumask.c")
_LEDGER = ("tool/process.c", "tool/log.c")
_MIB = 1 << 20


def build(directory: Path, target: str, sources: tuple[str, ...], *flags: str) -> Path:
    """Compile a target of tests/hook/fuzz together with these files of the hook."""
    out = directory / target
    subprocess.run(
        ["clang", *_FLAGS, *flags, _FUZZ / f"{target}.c", *(_HOOK / name for name in sources),
         "-o", out],
        check=True,
    )  # fmt: skip
    return out


def fuzz(target: Path, seeds: list[bytes], *flags: str) -> None:
    """Run a target; a finding fails with what the sanitizer says of it."""
    corpus = target.parent / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    result = subprocess.run(
        ["nice", "-n", "10", target, f"-max_total_time={_SECONDS}", "-print_final_stats=1",
         f"-artifact_prefix={target.parent}/", *flags, corpus],
        capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS + 120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]
    # A run that tried nothing would find nothing.
    runs = int(result.stderr.split("stat::number_of_executed_units:")[1].split()[0])
    assert runs > 100 * _SECONDS


def needs_clang() -> None:
    if shutil.which("clang") is None:
        pytest.skip("needs the packages clang and libclang-rt-dev")


@pytest.mark.timeout(_SECONDS + 180)
def test_no_slice_or_variable_breaks_its_parser(tmp_path: Path) -> None:
    needs_clang()
    gpus = (
        GpuShare("0000:03:00.0", 4096 * _MIB, "0-15,32", kfd_id=51124, render=128, card=0),
        GpuShare("0000:83:00.0", None, "0-15,32"),
    )
    seeds = [
        format_slice(SliceFile(gpus, kernel_refuses=False, priority=0, oversubscribe=True)),
        format_slice(SliceFile(gpus[1:], kernel_refuses=True)),
        "0:0-15;1-3:0xff00ff,7",
        "4096m",
    ]
    target = build(tmp_path, "slice", _SLICE)
    # Above the size of any slice file, so that the bound itself is passed.
    fuzz(target, [*map(str.encode, seeds)], "-max_len=40000", f"-dict={_FUZZ / 'slice.dict'}")


def charge(gpu: int, book: int, size: int, limit: int) -> bytes:
    """An operation of the ledger target: a charge."""
    return struct.pack("<BBBQQ", 5, gpu, book, size, limit)


@pytest.mark.timeout(_SECONDS + 180)
def test_no_ledger_breaks_the_books_or_grants_above_the_limit(tmp_path: Path) -> None:
    needs_clang()
    write = struct.pack("<BIQ", 0, 1 | 64 << 2, 7 << 32 | 1)
    give_back = struct.pack("<BBBQ", 2, 0, 0, _MIB)
    seeds = [
        charge(0, 0, _MIB, 4 * _MIB) + charge(0, 1, 8 * _MIB, 4 * _MIB) + give_back + b"\3\0\4",
        write + charge(1, 0, _MIB, 2 * _MIB) + write + charge(1, 1, 3 * _MIB, 4 * _MIB),
    ]
    ledger = tmp_path / "directory"
    ledger.mkdir()
    target = build(tmp_path, "ledger", _LEDGER, f'-DLEDGER_DIRECTORY="{ledger}"')
    fuzz(target, seeds, "-max_len=400")
