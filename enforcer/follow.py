# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells by itself, of GPUs and of cgroups, brought to the enforcer at once."""

from __future__ import annotations

import errno
import logging
import select
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.host import uevents
from enforcer.host.smi import SmiListener

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from enforcer.host.smi import SmiEvent
    from enforcer.loop import Enforcer
    from enforcer.model import Gpu

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Between two looks at which GPUs there are."""
_GATHER_SECONDS = 0.05
_CALLS_SECONDS = 0.5
_RETRY_SECONDS = 60.0
_RESET_SECONDS = 10.0
"""Between two looks for the end of a reset that nobody told of."""
_FAULT_SECONDS = 0.5
"""Between two looks for faults: a tenant makes as many as it likes."""
_QUIET_SECONDS = 60.0
"""Between two lines about faults on the same GPU."""


def follow_uevents(enforcer: Enforcer) -> None:
    """Devices that come and go, and GPUs that hang; for ever, in the thread that calls."""

    def ready() -> None:
        enforcer.health.unheard("uevents", "")
        _log.info("listening to the kernel's events of devices")
        enforcer.devices_changed()

    told = ""
    while True:
        try:
            for event in uevents.listen(ready):
                _log.info("%s %s %s", event.action, event.subsystem, event.bdf or event.path)
                if event.bdf is not None and event.wedged is not None:
                    _log.warning("GPU %s: WEDGED=%s %s", event.bdf, event.wedged, event.task)
                    enforcer.health.wedged(event.bdf, event.wedged, event.task, time.time())
                enforcer.devices_changed()
        except OSError as error:
            if str(error) != told:
                told = str(error)
                _log.warning("uevents were lost, listening anew: %s", error)
            # More at once than the kernel keeps for us: they go on, and ``ready`` makes up for it.
            if error.errno != errno.ENOBUFS:
                enforcer.health.unheard(
                    "uevents", f"not heard, devices are looked at now and then only: {error}"
                )
        time.sleep(_LOOK_SECONDS)


def follow_tree(enforcer: Enforcer) -> None:
    """Pods and containers that come and go; for ever, in the thread that calls."""
    while True:
        if (watch := enforcer.watch) is None:
            time.sleep(_LOOK_SECONDS)
        elif watch.wait(_LOOK_SECONDS):
            enforcer.wake()
            # A pod comes with a handful of cgroups: one pass sees them all, or the next one does.
            time.sleep(_GATHER_SECONDS)


def follow_gate(enforcer: Enforcer) -> None:
    """What the gate tells of calls; for ever, in the thread that calls."""
    while True:
        descriptor = enforcer.events_fd
        if descriptor is None:
            time.sleep(_LOOK_SECONDS)
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(_LOOK_SECONDS * 1000):
            enforcer.wake()
            # A tenant can have itself refused thousands of times a second.
            time.sleep(_CALLS_SECONDS)


def partitionable(gpus: Iterable[Gpu]) -> bool:
    """Whether a GPU of the node can be partitioned, as far as can be read at the moment.

    The mode it is in cannot be read during a reset.
    """
    return any(gpu.compute_partition is not None or gpu.compute_partitions for gpu in gpus)


@dataclass
class _Faults:
    """Those on one GPU that are not told yet."""

    last: str = ""
    count: int = 0
    told: bool = False
    quiet_until: float = float("-inf")


class FaultLines:
    """What is logged of faults, by GPU: the first at once, then at most one line a minute."""

    def __init__(self) -> None:
        self._faults: dict[str, _Faults] = {}

    def add(self, bdf: str, text: str) -> None:
        """One more fault, in the driver's words."""
        row = self._faults.setdefault(bdf, _Faults())
        row.last = text
        row.count += 1

    def due(self, now: float) -> list[str]:
        """The lines to log at ``now`` (monotonic seconds)."""
        lines = []
        for bdf, row in self._faults.items():
            if row.count and now >= row.quiet_until:
                since = " since it was last told" if row.told else ""
                times = f"; {row.count} times{since}" if row.count > 1 else ""
                lines.append(f"GPU {bdf}: VM_FAULT {row.last}{times}")
                row.count, row.told, row.quiet_until = 0, True, now + _QUIET_SECONDS
        return lines


def _of_some(unheard: Mapping[int, OSError]) -> str:
    """A line about the GPUs, by KFD's id, of which nothing is heard; "" without one."""
    if not unheard:
        return ""
    ids = ", ".join(map(str, sorted(unheard)))
    if any(error.errno == errno.EINVAL for error in unheard.values()):
        why = (
            "the driver shows a process no GPU that came later than it; delete the enforcer's pod, "
            "the limits stay"
        )
    else:
        why = ", ".join(sorted({str(error.strerror) for error in unheard.values()}))
    return f"not heard of the GPUs with the KFD ids {ids}: {why}"


