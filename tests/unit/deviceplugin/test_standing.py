# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deviceplugin.standing import Standings, State

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_is_news_is_written_and_the_time_is_that_of_the_news(tmp_path: Path) -> None:
    path = tmp_path / "registration.json"
    standings = Standings(path)
    standings.tell("amd.com/gpu", State.REFUSED, "another plugin")
    standings.tell("amd.com/cpx_nps4", State.REGISTERED)
    first = json.loads(path.read_text())
    assert first["amd.com/gpu"].items() >= {"state": "refused", "why": "another plugin"}.items()
    written = path.stat().st_ino
    standings.tell("amd.com/gpu", State.REFUSED, "another plugin")
    assert path.stat().st_ino == written
    standings.tell("amd.com/gpu", State.REGISTERED)
    second = json.loads(path.read_text())
    assert second["amd.com/gpu"]["state"] == "registered"
    assert second["amd.com/cpx_nps4"] == first["amd.com/cpx_nps4"]


def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "none" / "registration.json"
    Standings(path).tell("amd.com/gpu", State.WAITING, "no kubelet")
    assert str(path) in caplog.text


def test_a_file_that_could_not_be_written_is_told_once_and_written_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state" / "registration.json"
    standings = Standings(path)
    for _ in range(3):
        standings.tell("amd.com/gpu", State.REGISTERED)
    assert caplog.text.count("cannot be written") == 1
    path.parent.mkdir()
    standings.tell("amd.com/gpu", State.REGISTERED)
    assert json.loads(path.read_text())["amd.com/gpu"]["state"] == "registered"
