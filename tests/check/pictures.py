# SPDX-License-Identifier: Apache-2.0
"""The pictures of the README: ``python -m tests.check.pictures`` draws them from a made-up node.

``top`` is an SVG that the tests compare. The page is photographed by Chromium, where that is there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from enforcer.cli.node import Seen
from enforcer.cli.top import lines
from enforcer.metrics.page import page
from tests.unit.enforcer.sample import SNAPSHOT

PICTURES = Path(__file__).parents[2] / "docs/pictures"
TOP = PICTURES / "top.svg"
PAGE = PICTURES / "page.png"
_ROW = 18
_COLUMN = 8.4
_EDGE = 16


def top() -> str:
    """``ringfence top`` of the made-up node, as a terminal shows it."""
    shown = ["$ ringfence top", *lines(Seen(SNAPSHOT, "enforcer"))]
    width = round(max(map(len, shown)) * _COLUMN) + 2 * _EDGE
    height = len(shown) * _ROW + 2 * _EDGE
    rows = "".join(
        f'<text x="{_EDGE}" y="{_EDGE + _ROW * (number + 1) - 5}" '
        f'xml:space="preserve">{escape(line)}</text>\n'
        for number, line in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        "<title>ringfence top: each GPU as a bar, each container as a row</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#16171a"/>\n'
        '<g fill="#ececea" font-family="ui-monospace, DejaVu Sans Mono, Menlo, monospace" '
        f'font-size="14">\n{rows}</g>\n</svg>\n'
    )


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    TOP.write_text(top())
    browser = shutil.which("chromium")
    if browser is None:
        print(f"{PAGE} stays as it is: Chromium is not there", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        html = Path(directory) / "page.html"
        html.write_text(page(SNAPSHOT, "gpu-node-7", "0.1.0"))
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--window-size=1200,900", f"--screenshot={PAGE}", html.as_uri()),
            ],
            check=True,
            capture_output=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