class KfdFollower:
    """A thread that listens to KFD's events of the GPUs that are there."""

    def __init__(self, enforcer: Enforcer, kfd: Path, *, on: bool, always: bool) -> None:
        """``always``: also to GPUs that can be partitioned; ``on`` False: to none."""
        self._enforcer = enforcer
        self._kfd = kfd
        self._always = always
        self._on = on
        self._partitionable = False
        self._look_due = 0.0
        self._faults = FaultLines()
        self._faults_due = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kfd-events", daemon=True)

    def start(self) -> None:
        """Begin to listen as soon as there is a GPU."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; the process is a KFD process until it ends all the same."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        told = ""
        while not self._stopping.is_set():
            self._look_for_missed_ends()
            if self._wanted():
                try:
                    with SmiListener(self._kfd) as listener:
                        self._listen(listener)
                    continue
                except OSError as error:
                    # Busy is a GPU that is being reset, and soon over or never.
                    busy = isinstance(error, BlockingIOError)
                    if str(error) != told:
                        told = str(error)
                        _log.warning("no KFD events: %s; resets and faults go unheard", error)
                    if not busy:
                        self._enforcer.health.unheard("KFD events", f"not heard: {error}")
                    self._stopping.wait(_LOOK_SECONDS if busy else _RETRY_SECONDS)
            else:
                self._enforcer.health.unheard("KFD events", "")
            self._stopping.wait(_LOOK_SECONDS)

    def _look_for_missed_ends(self) -> None:
        now = time.monotonic()
        if now >= self._look_due:
            self._look_due = now + _RESET_SECONDS
            self._enforcer.look_for_missed_ends()

    def _wanted(self) -> Mapping[int, int]:
        """The GPUs to listen to: KFD's ids, and the instance of each.

        None where one of the node can be partitioned: who listens keeps the driver from that. None
        while the driver's module comes or goes, either: KFD shows a process those GPUs alone that
        were there when it first came.
        """
        snapshot = self._enforcer.snapshot() if self._on else None
        gpus = snapshot.gpus if snapshot else ()
        self._partitionable = self._partitionable or partitionable(gpus)
        if self._partitionable and not self._always:
            return {}
        return self._enforcer.instances(gpus)

    def _listen(self, listener: SmiListener) -> None:
        """Until the GPUs are others."""
        wanted = self._wanted()
        unheard = listener.listen(wanted)
        for kfd_id, error in unheard.items():
            _log.warning("no KFD events of GPU %d: %s", kfd_id, error.strerror)
        self._enforcer.health.unheard("KFD events", _of_some(unheard))
        if listener.resets:
            _log.info("listening to the KFD events of %d GPUs", len(listener.resets))
        poll = select.poll()
        for descriptor in listener.resets:
            poll.register(descriptor, select.POLLIN)
        while self._wanted() == wanted and not self._stopping.is_set():
            for descriptor, _ in poll.poll(_FAULT_SECONDS * 1000):
                self._hear_resets(listener.read(descriptor))
            self._look_for_faults(listener)
            self._look_for_missed_ends()

    def _hear_resets(self, events: Sequence[SmiEvent]) -> None:
        bdfs = self._bdfs()
        told = [(bdfs[event.kfd_id], event) for event in events if event.kfd_id in bdfs]
        self._enforcer.health.hear(told, time.time())
        self._enforcer.wake()
        for bdf, event in told:
            _log.warning("GPU %s: %s %s", bdf, event.kind.name, event.text)

    def _look_for_faults(self, listener: SmiListener) -> None:
        """Nobody is woken for them: they are counted, and nothing follows from them."""
        now = time.monotonic()
        if now < self._faults_due:
            return
        self._faults_due = now + _FAULT_SECONDS
        bdfs = self._bdfs()
        for descriptor in listener.faults:
            events = listener.read(descriptor)
            told = [(bdfs[event.kfd_id], event) for event in events if event.kfd_id in bdfs]
            self._enforcer.health.hear(told, time.time())
            for bdf, event in told:
                self._faults.add(bdf, event.text)
        for line in self._faults.due(now):
            _log.warning("%s", line)

    def _bdfs(self) -> dict[int, str]:
        snapshot = self._enforcer.snapshot()
        return {gpu.kfd_id: gpu.bdf for gpu in (snapshot.gpus if snapshot else ())}
