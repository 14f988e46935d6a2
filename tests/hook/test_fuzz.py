# SPDX-License-Identifier: Apache-2.0
"""Hostile files and variables under libFuzzer, with address and undefined-behaviour sanitizers.

And hostile objects for the checks, by hypothesis. A minute for each target;
``RINGFENCE_FUZZ_SECONDS=3600`` gives each an hour.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit_hook.slice import GpuShare, SliceFile, format_slice

if TYPE_CHECKING:
    from collections.abc import Iterator

Runs = tuple[Path, dict[str, subprocess.Popen[str]]]
"""Where the logs are, and the targets that run."""

_FUZZ = Path(__file__).resolve().parent / "fuzz"
_TREE = _FUZZ.parents[2]
_HOOK = _TREE / "audit_hook"
_SECONDS = int(os.environ.get("RINGFENCE_FUZZ_SECONDS", "60"))
_FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
)
_SLICE = ("slice/slice.c", "audit/tool_path.c", "tool/cumask.c")
_LEDGER = ("tool/process.c", "tool/log.c")
_MIB = 1 << 20
_LEAST = {"slice": 100, "ledger": 100, "elf": 2}
"""Runs a second, of thousands and for elf a hundred on a machine that does nothing else."""


def build(directory: Path, target: str, sources: tuple[str, ...], *flags: str) -> Path:
    """Compile a target of tests/hook/fuzz together with these files of the hook."""
    out = directory / target
    subprocess.run(
        ["clang", *_FLAGS, *flags, _FUZZ / f"{target}.c", *(_HOOK / name for name in sources),
         "-o", out],
        check=True,
    )  # fmt: skip
    return out


def start(target: Path, seeds: list[bytes], *flags: str) -> subprocess.Popen[str]:
    """Start a target of libFuzzer on a corpus of its own."""
    corpus = target.parent / f"{target.name}-corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = (f"-max_total_time={_SECONDS}", "-print_final_stats=1")
    findings = f"-artifact_prefix={target.parent}/{target.name}-"
    return start_logged(target.parent, target.name, target, *limits, findings, *flags, corpus)


def start_logged(directory: Path, name: str, *command: str | Path) -> subprocess.Popen[str]:
    with (directory / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            ["nice", "-n", "10", *command], cwd=_TREE, stdout=log, stderr=log, text=True
        )


def start_slice(directory: Path) -> subprocess.Popen[str]:
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
    target = build(directory, "slice", _SLICE)
    # Above the size of any slice file, so that the bound itself is passed.
    return start(
        target, [*map(str.encode, seeds)], "-max_len=40000", f"-dict={_FUZZ / 'slice.dict'}"
    )


def charge(gpu: int, book: int, size: int, limit: int) -> bytes:
    """An operation of the ledger target: a charge."""
    return struct.pack("<BBBQQ", 5, gpu, book, size, limit)


def start_ledger(directory: Path) -> subprocess.Popen[str]:
    write = struct.pack("<BIQ", 0, 1 | 64 << 2, 7 << 32 | 1)
    give_back = struct.pack("<BBBQ", 2, 0, 0, _MIB)
    seeds = [
        charge(0, 0, _MIB, 4 * _MIB) + charge(0, 1, 8 * _MIB, 4 * _MIB) + give_back + b"\3\0\4",
        write + charge(1, 0, _MIB, 2 * _MIB) + write + charge(1, 1, 3 * _MIB, 4 * _MIB),
    ]
    ledger = directory / "directory"
    ledger.mkdir()
    target = build(directory, "ledger", _LEDGER, f'-DLEDGER_DIRECTORY="{ledger}"')
    return start(target, seeds, "-max_len=400")


def start_elf(directory: Path) -> subprocess.Popen[str]:
    source = directory / "small.c"
    source.write_text("int getpid(void); int small(void) { return getpid(); }")
    out = directory / "libsmall.so"
    subprocess.run(["cc", "-fPIC", "-shared", source, "-o", out], check=True)
    program = (sys.executable, "-m", "tests.hook.fuzz.elf")
    return start_logged(directory, "elf", *program, out, str(_SECONDS))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All targets, side by side."""
    if shutil.which("clang") is None:
        pytest.skip("needs the packages clang and libclang-rt-dev")
    directory = tmp_path_factory.mktemp("fuzz")
    starts = {"slice": start_slice, "ledger": start_ledger, "elf": start_elf}
    started = {target: begin(directory) for target, begin in starts.items()}
    try:
        yield directory, started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


@pytest.mark.timeout(_SECONDS + 240)
@pytest.mark.parametrize("target", ["slice", "ledger", "elf"])
def test_nothing_from_outside_breaks_the_hook_or_is_granted_above_the_limit(
    runs: Runs, target: str
) -> None:
    directory, started = runs
    code = started[target].wait(_SECONDS + 180)
    said = (directory / f"{target}.log").read_text(errors="replace")
    # A finding is what the sanitizer says of it.
    assert code == 0, said[-4000:]
    # A run that tried nothing would find nothing.
    executed = int(said.split("stat::number_of_executed_units:")[1].split()[0])
    assert executed > _LEAST[target] * _SECONDS
