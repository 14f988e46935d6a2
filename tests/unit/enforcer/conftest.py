# SPDX-License-Identifier: Apache-2.0
import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A TCP port of the loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
