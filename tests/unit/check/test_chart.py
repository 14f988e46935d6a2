# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.check import chart

if TYPE_CHECKING:
    import pytest

CHARTS = Path(__file__).parents[3] / "charts"


def test_a_chart_that_does_not_render_fails_the_check_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CHARTS, tmp_path / "charts")
    monkeypatch.chdir(tmp_path)
    assert chart.main() == 0
    (tmp_path / "charts/ringfence/templates/broken.yaml").write_text("{{ .Values.image.none.x }}\n")
    assert chart.main() == 1
    assert "broken.yaml" in capsys.readouterr().err


def test_advice_does_not_fail_the_check_and_a_warning_does() -> None:
    advice = {"severity": 1, "path": "Chart.yaml", "error": "icon is recommended"}
    warning = {"severity": 2, "path": "templates/", "error": "deprecated"}
    assert chart.problems({"messages": [advice], "errors": []}) == []
    assert chart.problems({"messages": [advice, warning], "errors": []}) == [
        "templates/: deprecated"
    ]


def test_an_error_without_a_message_is_not_lost() -> None:
    assert chart.problems({"messages": [], "errors": ["unreadable"]}) == ["unreadable"]
