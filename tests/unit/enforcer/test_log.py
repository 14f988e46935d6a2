# SPDX-License-Identifier: Apache-2.0
import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from enforcer.log import LineFormatter


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    log = logging.getLogger("test_log")
    log.propagate = False
    log.addHandler(handler)
    yield out
    log.removeHandler(handler)
    log.propagate = True


def test_a_record_is_one_line_whatever_is_in_it(out: io.StringIO) -> None:
    logging.getLogger("test_log").warning("by %s", "a\nERROR forged\x1b[2J\udcff")
    assert out.getvalue() == "WARNING by a?ERROR forged?[2J?\n"


def test_a_traceback_is_set_in_and_no_line_of_it_looks_like_a_record(out: io.StringIO) -> None:
    try:
        raise ValueError("a\nERROR forged\x1b[2J")
    except ValueError:
        logging.getLogger("test_log").exception("it failed")
    first, *others = out.getvalue().splitlines()
    assert first == "ERROR it failed"
    assert others[0] == "  Traceback (most recent call last):"
    assert others[-1] == "  ERROR forged?[2J"
    assert all(line.startswith("  ") for line in others)


_BLOCKED = """
import logging, os, sys, threading, time
from enforcer import log
log.to_stderr("INFO", "%(message)s")
threading.Thread(target=lambda: [logging.info("x" * 4096) for _ in range(99)], daemon=True).start()
time.sleep(1)
log.leave(3)
"""


def test_a_process_ends_though_nobody_reads_what_its_threads_write() -> None:
    with subprocess.Popen([sys.executable, "-c", _BLOCKED], stderr=subprocess.PIPE) as process:
        assert process.wait(30) == 3
