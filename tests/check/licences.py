# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first lines, and the right one.

C that is linked into the kernel (our BPF and the simulation driver) is GPL-2.0-only, because the
kernel gives its symbols and helpers to no other; everything else is Apache-2.0.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.check.tree import first_line, tracked

_TAG = re.compile(r"SPDX-License-Identifier: ([A-Za-z0-9.-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.-]+)*)")
_SUFFIXES = frozenset(
    ".c .cc .h .map .mk .proto .py .pyi .sh .toml .tpl .yaml .yml".split()  # noqa: SIM905
)
_NAMES = {"Makefile", "Kbuild", ".clang-format", ".editorconfig"}
_KERNEL = (Path("bpf"), Path("tests/testbed/driver"))
_LINES = 5


def needs_licence(root: Path, path: Path) -> bool:
    """Whether a file is source: by its name, or because it is a script."""
    if path.suffix in _SUFFIXES or path.name in _NAMES:
        return True
    return not path.suffix and first_line(root / path).startswith(b"#!")


def expected(path: Path) -> str:
    """The licence a source file must name."""
    kernel = path.name.endswith(".bpf.c") or (
        path.suffix in {".c", ".h"} and any(path.is_relative_to(top) for top in _KERNEL)
    )
    return "GPL-2.0-only" if kernel else "Apache-2.0"


def problem(root: Path, path: Path) -> str | None:
    """What is wrong with the licence line of one source file; None: nothing."""
    with (root / path).open(encoding="utf-8") as file:
        head = "".join(line for line, _ in zip(file, range(_LINES), strict=False))
    match = _TAG.search(head)
    if match is None:
        return (
            f"{path}: no SPDX-License-Identifier in the first {_LINES} lines; "
            f"expected {expected(path)}"
        )
    # A driver's Kbuild belongs to the kernel's side as much as its C does.
    if match[1] != expected(path) and not (
        match[1] == "GPL-2.0-only" and any(path.is_relative_to(top) for top in _KERNEL[1:])
    ):
        return f"{path}: licence is {match[1]}; expected {expected(path)}"
    return None


def main() -> int:
    root = Path.cwd()
    found = [problem(root, path) for path in tracked(root) if needs_licence(root, path)]
    problems = [line for line in found if line is not None]
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems or not found else 0


if __name__ == "__main__":
    sys.exit(main())
