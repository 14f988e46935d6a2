# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what the enforcer did to them and how it holds them, from its snapshot.

The enforcer has no way to the API server and needs none; this side has, and no rights on the node.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deviceplugin.apiserver import CONFLICT, ApiServerError
from enforcer.model import MIB, Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.pod import Json
    from enforcer.model import ContainerUsage, Incident, Snapshot

REFUSED = "AMDGPUMemoryRefused"
REFUSED_COMPUTE = "AMDGPUComputeRefused"
KILLED = "AMDGPUProcessKilled"
SPARED = "AMDGPULimitBypassed"
HELD = "AMDGPUSliceHeld"
NOT_HELD = "AMDGPUSliceNotHeld"
DRIFT = "AMDGPUMemoryDrift"
CORRECTED = "AMDGPULedgerCorrected"
OTHER = "AMDGPUSliceIncident"

_COMPONENT = "ringfence-enforcer"
_CALL_SECONDS = 5.0
_QUIET_SECONDS = 300.0
"""Between two events about the same thing of one container."""
_MOST = 20
"""Events of one look; the rest is told by the next ones."""
_LONGEST = 1024
_LONGEST_NAME = 253

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something to tell of a pod."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    """"" is the pod itself."""
    about: str
    """What is told of the container: the same again is the same thing, and not told at once."""
    mark: str
    """Another one is news."""
    reason: str
    message: str
    warning: bool = True

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pod_uid, self.container, self.about

    @property
    def name(self) -> str:
        """The object's name: an event that a predecessor told has it, too."""
        identity = "\0".join((*self.key, self.mark)).encode()
        tail = f".{hashlib.sha256(identity).hexdigest()[:16]}"
        return self.pod[: _LONGEST_NAME - len(tail)].rstrip(".-") + tail


def pod_events(snapshot: Snapshot) -> list[PodEvent]:
    """Everything that is to be told of the pods in a snapshot. Pure."""
    events = [_incident(one) for one in snapshot.incidents]
    for row in snapshot.containers:
        # The pod's own row says what its containers' do.
        if row.container and row.limit is not None and row.layers:
            events.append(_holding(row, row.limit))
        if row.usage.drift:
            events.append(_drift(row, row.usage.drift))
    return events


def due(
    events: Iterable[PodEvent],
    told: Mapping[tuple[str, str, str], tuple[str, float]],
    before: Mapping[tuple[str, str, str], str],
    now: float,
) -> list[PodEvent]:
    """Those to tell at ``now``. Pure.

    ``told`` has mark and time of the last event by ``PodEvent.key``; ``before`` the marks of the
    look before. How a slice is held is told when two looks agree on it: a limit is a moment on its
    way after a container starts.
    """
    found = []
    for event in events:
        mark, at = told.get(event.key, ("", -_QUIET_SECONDS))
        settled = event.reason not in (HELD, NOT_HELD) or before.get(event.key) == event.mark
        if mark != event.mark and now - at >= _QUIET_SECONDS and settled:
            found.append(event)
    return found[:_MOST]


def event_body(event: PodEvent, node: str, now: datetime) -> Json:
    """The event as the API server takes it."""
    time_of = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": event.namespace,
        "name": event.pod,
        "uid": event.pod_uid,
    }
    if event.container:
        about["fieldPath"] = f"spec.containers{{{event.container}}}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": event.namespace},
        "involvedObject": about,
        "reason": event.reason,
        "message": event.message[:_LONGEST],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": _COMPONENT, "host": node},
        "firstTimestamp": time_of,
        "lastTimestamp": time_of,
        "count": 1,
    }


