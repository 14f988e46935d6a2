# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU is fit to be used, from what the kernel tells of it.

A reset that begins makes a GPU unhealthy until it is told that it ended: a reset that fails is told
by nobody. An end can be missed, too, by an enforcer that was not there to hear it. A fault in a
process's address space is the process's own, and only counted.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from enforcer.host.smi import SmiKind
from enforcer.model import GpuHealth, pci_bdf, pci_key
from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from enforcer.host.smi import SmiEvent

_log = logging.getLogger(__name__)

GONE = "not there any more"
"""Why a GPU is not healthy that the driver does not have any more."""

_RECOVERED = "none"
"""``WEDGED=`` of a GPU that needs nothing: the driver has reset it."""
_LONGEST = 200
_PID_DIGITS = 8
_RESET_SECONDS = 10.0
_GONE_SECONDS = 3600.0
"""Long enough to be told of one that nobody took out, and to reload the driver."""


@dataclass(frozen=True, slots=True)
class _State:
    """What was told of one GPU. ``instance`` is another one after the driver bound it anew."""

    instance: int
    since: float
    resetting: frozenset[int] = frozenset()
    """The KFD nodes whose reset began and did not end."""
    began: float = 0.0
    """When the last of them was told."""
    cause: str = ""
    wedged: str = ""
    gone: bool = False
    given_up: bool = False
    """Gone, and waited for by nobody: of no interest unless it comes back as it was."""
    last_reset: float | None = None
    vm_faults: int = 0
    last_fault: str = ""

    @property
    def reason(self) -> str:
        if self.gone:
            return GONE
        if self.wedged:
            return f"wedged: the driver asks for {self.wedged}"
        return f"being reset: {self.cause}" if self.resetting else ""


