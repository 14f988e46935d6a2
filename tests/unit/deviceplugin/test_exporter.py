# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deviceplugin.exporter import Exporter
from tests.contract.peers.exporter import Exporter as Peer

from .given import BDF, OTHER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def socket(short_path: Path) -> Path:
    return short_path / "socket"


def test_without_an_exporter_there_is_no_opinion(socket: Path) -> None:
    assert Exporter(socket).ailing() == {}


@pytest.mark.parametrize("health", ["healthy", "unknown", "", "degraded"])
def test_only_an_explicit_unhealthy_counts(socket: Path, health: str) -> None:
    peer = Peer(socket, {BDF: health, OTHER.upper(): "unhealthy"})
    try:
        assert Exporter(socket).ailing() == {OTHER: "the metrics exporter says unhealthy"}
    finally:
        peer.close()


def test_a_gpu_recovers_when_the_exporter_says_so(socket: Path) -> None:
    peer = Peer(socket, {BDF: "unhealthy"})
    exporter = Exporter(socket)
    assert BDF in exporter.ailing()
    peer.states[BDF] = "healthy"
    assert exporter.ailing() == {}
    peer.close()


def test_a_silent_exporter_keeps_its_opinion_and_one_that_is_removed_does_not(
    socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer(socket, {BDF: "unhealthy"})
    exporter = Exporter(socket)
    assert BDF in exporter.ailing()
    peer.close(leave_socket=True)
    assert BDF in exporter.ailing()
    assert BDF in exporter.ailing()
    assert caplog.text.count("does not answer") == 1, "said once"
    socket.unlink()
    assert exporter.ailing() == {}
    again = Peer(socket, {BDF: "healthy"})
    assert exporter.ailing() == {}
    again.close()
