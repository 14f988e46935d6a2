# SPDX-License-Identifier: Apache-2.0
"""Being known to kubelet: serve on a socket of our own, register, and do it again when needed.

kubelet wipes the directory of sockets when it starts and forgets its plugins. A registration can
also be taken over by another plugin for the same resource, or be refused for its sake; then ours
waits its turn and asks again now and then. kubelet 1.20 does not tell the one whose place was
taken: its stream stays open, and only the node's status shows whose devices count.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.api.v1beta1_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from deviceplugin.standing import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from deviceplugin.devices import Device
    from deviceplugin.pod import Count
    from deviceplugin.server import DevicePlugin
    from deviceplugin.standing import Standings
    from enforcer.host.event import SignalSafeEvent
    from enforcer.host.heartbeat import Heartbeat

VERSION = "v1beta1"
_PREFIX = "ringfence-"
LOOK_SECONDS = 0.5
"""How often each registration is looked after."""
_REGISTER_SECONDS = 5.0
_RETRY_SECONDS = (1.0, 30.0)
_STREAM_SECONDS = 5.0
"""After a registration kubelet opens ListAndWatch at once; without it we are not known."""
_SETTLED_SECONDS = 60.0
"""Before that, a plugin whose devices were taken over has not got them back for good: two that
take them from each other do it more and more slowly."""
_HEARD_SECONDS = 30.0
"""By then a list of devices has come to the node's status, which kubelet sees to every 10 s."""
_WORKERS = 32
"""More than streams and starts that wait can hold, so that an Allocate always finds one."""

_log = logging.getLogger(__name__)


def register_all(  # noqa: PLR0913 - each is another part of the node
    plugin: Callable[[str], DevicePlugin],
    devices: Callable[[], Iterable[Device]],
    directory: Path,
    stopping: SignalSafeEvent,
    conflict: Callable[[str], None],
    standings: Standings,
    counted: Callable[[str], Count | None],
    *,
    heart: Heartbeat,
    lacks: Callable[[], Sequence[str]],
) -> None:
    """Register every resource that ``devices`` have ever had, until ``stopping`` is set.

    One without devices any more stays: kubelet sees none left, and pods may still hold some.
    ``conflict`` is told where another plugin seems to serve the same, ``standings`` how each is;
    ``counted`` is what the node's status says of a resource, None if it says nothing; ``heart``
    beats while each registration is looked after, and is well while all is done, and ``lacks``
    names nothing else that cannot be.
    """
    _remove_stale_sockets(directory)
    ones: dict[str, Registration] = {}
    threads: list[threading.Thread] = []
    while not stopping.is_set():
        for resource in sorted({device.resource for device in devices()} - ones.keys()):
            one = Registration(plugin(resource), directory, conflict, standings, counted)
            ones[resource] = one
            thread = threading.Thread(
                target=one.run, args=(stopping,), name=f"register {resource}", daemon=True
            )
            threads.append(thread)
            thread.start()
        lacking = lacks()
        heart.beat(
            well=not lacking and all(one.settled for one in ones.values()),
            why="; ".join([*lacking, *(one.lack for one in ones.values() if one.lack)]),
            step=min((one.looked for one in ones.values()), default=None),
        )
        stopping.wait(LOOK_SECONDS)
    for thread in threads:
        thread.join(timeout=10)


