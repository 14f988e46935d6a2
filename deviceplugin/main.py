# SPDX-License-Identifier: Apache-2.0
"""``ringfence device-plugin``: the wiring of the parts."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from deviceplugin.cdi import Cdi, Groups
from deviceplugin.checkpoint import Checkpoint
from deviceplugin.events import CHECKPOINT, CONFLICT, Event, Events
from deviceplugin.exporter import Exporter
from deviceplugin.follower import Follower
from deviceplugin.health import Offer
from deviceplugin.hold import Holder
from deviceplugin.hook import Hook, Installed
from deviceplugin.node import Publisher
from deviceplugin.options import POD_RESOURCES, OptionsError, read_options, terms
from deviceplugin.pod import count_of
from deviceplugin.podevents import PodEvents
from deviceplugin.podresources import read_pod_resources
from deviceplugin.pods import PodCache
from deviceplugin.reap import Reaper
from deviceplugin.record import recorded
from deviceplugin.registration import LOOK_SECONDS, register_all
from deviceplugin.release import Release
from deviceplugin.scheduled import Scheduled
from deviceplugin.server import DevicePlugin
from deviceplugin.source import GpuSource
from deviceplugin.standing import FILE as STANDING
from deviceplugin.standing import Standings
from deviceplugin.terms import overridden
from deviceplugin.unscheduled import Unscheduled
from enforcer import log
from enforcer.api.client import Client
from enforcer.host.event import SignalSafeEvent
from enforcer.host.heartbeat import Heartbeat
from enforcer.host.lock import HeldError, hold
from enforcer.host.roots import Roots
from enforcer.slices import FILE, CheckpointError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence
    from typing import IO

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.server import Giver
    from deviceplugin.terms import Terms

_POD_RESOURCES_SECONDS = 2.0
_SYNC_SECONDS = 2.0
_LOCK = "device-plugin.lock"
_LOCK_SECONDS = 0.2
_TURN_SECONDS = 0.0005
"""How long one thread computes while another waits, kubelet's among them; Python's is ten times
that."""

_log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        arguments = read_options(argv)
    except OptionsError as error:
        sys.stderr.write(f"ringfence device-plugin: {error}\n")
        return 2
    log.to_stderr(arguments.log_level.upper(), "%(asctime)s %(levelname)s %(name)s: %(message)s")
    stopping = SignalSafeEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        status = run(arguments, stopping)
    except _StartError as error:
        sys.stderr.write(f"ringfence device-plugin: {error}\n")
        return 1
    return log.leave(status)


class _Part(Protocol):
    """A thread of the plugin."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class _StartError(Exception):
    """Why the plugin cannot start; for the administrator."""


def run(arguments: argparse.Namespace, stopping: SignalSafeEvent) -> int:
    """Work until ``stopping`` is set; the exit status."""
    if not arguments.node_name:
        raise _StartError("expected the node's name in --node-name or NODE_NAME, found none")
    heart = Heartbeat(arguments.heartbeat, LOOK_SECONDS)
    with ExitStack() as stack:
        api = _connect(arguments, stack)
        pod_events = PodEvents(api)
        client = stack.enter_context(Client(arguments.socket))
        roots = Roots(sys=arguments.sys, dev=arguments.dev)
        source = GpuSource(roots, client, pod_events.see)
        lock = _lock(arguments.state_dir, stopping, source.learn, arguments.health_pulse, heart)
        if lock is None:
            return 0
        with lock:
            heart.start()
            return _work(arguments, stopping, api, client, source, pod_events, heart)