class PodEvents:
    """One thread that tells what is new in the snapshots it is shown."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._told: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._before: dict[tuple[str, str, str], str] = {}
        self._trouble = ""
        self._latest: Snapshot | None = None
        self._shown = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pod-events", daemon=True)

    def start(self) -> None:
        """Start telling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the next plugin tells what is left."""
        self._stopping.set()
        self._shown.set()
        self._thread.join(timeout=10)

    def see(self, snapshot: Snapshot) -> None:
        """The enforcer's last snapshot, whenever there is one. From any thread."""
        self._latest = snapshot
        self._shown.set()

    def _run(self) -> None:
        while self._shown.wait() and not self._stopping.is_set():
            self._shown.clear()
            if self._latest is not None:
                self._tell(pod_events(self._latest))

    def _tell(self, events: list[PodEvent]) -> None:
        now = time.monotonic()
        keys = {event.key for event in events}
        # What is not there any more may be told anew when it comes back, and pods do not.
        self._told = {
            key: one
            for key, one in self._told.items()
            if key in keys or now - one[1] < _QUIET_SECONDS
        }
        todo = due(events, self._told, self._before, now)
        self._before = {event.key: event.mark for event in events}
        for event in todo:
            if self._stopping.is_set() or not self._create(event):
                return
            self._told[event.key] = event.mark, now

    def _create(self, event: PodEvent) -> bool:
        """False if it is to be tried again."""
        body = event_body(event, self._api.node, datetime.now(UTC))
        try:
            self._api.create_event(event.namespace, body, _CALL_SECONDS)
        except ApiServerError as error:
            if error.status == CONFLICT:
                return True  # a predecessor told it
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning(
                    "event %s of pod %s/%s cannot be told: %s; it says: %s",
                    *(event.reason, event.namespace, event.pod, error, event.message),
                )
            # The namespace is being deleted, or the right is missing: no better later.
            return error.final
        self._trouble = ""
        return True


def _incident(one: Incident) -> PodEvent:
    if one.reason.endswith("_killed"):
        reason = KILLED
    elif one.reason.endswith("_spared") or one.reason == "overran":
        reason = SPARED
    elif one.reason == "ledger_corrected":
        reason = CORRECTED
    elif one.reason in {"refused_cu_mask", "refused_unmasked", "refused_queues_full"}:
        reason = REFUSED_COMPUTE
    elif one.reason.startswith("refused_"):
        reason = REFUSED
    else:
        # Of an enforcer that knows more than this plugin.
        reason = OTHER
    where = f"GPU {one.bdf}: " if one.bdf else ""
    times = f"; {one.count} times so far" if one.count > 1 else ""
    return PodEvent(
        namespace=one.namespace,
        pod=one.pod,
        pod_uid=one.pod_uid,
        container=one.container,
        about=f"{one.reason} {one.bdf}",
        # The count alone starts again with the enforcer.
        mark=f"{one.count} {one.time:.3f}",
        reason=reason,
        message=f"{where}{one.text}{times}",
        warning=reason != CORRECTED,
    )


def _holding(row: ContainerUsage, limit: int) -> PodEvent:
    states = ", ".join(f"{state.layer} {state}" for state in row.layers)
    held = any(state.on and state.layer is not Layer.HOOK for state in row.layers)
    return PodEvent(
        namespace=row.namespace,
        pod=row.pod,
        pod_uid=row.pod_uid,
        container=row.container,
        about=f"held {row.bdf}",
        mark=states,
        reason=HELD if held else NOT_HELD,
        message=f"GPU {row.bdf}, {limit // MIB} MiB: {states}",
        warning=not held,
    )


def _drift(row: ContainerUsage, drift: int) -> PodEvent:
    return PodEvent(
        namespace=row.namespace,
        pod=row.pod,
        pod_uid=row.pod_uid,
        container=row.container,
        about=f"drift {row.bdf}",
        # Whole MiB: not every page is news.
        mark=str(drift // MIB),
        reason=DRIFT,
        message=(
            f"GPU {row.bdf}: the kernel counts {drift // MIB} MiB of VRAM more than the ledger, "
            "which the gate does not hold"
        ),
    )
