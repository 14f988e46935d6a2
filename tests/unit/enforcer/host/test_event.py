# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import threading
import time

import pytest

from enforcer.host.event import SignalSafeEvent


@pytest.fixture
def event() -> SignalSafeEvent:
    return SignalSafeEvent()


def test_it_is_set_until_it_is_cleared(event: SignalSafeEvent) -> None:
    assert not event.is_set()
    for _ in range(3):
        event.set()
    assert event.is_set()
    assert event.wait(0.0)
    assert event.wait()
    event.clear()
    event.clear()
    assert not event.is_set()


def test_nobody_sets_it_before_its_time_is_over(event: SignalSafeEvent) -> None:
    began = time.monotonic()
    assert not event.wait(0.1)
    assert time.monotonic() - began >= 0.1
    assert not event.wait(-1.0)


def test_everybody_who_waits_is_woken(event: SignalSafeEvent) -> None:
    woken = []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 4


_BETWEEN_ANY_TWO_STEPS = """
import sys
from enforcer.host.event import SignalSafeEvent
event = SignalSafeEvent()
steps = []
def handle(frame, *_):
    steps.append(frame.f_lineno)
    event.set()
    return handle
sys.settrace(handle)
for _ in range(2):
    event.wait(0.001)
    event.clear()
    event.set()
sys.settrace(None)
assert len(set(steps)) > 6, steps
"""


def test_a_handler_may_set_it_in_the_middle_of_all_that_is_done_with_it() -> None:
    subprocess.run([sys.executable, "-c", _BETWEEN_ANY_TWO_STEPS], check=True, timeout=60)
