# SPDX-License-Identifier: Apache-2.0
"""What tests of every kind share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty directory for sockets below it: their paths are limited to 107 bytes.

    ``tmp_path`` is longer, by far under xdist or below a longer $TMPDIR.
    """
    with tempfile.TemporaryDirectory(prefix="ringfence-", dir="/tmp") as directory:
        yield Path(directory)
