# SPDX-License-Identifier: Apache-2.0
import threading
import time
from pathlib import Path
from typing import cast

from deviceplugin.checkpoint import Checkpoint
from deviceplugin.health import Offer
from deviceplugin.registration import Registration
from deviceplugin.server import DevicePlugin, Giver
from deviceplugin.standing import Standings
from deviceplugin.terms import Terms


def test_one_that_cannot_be_called_is_not_settled(tmp_path: Path) -> None:
    directory = tmp_path / ("too long for a socket" * 5)
    directory.mkdir()
    (directory / "kubelet.sock").write_text("")
    offer = Offer(lambda: ([], []), lambda: (Terms(), ()), 5.0, lambda: None)
    plugin = DevicePlugin(
        "amd.com/gpu",
        offer,
        Checkpoint(tmp_path / "slices.json"),
        cast("Giver", None),
        None,
        lambda: None,
    )
    one = Registration(
        plugin, directory, lambda _: None, Standings(tmp_path / "standing"), lambda _: None
    )
    stopping = threading.Event()
    begun = one.looked
    thread = threading.Thread(target=one.run, args=(stopping,))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while "cannot listen" not in one.lack and time.monotonic() < deadline:
            time.sleep(0.02)
        assert one.lack.startswith(f"amd.com/gpu refused: {directory}: cannot listen: ")
        assert not one.settled
        assert one.looked > begun
    finally:
        stopping.set()
        thread.join(timeout=20)
