# SPDX-License-Identifier: Apache-2.0
"""The newest ROCr's headers."""

from __future__ import annotations

import pytest

from tests.hook.debian import HEADERS, unpacked
from tests.hook.test_abi import compiles
from tests.testbed.cache import StepError


def test_the_numbers_are_those_of_the_newest_headers() -> None:
    try:
        root = unpacked("experimental", HEADERS)
    except StepError as error:
        pytest.skip(f"the archive has no experimental: {error}")
    assert compiles(root / "usr" / "include" / "hsa") == ""
