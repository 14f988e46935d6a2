# SPDX-License-Identifier: Apache-2.0
"""Both objects for 64-bit ARM: built, checked as the others are, and an audited program starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from audit_hook import check

from .build import TREE
from .test_loaders import SOURCE

if TYPE_CHECKING:
    from pathlib import Path

COMPILER = "aarch64-linux-gnu-gcc"


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with both objects; the build has checked them already."""
    if shutil.which(COMPILER) is None:
        pytest.skip("needs the packages gcc-aarch64-linux-gnu and libc6-dev-arm64-cross")
    out = tmp_path_factory.mktemp("aarch64")
    subprocess.run(
        ["make", "-s", "-C", TREE / "audit_hook", f"CC={COMPILER}", f"OUT={out}",
         f"PYTHON={sys.executable}"],
        check=True,
    )  # fmt: skip
    return out


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("libringfence-audit.so", check.auditor_rule()),
        ("libringfence-hsa.so", check.tool_rule()),
    ],
)
def test_an_object_is_of_the_architecture_and_fit(
    objects: Path, name: str, rule: check.Rule
) -> None:
    elf = check.read_elf(objects / name)
    assert elf.machine == "AArch64"
    assert check.problems(elf, rule) == []


def test_a_program_starts_beside_the_auditor(objects: Path) -> None:
    qemu = shutil.which("qemu-aarch64")
    if qemu is None:
        pytest.skip("needs the package qemu-user")
    (objects / "x.c").write_text(SOURCE)
    subprocess.run([COMPILER, objects / "x.c", "-o", objects / "x"], check=True)
    audit = f"LD_AUDIT={objects / 'libringfence-audit.so'}"
    result = subprocess.run(
        [qemu, "-L", "/usr/aarch64-linux-gnu", "-E", audit, objects / "x"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (0, "started\n", "")
