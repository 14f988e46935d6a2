# SPDX-License-Identifier: Apache-2.0
import threading
import time
from pathlib import Path
from typing import cast

from deviceplugin.checkpoint import Checkpoint
from deviceplugin.health import Offer
from deviceplugin.registration import Registration, register_all
from deviceplugin.server import DevicePlugin, Giver
from deviceplugin.standing import Standings
from deviceplugin.terms import Terms
from enforcer.host.event import SignalSafeEvent
from enforcer.host.heartbeat import Heartbeat, read_verdict


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
    stopping = SignalSafeEvent()
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


def test_one_that_cannot_do_its_work_is_alive_and_not_ready(tmp_path: Path) -> None:
    lacking: list[str] = []
    stopping = SignalSafeEvent()
    beat = tmp_path / "beat"
    thread = threading.Thread(
        target=register_all,
        args=(
            lambda _: None,
            lambda: (),
            tmp_path,
            stopping,
            lambda _: None,
            Standings(tmp_path / "standing"),
            lambda _: None,
        ),
        kwargs={"heart": Heartbeat(beat, 0.5), "lacks": lambda: tuple(lacking)},
    )
    thread.start()

    def answers(*, ready: bool, line: str) -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            # As asked when what went well before has been too long ago.
            found = read_verdict(beat, time.monotonic() + 59)
            if (found.live, found.ready) == (True, ready) and line in found.line:
                return True
            time.sleep(0.02)
        return False

    try:
        assert answers(ready=True, line="at work")
        lacking.append("reap: KeyError('pods')")
        assert answers(ready=False, line="reap: KeyError('pods')")
        lacking.clear()
        assert answers(ready=True, line="at work")
    finally:
        stopping.set()
        thread.join(timeout=20)
