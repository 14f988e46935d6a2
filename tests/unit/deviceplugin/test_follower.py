# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kubernetes import client

from deviceplugin import follower
from deviceplugin.apiserver import ApiServer
from deviceplugin.follower import Follower
from deviceplugin.pods import PodCache

if TYPE_CHECKING:
    import pytest


class _Faulty(Follower):
    """Fails at its work as often as it is told to, and then does it."""

    def __init__(self, failures: int) -> None:
        super().__init__("faulty", PodCache(ApiServer(client.ApiClient(), "node")))
        self.failures = failures
        self.done = threading.Event()
        self.mistakes: list[str] = []

    def work(self) -> float:
        self.mistakes.append(self.mistake)
        if self.failures:
            self.failures -= 1
            raise ValueError(f"what nobody thought of, {self.failures} more times")
        self.done.set()
        return 60.0


def test_a_mistake_is_told_once_and_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(follower, "_MISTAKE_SECONDS", 0.01)
    one = _Faulty(3)
    one.start()
    assert one.done.wait(10)
    one.stop()
    assert caplog.text.count("faulty: a mistake in it") == 1
    assert "what nobody thought of, 2 more times" in caplog.text
    assert caplog.text.count("faulty: works again") == 1
    assert [bool(mistake) for mistake in one.mistakes] == [False, True, True, True]
    assert "faulty: ValueError('what nobody thought of, 0 more times')" in one.mistakes
    assert one.mistake == ""
