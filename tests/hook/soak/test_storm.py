# SPDX-License-Identifier: Apache-2.0
"""Many processes of many threads near the limit, killed at random, for minutes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.hook.container import THUNK
from tests.hook.test_processes import storm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.hook.container import Container

SECONDS = int(os.environ.get("RINGFENCE_STORM_SECONDS", "60"))
KERNEL = {"LD_PRELOAD": str(THUNK / "libkernel.so"), "THUNK_IOCTL": "1"}


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("env", [{}, KERNEL], ids=["pools", "pools-and-driver"])
def test_the_sum_stays_within_the_limit_and_the_books_are_right_afterwards(
    container: Container, env: Mapping[str, str]
) -> None:
    storm(container, 16, 4, SECONDS, env=env)
