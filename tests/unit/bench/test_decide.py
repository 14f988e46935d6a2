# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.decide import prepare
from tests.testbed.cache import Cache, Report

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_timed_is_the_gate_and_the_ledger_of_today(tmp_path: Path) -> None:
    assert prepare(Cache(tmp_path), Report()).read_bytes().startswith(b"\x7fELF")