def _remove_stale_sockets(directory: Path) -> None:
    """Remove sockets of ours that nobody listens on any more, as ``kill -9`` leaves them."""
    for path in directory.glob(f"{_PREFIX}*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


class Registration:
    """Keeps one resource registered; ``run`` is the thread's work."""

    def __init__(
        self,
        plugin: DevicePlugin,
        directory: Path,
        conflict: Callable[[str], None],
        standings: Standings,
        counted: Callable[[str], Count | None],
    ) -> None:
        self._plugin = plugin
        self._counted = counted
        self._own = -1
        self._own_since = 0.0
        self._directory = directory
        self._resource = plugin.resource
        self._conflict = conflict
        self._standings = standings
        self._kubelet = directory / "kubelet.sock"
        self._server: grpc.Server | None = None
        self._socket: Path | None = None
        self._socket_id: tuple[int, int] | None = None
        self._trouble = ""
        self._heard = False
        self.looked = time.monotonic()
        """When its thread last came by; monotonic seconds."""
        self.settled = False
        """Registered; or not so because there is no kubelet, it does not take this, or it has come
        to listen to another plugin: nothing that a new version of this one must be held back for,
        or that starting anew would mend."""
        self.lack = "begins"
        """What keeps it from being registered; empty if nothing does."""

    def run(self, stopping: SignalSafeEvent) -> None:
        """Register, and stay registered until ``stopping`` is set."""
        known: tuple[int, int] | None = None
        pause, due = _RETRY_SECONDS[0], 0.0
        registered = 0.0
        served = False
        try:
            while not stopping.is_set():
                now = time.monotonic()
                kubelet = _identity(self._kubelet)
                if kubelet is None:
                    known = None
                else:
                    fresh = kubelet != known or self._lost()
                    if fresh:
                        known, pause = kubelet, _RETRY_SECONDS[0]
                    others = self._others()
                    if fresh or others or (now >= due and not self._plugin.streams):
                        taken = self._register()
                        if taken and served and not fresh:
                            # The same kubelet, alive, and it had a stream: somebody took it over.
                            self._conflict(
                                f"kubelet {others or 'ended the stream'} of {self._resource} and "
                                "took a new registration: is another plugin for it installed?"
                            )
                        self._own_since = time.time()
                        served = False
                        registered = time.monotonic()
                        due = time.monotonic() + pause + (_STREAM_SECONDS if taken else 0)
                        pause = min(pause * 2, _RETRY_SECONDS[1])
                    elif self._plugin.streams:
                        served = True
                        due = max(due, now + _STREAM_SECONDS)
                        if now - registered > _SETTLED_SECONDS:
                            pause = _RETRY_SECONDS[0]
                self.looked = time.monotonic()
                self._tell(kubelet is not None)
                stopping.wait(LOOK_SECONDS)
        finally:
            self._plugin.stop()
            self._close()

    def _others(self) -> str:
        """What shows that kubelet has the devices of another plugin; empty while nothing does.

        A status that kubelet wrote well after our last word to it has our number of devices, unless
        it listens to somebody else.
        """
        own = self._plugin.healthy
        if own != self._own:
            self._own, self._own_since = own, time.time()
        count = self._counted(self._resource)
        if count is None or count.devices == own:
            return ""
        if count.reported < self._own_since + _HEARD_SECONDS:
            return ""
        return f"counts {count.devices} and not the {own}"

    def _tell(self, kubelet: bool) -> None:
        state, why = self._state(kubelet)
        self._heard |= state is State.REGISTERED
        self.settled = state is State.WAITING or (
            self._server is not None and (self._heard or state is State.REFUSED)
        )
        self.lack = f"{self._resource} {state}: {why}" if why else ""
        self._standings.tell(self._resource, state, why)

    def _state(self, kubelet: bool) -> tuple[State, str]:
        if not kubelet:
            return State.WAITING, f"{self._kubelet} is not there"
        if self._plugin.streams and not self._others():
            return State.REGISTERED, ""
        if self._trouble:
            return State.REFUSED, self._trouble
        return State.UNHEARD, "kubelet took it, but has not its devices"

    def _lost(self) -> bool:
        return self._socket is not None and _identity(self._socket) != self._socket_id

    def _register(self) -> bool:
        try:
            if self._socket is None or self._lost():
                self._close()
                self._serve()
        except (OSError, RuntimeError) as error:
            self._complain(f"{self._directory}: cannot listen: {error}")
            return False
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=self._socket.name if self._socket else "",
            resource_name=self._resource,
            options=self._plugin.options,
        )
        try:
            with grpc.insecure_channel(f"unix:{self._kubelet}") as channel:
                RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)
        except grpc.RpcError as error:
            trouble = (
                f"kubelet at {self._kubelet} does not take {self._resource} "
                f"({error.code().name.lower()}: {error.details()}): is another plugin for it "
                "installed?"
            )
            self._complain(trouble)
            if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                self._conflict(trouble)
            return False
        self._trouble = ""
        _log.info("%s registered with %s", self._resource, self._kubelet)
        return True

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("%s; trying again now and then", trouble)

    def _serve(self) -> None:
        # A name of its own for every start: a predecessor that exits late unlinks only its own.
        path = self._directory / f"{_PREFIX}{secrets.token_hex(4)}.sock"
        server = grpc.server(
            ThreadPoolExecutor(_WORKERS, thread_name_prefix="kubelet"),
            options=(("grpc.so_reuseport", 0),),
        )
        add_DevicePluginServicer_to_server(self._plugin, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._server, self._socket, self._socket_id = server, path, _identity(path)

    def _close(self) -> None:
        if self._server is not None:
            self._server.stop(grace=0.5).wait(2.0)
            self._server = None
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            self._socket = None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
