# SPDX-License-Identifier: Apache-2.0
from enforcer.metrics.families import FAMILIES
from tests.check import metrics_page


def test_the_page_of_metrics_is_what_the_code_says() -> None:
    """If not: python -m tests.check.metrics_page."""
    assert metrics_page.PAGE.read_text() == metrics_page.text()


def test_every_metric_is_on_it_once() -> None:
    text = metrics_page.text()
    assert [text.count(f"| `{family.name}` |") for family in FAMILIES] == [1] * len(FAMILIES)