def _work(
    arguments: argparse.Namespace,
    stopping: SignalSafeEvent,
    api: ApiServer,
    client: Client,
    source: GpuSource,
    pod_events: PodEvents,
    heart: Heartbeat,
) -> int:
    """Wire the parts together, and keep them going."""
    checkpoint = _checkpoint(arguments.state_dir)
    cache = PodCache(api)
    configured = terms(arguments)

    def current_terms() -> tuple[Terms, tuple[str, ...]]:
        node = cache.node()
        return overridden(configured, node.annotations if node is not None else {})

    exporter = Exporter(arguments.metrics_exporter)
    offer = Offer(
        source.read,
        current_terms,
        arguments.health_pulse,
        cache.wake,
        lambda: {**exporter.ailing(), **source.ailing()},
        lambda: source.in_the_dark,
    )
    events = Events(api, cache, offer)
    pod_resources = arguments.kubelet_dir / POD_RESOURCES
    reaper = Reaper(
        api,
        cache,
        checkpoint,
        partial(read_pod_resources, pod_resources),
        lambda: offer.devices,
        whole=configured.whole,
    )
    parts: list[_Part] = [offer, events, reaper, pod_events]
    giver: Giver = Unscheduled(offer)
    holder = None
    if not configured.whole:
        hook = Installed(Hook(arguments.hook_dir, arguments.hip_log_level))
        hook.look()
        release = Release(api, cache, checkpoint, lambda: offer.devices)
        giver = Scheduled(
            offer,
            cache,
            checkpoint,
            release,
            events.tell,
            reaper.reap_now,
            node=arguments.node_name,
            hook=hook,
            run_dir=arguments.socket.parent,
        )
        holder = Holder(
            client,
            cache.image,
            hook.look,
            partial(recorded, arguments.device_plugins_dir),
            arguments.socket.parent,
        )
        parts.append(release)

    groups = Groups(arguments.dev, lambda: offer.devices)
    parts.append(
        Publisher(
            api,
            cache,
            offer,
            register=not configured.whole,
            capacity=arguments.report_node_capacity,
            groups=groups.read,
        )
    )
    cdi = None
    if arguments.cdi_dir is not None:
        cdi = Cdi(arguments.cdi_dir, lambda: offer.devices, groups.read)

    def plugin(resource: str) -> DevicePlugin:
        return DevicePlugin(
            resource,
            offer,
            checkpoint,
            giver,
            holder,
            partial(read_pod_resources, pod_resources, _POD_RESOURCES_SECONDS),
            cdi=cdi,
            policy=arguments.allocator_policy,
            fail_open=arguments.fail_open,
        )

    broken = threading.Event()

    def end(failure: threading.ExceptHookArgs) -> None:
        # A plugin with a part missing would look alive; a new one picks up where this one was.
        name = failure.thread.name if failure.thread else "a thread"
        _log.critical("%s ended by a mistake in it", name, exc_info=failure.exc_value)
        broken.set()
        stopping.set()

    threading.excepthook = end
    cache.start()
    # The node may say on which terms its GPUs are offered; without an API server the options do.
    cache.wait_synced(_SYNC_SECONDS)
    for part in parts:
        part.start()
    for problem in checkpoint.problems:
        events.tell(Event(CHECKPOINT, problem))
    register_all(
        plugin,
        lambda: offer.devices,
        arguments.device_plugins_dir,
        stopping,
        lambda message: events.tell(Event(CONFLICT, message)),
        Standings(arguments.state_dir / STANDING),
        lambda resource: count_of(cache.node(), resource),
        heart=heart,
        lacks=lambda: _lacks(parts, source, offer),
    )
    for part in reversed(parts):
        part.stop()
    cache.stop()
    return 1 if broken.is_set() else 0


def _lacks(parts: Iterable[_Part], source: GpuSource, offer: Offer) -> list[str]:
    """What the plugin cannot do, whatever it has registered: a line each."""
    found = [one.mistake for one in parts if isinstance(one, Follower) and one.mistake]
    if source.in_the_dark:
        found.append("no GPU in sight here, and no answer from the enforcer")
    return [*found, offer.trouble] if offer.trouble else found


def _connect(arguments: argparse.Namespace, stack: ExitStack) -> ApiServer:
    # The client costs a third of this process, so it comes after what can be wrong without it.
    from kubernetes.config import ConfigException  # noqa: PLC0415

    from deviceplugin.apiserver import connect  # noqa: PLC0415

    keys = None
    try:
        if arguments.kubeconfig is not None:
            # What the client library makes to be removed at exit is not removed after ``leave``.
            keys = Path(stack.enter_context(TemporaryDirectory(prefix="ringfence-")))
        return connect(arguments.node_name, arguments.kubeconfig, keys)
    except (ConfigException, OSError) as error:
        raise _StartError(
            f"the API server: expected --kubeconfig or a service account, found: {error}"
        ) from error


def _lock(
    directory: Path,
    stopping: SignalSafeEvent,
    learn: Callable[[], None],
    seconds: float,
    heart: Heartbeat,
) -> IO[bytes] | None:
    """The state directory's lock; None if this process was told to leave before it got it.

    Each plugin keeps the slices in memory and writes the whole checkpoint, so of two, as an update
    has them for a while, one would drop what the other gave out. The later one stands in line, and
    every ``seconds`` calls ``learn``.
    """
    due = float("-inf")
    while not stopping.is_set():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return hold(directory / _LOCK)
        except HeldError as error:
            if time.monotonic() >= due:
                learn()
                due = time.monotonic() + seconds
            if heart.wait(str(error)):
                _log.info("waiting for the other device plugin of this node to end: %s", error)
        except OSError as error:
            raise _StartError(f"the state directory: {error}") from error
        stopping.wait(_LOCK_SECONDS)
    return None


def _checkpoint(directory: Path) -> Checkpoint:
    try:
        return Checkpoint(directory / FILE)
    except (OSError, CheckpointError) as error:
        raise _StartError(f"the checkpoint: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
