# SPDX-License-Identifier: Apache-2.0
"""``ringfence trace``: the live debugging programs, each with its own options."""

from __future__ import annotations

import argparse
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import bpf.tools

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str]) -> int:
    """Run one program with the arguments after its name; its exit status."""
    names = programs()
    parser = argparse.ArgumentParser(prog="ringfence trace", description=__doc__)
    parser.add_argument("program", choices=names, metavar="PROGRAM", help=", ".join(names))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(argv)
    run: Callable[[Sequence[str]], int] = import_module(f"bpf.tools.{options.program}").main
    return run(options.arguments)


def programs() -> list[str]:
    """The programs there are: modules of ``bpf.tools`` named after what they watch."""
    return sorted(
        module.name
        for module in iter_modules(bpf.tools.__path__)
        if module.name.endswith(("snoop", "hist"))
    )
