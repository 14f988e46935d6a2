# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.unit.audit_hook import c_hook

if TYPE_CHECKING:
    import ctypes


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The hook's pure C functions."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return c_hook.build(tmp_path_factory.mktemp("c"))
