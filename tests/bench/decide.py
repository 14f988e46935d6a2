# SPDX-License-Identifier: Apache-2.0
"""What the gate's decision and the ledger's entries cost on this machine's own processor.

The programs of ``decide.bpf.c`` contain both and loop over them. Not in the figures: the kernel's
way to the gate (a BPF trampoline at each of its hooks) and to the ledger; for those see the ratios
of ``gate.py``. Character files of the machine's memory driver (/dev/zero) stand for the GPU's.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bpf import decode, loader
from bpf.libbpf import BpfError, Libbpf
from tests.testbed.cache import Cache, Report, StepError, digest, digest_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed.cache import Step

_SOURCE: Final = Path(__file__).with_name("decide.bpf.c")
_BPF: Final = Path(loader.__file__).parent
_FLAGS: Final = ("-target", "bpf", "-mcpu=v3", "-O2", "-g", "-D__TARGET_ARCH_x86")
_SECTION: Final = "raw_tp/"
_ROUNDS: Final = 20_000
_RUNS: Final = 15
_MEMORY_MAJOR: Final = 1
_GPU: Final = 0x300
_KFD_ID: Final = 7
_KFD_ALLOC: Final = 0xC0284B16
_FOREIGN: Final = 0x5401
_TIMING: Final = struct.Struct("<QQ")
_ARGUMENTS: Final = struct.Struct("<QQQQII")
"""struct kfd_ioctl_alloc_memory_of_gpu_args: va, size, handle, mmap offset, gpu id, flags."""


def prepare(cache: Cache, report: Report) -> Path:
    """The object, built if a source changed. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        headers = f"/usr/include/{os.uname().machine}-linux-gnu"
        includes = ["-I", _BPF / "include", "-idirafter", headers]
        step.run(["clang", *_FLAGS, *includes, "-c", _SOURCE, "-o", into / "decide.bpf.o"])

    sources = [_SOURCE, _BPF / "gate.bpf.c", *sorted((_BPF / "include").glob("*.h"))]
    key = digest(digest_files(sources, _BPF.parent), *_FLAGS)
    return cache.ensure("bench", "decide", key, report, make) / "decide.bpf.o"


class Bench:
    """The loaded programs, pinned by name next to their maps."""

    def __init__(self, library: Libbpf, folder: Path) -> None:
        self._library = library
        self._folder = folder

    def time(self, name: str, *words: int, refused: int = 0) -> float:
        """Nanoseconds a round, fastest run; every run must be refused as often as expected."""
        found = [self._run(name, words) for _ in range(_RUNS)]
        wrong = {times for _, times in found} - {refused}
        if wrong:
            raise BpfError(f"{name}: refused {wrong} times in {_ROUNDS}, expected {refused}")
        return min(took for took, _ in found) / _ROUNDS

    def _run(self, name: str, words: tuple[int, ...]) -> tuple[int, int]:
        result = self._library.run(self._folder / name, *words, *(0,) * (3 - len(words)), _ROUNDS)
        if result:
            raise BpfError(f"{name}: not run ({result})")
        fd = self._library.open_pinned(self._folder / "timing")
        try:
            value = self._library.lookup(fd, decode.U32.pack(0), _TIMING.size)
        finally:
            os.close(fd)
        took, times = _TIMING.unpack(value or b"")
        return took, times


@contextmanager
def loaded(built: Path) -> Iterator[Path]:
    """Everything loaded, on a file system of its own, and gone afterwards."""
    library = Libbpf()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "bpf", "bench", folder], check=True)
        opened = None
        try:
            opened = library.open_object(built, Path(folder))
            library.set_constant(opened, ".rodata.generation", decode.U32.pack(1))
            programs = list(library.programs(opened))
            for program, _, section in programs:
                if not section.startswith(_SECTION):
                    library.skip_program(program)
            library.load_object(opened, str(built))
            for program, name, section in programs:
                if section.startswith(_SECTION):
                    library.pin_program(program, Path(folder) / name)
            yield Path(folder)
        finally:
            if opened is not None:
                library.close_object(opened)
            subprocess.run(["umount", folder], check=True)


def measure(bench: Bench, maps: loader.Maps) -> dict[str, float]:
    """Name of what was done -> nanoseconds, the loop's own taken off."""
    for part in (loader._Part.GATE, loader._Part.LEDGER):
        maps._set_acting(part, 1, 1)
    maps.set_gpus({_KFD_ID: _GPU}, {})
    wanted = _ARGUMENTS.pack(0, 1 << 20, 0, 0, _KFD_ID, 1)
    arguments = ctypes.create_string_buffer(wanted, len(wanted))
    address = ctypes.addressof(arguments)
    found = {}
    with Path("/dev/zero").open("rb") as device, Path(__file__).open("rb") as plain:
        # The loop's own time, and the way to the file that the kernel hands to the gate.
        nothing = bench.time("time_nothing", device.fileno())
        found["another number"] = bench.time("time_decision", device.fileno(), _FOREIGN)
        call = ("time_decision", plain.fileno(), _KFD_ALLOC, address)
        found["our number, no device"] = bench.time(*call)
        call = ("time_decision", device.fileno(), _KFD_ALLOC, address)
        found["our number, another device"] = bench.time(*call)
        maps.set_builtin_majors(frozenset({_MEMORY_MAJOR}))
        found["VRAM, by no tenant"] = bench.time(*call)
        with own_cgroup() as (pod, container):
            maps.set_limit(pod, _GPU, 1 << 30)
            maps.set_limit(container, _GPU, 1 << 30)
            found["VRAM, admitted and given back"] = bench.time("time_reservation", *call[1:])
            found["a buffer made and freed"] = bench.time("time_entries", _GPU, 1 << 20)
            maps.set_limit(container, _GPU, 1)
            found["VRAM, refused"] = bench.time(*call, refused=_ROUNDS)
    return {name: took - nothing for name, took in found.items()}


@contextmanager
def own_cgroup() -> Iterator[tuple[int, int]]:
    """This process in a cgroup two levels down, as a container's; their numbers."""
    root = _unified()
    before = root / _placed().lstrip("/")
    pod = root / "ringfence-bench"
    container = pod / "container"
    container.mkdir(parents=True)
    try:
        (container / "cgroup.procs").write_text(str(os.getpid()))
        yield pod.stat().st_ino, container.stat().st_ino
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        container.rmdir()
        pod.rmdir()


def _placed() -> str:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next(line for line in lines if line.startswith("0::")).removeprefix("0::")


def _unified() -> Path:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(path)
    raise StepError("no cgroup v2 hierarchy is mounted")


def main() -> int:
    """Print a table."""
    try:
        built = prepare(Cache.from_environment(os.environ), Report())
        with loaded(built) as folder, loader.open_maps(folder) as maps:
            found = measure(Bench(Libbpf(), folder), maps)
    except (StepError, BpfError, OSError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"{os.uname().release}, this machine's own kernel and processor")
    for name, took in found.items():
        print(f"{name:32}{took:8.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
