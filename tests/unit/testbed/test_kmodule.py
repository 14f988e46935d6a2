# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.testbed import kmodule
from tests.testbed.cache import StepError


def test_an_option_the_driver_does_not_have_is_refused_by_name() -> None:
    kmodule.check_options({"vram_gib": "1"}, ["vram_gib", "gfx"])
    with pytest.raises(StepError, match="no parameter 'vram'; those it has: gfx, vram_gib"):
        kmodule.check_options({"vram": "1"}, ["vram_gib", "gfx"])
    with pytest.raises(StepError, match="those it has: none"):
        kmodule.check_options({"vram": "1"}, [])
