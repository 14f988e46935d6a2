# SPDX-License-Identifier: Apache-2.0
"""BCC as our tools use it: one program compiled there and then, its events printed as they come."""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from bpf.btf import KernelTypes
from bpf.libbpf import BpfError, Libbpf
from bpf.tools.scope import Subject, printable, wanted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

_Event = TypeVar("_Event", bound=Subject)
_TREE: Final = Path(__file__).parent
"""Stands in for a kernel source tree: BCC looks for its ``include``."""


def import_bcc() -> Any:
    """BCC's module. Raises BpfError that names the package where it is missing."""
    try:
        import bcc  # noqa: PLC0415 74 MB that only these tools need
    except ImportError as error:
        raise BpfError(
            f"BCC's Python module is missing ({error}): install the package python3-bpfcc "
            "(Debian, Ubuntu), python3-bcc (Fedora, RHEL) or python-bcc (Arch), in a Python that "
            "sees the system's packages"
        ) from None
    return bcc


def compiled(
    bcc: Any, program: str, offsets: Iterable[tuple[str, str]] = (), flags: Sequence[str] = ()
) -> Any:
    """The program ``<program>.c`` beside this module, not attached yet.

    ``offsets`` are (structure, member) of the running kernel that it reads, given to it as macros
    named STRUCTURE_MEMBER. Raises BpfError.
    """
    macros = list(flags)
    wanted = tuple(offsets)
    if wanted:
        with KernelTypes(Libbpf()) as types:
            macros += [
                f"-D{structure.upper()}_{member.upper()}={types.offset(structure, member)}"
                for structure, member in wanted
            ]
    os.environ["BCC_KERNEL_SOURCE"] = str(_TREE)
    try:
        probe = bcc.BPF(
            src_file=str(_TREE / f"{program}.c"), cflags=[f"-I{_TREE / 'include'}", *macros]
        )
    except Exception as error:  # BCC raises the bare class
        raise BpfError(f"the probe cannot be built: {_line(error)}") from None
    # Where tracefs is not mounted BCC's own fails, although the probes end with the process.
    atexit.unregister(probe.cleanup)
    atexit.register(_end, probe)
    return probe


def placed(place: Callable[[], None]) -> None:
    """Run ``place``, which attaches; raises BpfError for whatever BCC raises."""
    try:
        place()
    except Exception as error:  # BCC raises the bare class
        raise BpfError(f"cannot place the probes: {_line(error)}") from None


def follow(
    probe: Any,
    options: argparse.Namespace,
    read: Callable[[int], _Event | None],
    line: Callable[[_Event, str], str],
    header: str,
    out: TextIO,
) -> None:
    """Print a line for each event of the ring ``events``, until the options end it.

    ``read`` is handed an event's address; what it returns None for is left out, as is what the
    filters do not let through. Says on standard error how many events there was no room for.
    """
    printed = 0

    def told(_context: object, data: int, _size: int) -> None:
        nonlocal printed
        if options.count is not None and printed >= options.count:
            return
        if (event := read(data)) is not None and wanted(event, options):
            print(printable(line(event, time.strftime("%H:%M:%S"))), file=out, flush=True)
            printed += 1

    probe["events"].open_ring_buffer(told)
    print(header, file=out, flush=True)
    end = None if options.duration is None else time.monotonic() + options.duration
    while (options.count is None or printed < options.count) and (
        end is None or time.monotonic() < end
    ):
        probe.ring_buffer_poll(100)
    probe.ring_buffer_consume()
    lost = sum(value.value for value in probe["lost"].values())
    if lost:
        print(f"{lost} events lost, more than could be printed", file=sys.stderr)


def run(name: str, trace: Callable[[], None]) -> int:
    """A tool's exit status: 0, or 1 with one line on standard error. Ctrl-C is an orderly end."""
    try:
        trace()
    except BpfError as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    return 0


def _end(probe: Any) -> None:
    with suppress(Exception):  # BCC raises the bare class
        probe.cleanup()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
