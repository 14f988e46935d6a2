# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, by what they are.

``python -m tests.check.tree c|shell`` prints them, NUL-separated, for ``xargs -0``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_SHELL = re.compile(rb"#!\s*/(usr/)?bin/(env\s+)?(ba|da)?sh\b")


def tracked(root: Path) -> list[Path]:
    """The files git tracks below ``root`` and that still exist, sorted, relative to it.

    Raises CalledProcessError where ``root`` is not a git checkout.
    """
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached"], check=True, capture_output=True
    ).stdout.decode()
    return sorted(Path(name) for name in listing.split("\0") if name and (root / name).is_file())


def first_line(path: Path) -> bytes:
    """The first line of a file, at most 256 bytes of it."""
    with path.open("rb") as file:
        return file.readline(256)


def is_shell(path: Path) -> bool:
    """Whether a file is a POSIX or Bash script, by its first line; its name does not matter."""
    return _SHELL.match(first_line(path)) is not None


def is_c(path: Path) -> bool:
    """Whether a file is C or C++, or a header of either."""
    return path.suffix in {".c", ".cc", ".h"}


def main(arguments: list[str]) -> int:
    kinds = {"c": is_c, "shell": is_shell}
    if len(arguments) != 1 or arguments[0] not in kinds:
        print(f"usage: python -m tests.check.tree {'|'.join(kinds)}", file=sys.stderr)
        return 2
    root = Path.cwd()
    for path in tracked(root):
        if kinds[arguments[0]](root / path):
            print(path, end="\0")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
