# SPDX-License-Identifier: Apache-2.0
"""Built on a newer distribution, the objects still load on an old one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from audit_hook import check
from tests.testbed.cache import StepError

from .build import TREE
from .debian import compiling_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_newer_headers_raise_no_version(tmp_path: Path, suite: str) -> None:
    try:
        compiler = " ".join(["cc", *compiling_for(suite)])
    except StepError as error:
        pytest.skip(f"the archive has no {suite}: {error}")
    # The build's own last step refuses what asks for more than glibc 2.17.
    subprocess.run(
        ["make", "-s", "-C", TREE / "audit_hook", f"CC={compiler}", f"OUT={tmp_path}",
         f"PYTHON={sys.executable}"],
        check=True,
    )  # fmt: skip
    for rule in (check.auditor_rule(), check.tool_rule()):
        assert check.problems(check.read_elf(tmp_path / rule.soname), rule) == []