class Health:
    """The health of the node's GPUs, by PCI address. Every method may be called from any thread.

    Times are Unix seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._unheard: dict[str, str] = {}

    @property
    def rows(self) -> tuple[GpuHealth, ...]:
        """Every GPU that is there or waited for, by PCI address."""
        with self._lock:
            return tuple(
                GpuHealth(
                    bdf=bdf,
                    healthy=not state.reason,
                    reason=state.reason,
                    since=state.since,
                    last_reset=state.last_reset,
                    vm_faults=state.vm_faults,
                    last_fault=state.last_fault,
                )
                for bdf, state in sorted(self._states.items())
                if not state.given_up
            )

    def unheard(self, source: str, why: str) -> None:
        """What the kernel tells by ``source`` is not heard at the moment; "" is heard."""
        with self._lock:
            self._unheard = {**self._unheard, source: why}

    @property
    def problems(self) -> list[str]:
        """A line for each source that is not heard."""
        return [f"{source}: {why}" for source, why in sorted(self._unheard.items()) if why]

    def see(self, instances: Mapping[str, int], now: float) -> None:
        """The GPUs that are there, each with the number of its instance.

        One that the driver let go of and took again starts anew: that is what is asked for where a
        reset does not help.
        """
        with self._lock:
            for bdf, instance in instances.items():
                state = self._states.get(bdf)
                if state is None or state.instance != instance:
                    self._states[bdf] = _State(instance, now)
                elif state.gone:
                    self._set(bdf, replace(state, gone=False, given_up=False), now)
            for bdf in self._states.keys() - instances.keys():
                self._set(bdf, replace(self._states[bdf], gone=True), now)

    def give_up(self, named: Collection[str], now: float) -> None:
        """Say no more of GPUs that are long gone, but of those that slices name (``named``)."""
        with self._lock:
            for bdf, state in self._states.items():
                if bdf in named and state.given_up:
                    self._states[bdf] = replace(state, given_up=False)
                elif (
                    state.gone
                    and not state.given_up
                    and bdf not in named
                    and now - state.since >= _GONE_SECONDS
                ):
                    _log.info("GPU %s: gone, and no slice names it: no longer unhealthy", bdf)
                    self._states[bdf] = replace(state, given_up=True)

    def wedged(self, bdf: str, method: str, task: str, now: float) -> None:
        """The driver tells by uevent that a GPU hung, and what helps; ``task`` was to blame.

        That it was reset ends no reset that KFD told of: KFD tells of its end, too, and the uevent
        of a former one can come after the beginning of the next.
        """
        with self._lock:
            state = self._states.get(bdf)
            if state is None:
                return
            if method == _RECOVERED:
                state = replace(state, wedged="", last_reset=now)
            else:
                by = f" (by {task})" if task else ""
                state = replace(state, wedged=_short(f"{method}{by}"))
            self._set(bdf, state, now)

    def hear(self, events: Iterable[tuple[str, SmiEvent]], now: float) -> None:
        """KFD tells something of nodes of GPUs, in its order: seen by nobody half-way."""
        with self._lock:
            for bdf, event in events:
                self._hear(bdf, event, now)

    def _hear(self, bdf: str, event: SmiEvent, now: float) -> None:
        if (state := self._states.get(bdf)) is not None:
            match event.kind:
                case SmiKind.VM_FAULT:
                    pid, _, task = event.text.partition(":")
                    fault = f"{task}[{int(pid, 16)}]" if _is_hexadecimal(pid) else event.text
                    state = replace(state, vm_faults=state.vm_faults + 1, last_fault=_short(fault))
                case SmiKind.PRE_RESET:
                    _, _, cause = event.text.partition(" ")
                    state = replace(
                        state,
                        resetting=state.resetting | {event.kfd_id},
                        began=now,
                        cause=_short(cause) or "no cause told",
                    )
                case SmiKind.POST_RESET:
                    left = state.resetting - {event.kfd_id}
                    state = replace(state, resetting=left)
                    if not left:
                        state = replace(state, wedged="", last_reset=now)
            self._set(bdf, state, now)

    def overdue(self, now: float) -> tuple[str, ...]:
        """The GPUs whose reset began so long ago that its end was missed, or will not come."""
        with self._lock:
            return tuple(
                bdf
                for bdf, state in sorted(self._states.items())
                # Or began after now: the clock was put back.
                if state.resetting and not 0 <= now - state.began < _RESET_SECONDS
            )

    def reset_ended(self, bdf: str, asked: float, now: float) -> bool:
        """KFD was asked at ``asked`` and let a process in, so the end of a reset was missed.

        False if it began since, and may go on.
        """
        with self._lock:
            state = self._states[bdf]
            if asked <= state.began <= now:
                return False
            self._set(bdf, replace(state, resetting=frozenset(), last_reset=now), now)
            return True

    def encode(self) -> str:
        """What a successor must know: the GPUs that are not healthy."""
        with self._lock:
            ill = {
                bdf: {
                    "instance": state.instance,
                    "since": state.since,
                    "resetting": sorted(state.resetting),
                    "cause": state.cause,
                    "wedged": state.wedged,
                }
                for bdf, state in sorted(self._states.items())
                if state.reason and not state.gone
            }
        return json.dumps({"ill": ill})

    def decode(self, text: str) -> None:
        """Take over from a predecessor. Raises ValueError for what ``encode`` did not write."""
        try:
            states = {
                pci_bdf(pci_key(bdf)): _State(
                    instance=int(one["instance"]),
                    since=_finite(one["since"]),
                    began=_finite(one["since"]),
                    resetting=frozenset(int(kfd_id) for kfd_id in one["resetting"]),
                    cause=_short(one["cause"]),
                    wedged=_short(one["wedged"]),
                )
                for bdf, one in json.loads(text)["ill"].items()
            }
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"expected the health of GPUs, found {error!r}") from None
        with self._lock:
            self._states = states

    def _set(self, bdf: str, state: _State, now: float) -> None:
        changed = state.reason != self._states[bdf].reason
        self._states[bdf] = replace(state, since=now) if changed else state


class HealthFile:
    """Where a successor finds the GPUs that are not healthy.

    It lies in a directory that a reboot empties, as it ends the GPUs' ailments.
    """

    def __init__(self, path: Path, health: Health) -> None:
        self._path = path
        self._health = health
        self._written = health.encode()
        self._trouble = ""

    def read(self) -> None:
        """Take over from a predecessor, if there was one."""
        try:
            self._health.decode(self._path.read_text())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            _log.warning("%s: %s; every GPU counts as healthy", self._path, error)
        self._written = self._health.encode()

    def write(self) -> None:
        """Bring the file up to date; what cannot be written is tried again the next time."""
        text = self._health.encode()
        if text == self._written:
            return
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            new.write_text(text)
            new.replace(self._path)
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("%s: %s; a new enforcer will not know", self._path, error.strerror)
            return
        self._written, self._trouble = text, ""


def _finite(number: object) -> float:
    """JSON as Python reads it has NaN and Infinity."""
    value = float(number)  # type: ignore[arg-type]  # what is none raises
    if not math.isfinite(value):
        raise ValueError(f"expected Unix seconds, found {value}")
    return value


def _is_hexadecimal(text: str) -> bool:
    return 0 < len(text) <= _PID_DIGITS and all(char in "0123456789abcdefABCDEF" for char in text)


def _short(text: str) -> str:
    return printable(text.strip())[:_LONGEST]
