# SPDX-License-Identifier: Apache-2.0
"""`tests/testbed/run`: one command on a virtual node."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import kernels, stock, vm
from tests.testbed.cache import Cache, StepError
from tests.testbed.stopping import stop_by_exception

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_TIMEOUT = 124
"""As timeout(1)."""
EXIT_NODE_FAILED = 125
"""The node, not the command: as a container runtime reports its own failures."""

_KEPT_LOGS = 20


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. Exits with status 2 and one line if it cannot be understood."""
    parser = argparse.ArgumentParser(
        prog="tests/testbed/run",
        description="Run COMMAND as root on a virtual node with simulated AMD GPUs.",
        epilog=f"Exit status: the command's; {EXIT_TIMEOUT} at the deadline; {EXIT_NODE_FAILED} "
        "when the node could not be prepared, did not boot or panicked; 128+N: killed by signal N.",
    )
    parser.add_argument("--kernel", choices=kernels.LINES, default="dmem")
    parser.add_argument("--stock", choices=stock.NAMES, help="a distribution's own kernel instead")
    parser.add_argument("--gpus", type=_count, default=2, metavar="N")
    parser.add_argument("--vram", type=_count, metavar="GIB", help="of each GPU")
    parser.add_argument("--gfx", metavar="NAME", help="what each GPU claims to be, such as gfx942")
    parser.add_argument(
        "--driver-option",
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=VALUE",
        help="further parameter of the simulated driver",
    )
    parser.add_argument(
        "--no-module-btf", action="store_true", help="driver without type information"
    )
    parser.add_argument("--no-driver", action="store_true")
    parser.add_argument("--lsm", metavar="LIST", help="the active security modules, may be empty")
    parser.add_argument("--numa", action="store_true", help="two NUMA nodes, GPUs on both")
    parser.add_argument("--memory", type=_count, default=2048, metavar="MIB")
    parser.add_argument("--timeout", type=_seconds, default=300.0, metavar="S")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=VALUE",
        help="for the command",
    )
    parser.add_argument("--no-python-image", action="store_true", help="Python over 9p (slow)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep the kernel's log there")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")
    options = parser.parse_args(argv)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("expected a command after --, found none")
    return options


def main(argv: Sequence[str]) -> int:
    """Run it; the exit status is the result."""
    options = parse(argv)
    stop_by_exception()
    cache = Cache.from_environment(os.environ)
    out = os.environ.get("RINGFENCE_OUT")
    log: Path | None = None
    try:
        log = options.log or _new_log(cache)
        result = vm.run_vm(
            options.command,
            _node_options(options),
            timeout_s=options.timeout,
            cwd=Path.cwd(),
            env=dict(options.env),
            out=Path(out).absolute() if out else None,
            stdout=lambda data: _write(1, data),
            stderr=lambda data: _write(2, data),
            log=log,
            cache=cache,
        )
    except vm.VmError as error:
        print(f"{error}\nits whole log is in {log}", file=sys.stderr)
        return EXIT_TIMEOUT if isinstance(error, vm.VmTimeoutError) else EXIT_NODE_FAILED
    except (StepError, ValueError, OSError) as error:
        print(f"tests/testbed/run: {error}", file=sys.stderr)
        return EXIT_NODE_FAILED
    return result.returncode


def _node_options(options: argparse.Namespace) -> vm.NodeOptions:
    return vm.NodeOptions(
        kernel=options.kernel,
        stock=options.stock,
        gpus=options.gpus,
        vram_gib=options.vram,
        gfx=options.gfx,
        driver=not options.no_driver,
        module_btf=not options.no_module_btf,
        driver_options=dict(options.driver_option),
        lsm=options.lsm,
        numa=options.numa,
        memory_mib=options.memory,
        python_image=not options.no_python_image,
    )


def _write(descriptor: int, data: bytes) -> None:
    """All of it: write() to a pipe may take a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return value


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


def _new_log(cache: Cache) -> Path:
    """A fresh file for the kernel's log; the newest few are kept."""
    directory = cache.root / "logs" / "vm"
    directory.mkdir(parents=True, exist_ok=True)
    for old in sorted(directory.glob("*.log"), key=lambda path: path.stat().st_mtime)[:-_KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return directory / f"{os.getpid()}.log"
