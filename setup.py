# SPDX-License-Identifier: Apache-2.0
"""What a wheel holds besides its sources: protobuf code, BPF objects and the hook's libraries.

They are generated, so they are in no commit; a wheel that lacked them would install and not run.
Everything else about the distribution is in pyproject.toml.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_HERE = Path(__file__).resolve().parent


def _make(*arguments: str) -> None:
    """Run make with this very Python, which has protoc and pyelftools by build-system.requires."""
    # A make that called us has told its own jobs and targets to nobody else.
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    try:
        subprocess.run(["make", *arguments, f"PYTHON={sys.executable}"], check=True, cwd=_HERE,
                       env=environment)  # fmt: skip
    except FileNotFoundError as error:
        raise SystemExit("the wheel of ringfence is built with make, clang and a C compiler; "
                         "expected make in PATH, found none") from error  # fmt: skip


class BuildPy(build_py):
    """Generates first. An editable install uses what `make generate` left in the tree."""

    def run(self) -> None:
        if not self.editable_mode:
            _make("generate")
        super().run()
        if not self.editable_mode:
            _make("-C", "audit_hook", f"OUT={Path(self.build_lib, 'audit_hook').resolve()}")


class Compiled(Distribution):
    """What is compiled is libraries for other programs: setuptools knows no word for that."""

    def has_ext_modules(self) -> bool:
        return True


class BdistWheel(bdist_wheel):
    """For any Python 3, but for one architecture."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=Compiled, cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
