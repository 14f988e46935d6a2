# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.bench.gate import CALLS, table


def test_each_row_is_told_as_a_multiple_of_the_first() -> None:
    rows = [("without", dict.fromkeys(CALLS, 200.0)), ("with", dict.fromkeys(CALLS, 300.0))]
    head, first, second = table(rows).splitlines()
    assert head.split() == list(CALLS)
    assert first.split() == ["without", *["200", "ns", "1.00", "x"] * 3]
    assert second.split() == ["with", *["300", "ns", "1.50", "x"] * 3]
