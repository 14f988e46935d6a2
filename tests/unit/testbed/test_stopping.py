# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.testbed.vm import PROJECT

PROGRAM = """
import time
from tests.testbed.stopping import stop_by_exception
stop_by_exception()
try:
    print("up", flush=True)
    time.sleep(60)
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_has_to_be_cleaned_up_is_before_a_signal_ends_us(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == 128 + number
