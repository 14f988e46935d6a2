# SPDX-License-Identifier: Apache-2.0
from xml.etree import ElementTree

from tests.check import pictures


def test_the_picture_of_top_is_what_top_shows() -> None:
    """If not: python -m tests.check.pictures."""
    assert pictures.TOP.read_text() == pictures.top()
    ElementTree.fromstring(pictures.top())  # noqa: S314 - our own


def test_the_picture_of_the_page_is_there_and_small() -> None:
    size = pictures.PAGE.stat().st_size
    assert pictures.PAGE.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert 10_000 < size < 200_000
