# SPDX-License-Identifier: Apache-2.0
"""Taking off a node what ``audit_hook.install`` put there, and nothing that lies beside it.

``python -m audit_hook.remove DIRECTORY``. A process that has loaded the hook keeps it; one that
starts later, in a container that is still there, goes without.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from audit_hook.install import CURRENT

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = re.compile(r"[0-9a-f]{12}")
"""As ``audit_hook.install.version_of`` names them."""


def remove(directory: Path) -> list[str]:
    """Remove every version and ``current``; the names of what else is there, and stays.

    A directory that is not there holds nothing. Raises OSError.
    """
    others = []
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        if entry.name in {CURRENT, f".{CURRENT}.new"} and entry.is_symlink():
            entry.unlink()
        elif _VERSION.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            others.append(entry.name)
    return others


def main(argv: Sequence[str] | None = None) -> int:
    """Remove, and tell what stays; 1 with one line on standard error if it failed."""
    parser = argparse.ArgumentParser(prog="python -m audit_hook.remove", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the hook's, on a node")
    directory = parser.parse_args(argv).directory
    try:
        others = remove(directory)
    except OSError as error:
        print(f"remove: {error.filename or directory}: {error.strerror}", file=sys.stderr)
        return 1
    if others:
        print(f"{directory}: not of the hook, and left there: {', '.join(others)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
