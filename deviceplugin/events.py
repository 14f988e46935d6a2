# SPDX-License-Identifier: Apache-2.0
"""Events: what happened to the node's GPUs, for whoever asks Kubernetes and not the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deviceplugin.apiserver import ApiServerError
from deviceplugin.devices import GONE, WITHHELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.devices import Device
    from deviceplugin.health import Offer
    from deviceplugin.pod import Json
    from deviceplugin.pods import PodCache

UNHEALTHY = "AMDGPUUnhealthy"
MISSING = "AMDGPUMissing"
NOT_OFFERED = "AMDGPUNotOffered"
RECOVERED = "AMDGPURecovered"
CONFLICT = "AMDGPUPluginConflict"
CHECKPOINT = "AMDGPUCheckpointDamaged"
IDLE_DIES = "AMDGPUSliceLeavesDiesIdle"

_COMPONENT = "ringfence-device-plugin"
_NAMESPACE = "default"
_CALL_SECONDS = 5.0
_LOOK_SECONDS = 5.0
_RETRY_SECONDS = (1.0, 15.0)
"""Shortest and longest pause before an event is tried again."""
_REPEAT_SECONDS = 600.0
"""The same event is not told again before."""
_MOST_WAITING = 50
_LONGEST = 1024
"""Characters of a message that the API server takes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell of the node, or of one of its pods."""

    reason: str
    message: str
    warning: bool = True
    pod: tuple[str, str, str] | None = None
    """Namespace, name and UID; None: the node."""


def device_events(before: Iterable[Device], after: Iterable[Device]) -> list[Event]:
    """What is to be told of a change of the devices. Pure.

    A GPU that is new and healthy is nothing to tell; one that is gone is among the devices.
    """
    known = {device.key: device for device in before}
    events = []
    for device in after:
        old = known.get(device.key)
        card = "no card" if device.gpu.card is None else f"card{device.gpu.card}"
        what = f"GPU {device.key} ({card}, {device.id})"
        if device.healthy:
            if old is not None and not old.healthy:
                events.append(Event(RECOVERED, f"{what} is healthy again", warning=False))
        elif old is None or (old.healthy, old.why) != (device.healthy, device.why):
            if device.why == GONE:
                events.append(Event(MISSING, f"{what} is not there any more"))
            elif device.why == WITHHELD:
                events.append(Event(NOT_OFFERED, f"{what}: {device.why}"))
            else:
                events.append(Event(UNHEALTHY, f"{what} is unhealthy: {device.why}"))
    return events


def event_body(event: Event, node: str, uid: str, now: datetime) -> Json:
    """The event as the API server takes it."""
    time_of = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    about: Json = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    namespace, name = _NAMESPACE, node
    if event.pod is not None:
        namespace, name, pod_uid = event.pod
        about = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid}
        about["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": namespace},
        "involvedObject": about,
        "reason": event.reason,
        "message": event.message[:_LONGEST],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": _COMPONENT, "host": node},
        "firstTimestamp": time_of,
        "lastTimestamp": time_of,
        "count": 1,
    }


def just_told(told: Mapping[Event, float], now: float) -> dict[Event, float]:
    """The events, with when each was told, that are not to be told again yet. Pure."""
    return {event: when for event, when in told.items() if now - when < _REPEAT_SECONDS}


class Events:
    """One thread that tells events; the devices it finds at first are as they should be."""

    def __init__(self, api: ApiServer, cache: PodCache, offer: Offer) -> None:
        self._api = api
        self._cache = cache
        self._offer = offer
        self._waiting: deque[Event] = deque(maxlen=_MOST_WAITING)
        self._told: dict[Event, float] = {}
        self._trouble = ""
        self._pause = _RETRY_SECONDS[0]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start telling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what was not told never is."""
        self._stopping.set()
        self._offer.wake()
        self._thread.join(timeout=10)

    def tell(self, event: Event) -> None:
        """Tell an event soon, unless it was told just now."""
        now = time.monotonic()
        told = just_told(self._told, now)
        if event not in told:
            # Another object each time, as any thread may be looking at this one.
            self._told = {**told, event: now}
            self._waiting.append(event)
            self._offer.wake()

    def _run(self) -> None:
        version, known = self._offer.snapshot()
        retry = 0.0
        while not self._stopping.is_set():
            seen, devices = self._offer.snapshot()
            if seen != version:
                for event in device_events(known, devices) if known else ():
                    # Not through ``tell``: a GPU that fails again is news.
                    self._waiting.append(event)
                version, known = seen, devices
            if self._waiting and time.monotonic() >= retry:
                retry = time.monotonic() + self._deliver()
            # Closer while something waits.
            wait = _RETRY_SECONDS[0] if self._waiting else _LOOK_SECONDS
            self._offer.wait_change(version, wait)

    def _deliver(self) -> float:
        """Tell what waits; the seconds until another try is due."""
        node = self._cache.node()
        if node is None:
            return _RETRY_SECONDS[0]
        while self._waiting:
            event = self._waiting[0]
            body = event_body(event, node.name, node.uid, datetime.now(UTC))
            try:
                self._api.create_event(body["metadata"]["namespace"], body, _CALL_SECONDS)
            except ApiServerError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    about = "the node" if event.pod is None else f"pod {'/'.join(event.pod[:2])}"
                    _log.warning(
                        "event %s of %s cannot be told: %s; it says: %s",
                        *(event.reason, about, error, event.message),
                    )
                if error.final:
                    self._waiting.popleft()
                    continue
                pause, self._pause = self._pause, min(self._pause * 2, _RETRY_SECONDS[1])
                return pause
            self._trouble, self._pause = "", _RETRY_SECONDS[0]
            self._waiting.popleft()
        return 0.0
