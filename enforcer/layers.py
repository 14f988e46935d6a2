# SPDX-License-Identifier: Apache-2.0
"""The gate and the ledger as the daemon holds them: loaded, proven, and their maps open."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from bpf import decode, loader
from bpf.libbpf import BpfError, unpreempted
from enforcer.host.driver import builtin_majors
from enforcer.host.files import FileError
from enforcer.model import Layer, LayerState, LedgerSource, Why, pci_bdf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from bpf.decode import Event, LedgerUsage

_log = logging.getLogger(__name__)

_DRIVER = "module/amdgpu"
_BTF = "kernel/btf/vmlinux"
_SOME_HELPER = b"\0BPF_FUNC_map_lookup_elem\0"
_NEWEST_HELPER = b"\0BPF_FUNC_get_func_ret\0"
"""The newest that both kinds of ledger call: in Linux 5.17, or ported back."""

_RETRY_SECONDS = 20.0
_MOST_RETRY_SECONDS = 3600.0
_UNTOLD_SECONDS = 60.0
"""For a call to come to its end, whose event was lost at its beginning."""
_RETRY_SHARE = 0.01
"""Of a CPU: what verifies the programs first, and then cannot attach them, takes seconds."""


class KernelLayers:
    """Loads both BPF objects. What does not load is a state with a reason, never an exception.

    The limits already in the pinned maps hold before, during and after.
    """

    def __init__(
        self,
        objects: Path,
        bpffs: Path,
        sys: Path,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
        loading: Callable[[], object] = bool,
    ) -> None:
        """``objects``: where the two .bpf.o lie; ``bpffs``: where to pin; ``sys``: the host's.

        ``clock`` gives seconds, and ``worked`` those that a CPU worked for this thread. ``loading``
        is told before programs are loaded, which can take minutes.
        """
        self._objects = objects
        self._pins = bpffs / str(decode.SCHEMA)
        self._sys = sys
        self._clock = clock
        self._worked = worked
        self._loading = loading
        self._gate_due = math.inf
        """When to load the gate once more."""
        self._gate_failed = ""
        self._gate_pause = _RETRY_SECONDS
        """The shortest before the next try; longer each time that it fails as it did before."""
        self._policy: decode.Policy | None = None
        self._gate: loader.Gate | None = None
        self._ledger: loader.Ledger | None = None
        self.maps: loader.Maps | None = None
        self.gate_off: Why | None = Why.NOT_LOADED
        self.ledger = LedgerSource.NONE
        """What is acting of ours; NONE where the BPF ledger is not."""
        self.problems: dict[str, str] = {}
        """Part -> one line: why it is not there."""

        self.events_fd: int | None = None
        """Readable when the gate has something to tell; None until ``events`` was asked once."""

        self.map_fill: tuple[tuple[str, int, int], ...] = ()
        """(map, entries, entries it can hold) when last counted."""

        self._dropped: int | None = None
        """Events that had found no room when ``untold`` was last asked; None: it never was."""
        self._untold_until = -math.inf

    @property
    def gate(self) -> LayerState:
        return LayerState(Layer.GATE, self.gate_off)

    def load_gate(self) -> None:
        """Attach the gate, or take over from the one that is attached, and prove it.

        A predecessor's ledger goes first: it may not follow all that this gate lets pass, while
        this ledger follows what any gate does.
        """
        self._loading()
        began = self._worked()
        self._gate_due = math.inf
        if self.ledger is LedgerSource.NONE and self._predecessor():
            self._load_ledger()
        try:
            gate = loader.load_gate(self._objects / "gate.bpf.o", self._pins, keep=True)
            proven = gate.self_test()
            self._open_maps()
        except (BpfError, OSError) as error:
            self.problems["gate"] = f"gate not loaded: {error}"
            self.gate_off = Why.NOT_POSSIBLE if never_possible(self._sys) else Why.NOT_LOADED
            self._keep_predecessor()
        else:
            self._gate = gate
            self.problems.pop("gate", None)
            self.gate_off = None if proven else Why.NOT_PROVEN
            _log_left_out("gate", gate.attached)
        self._apply_policy()
        if self.gate_off in (Why.NOT_LOADED, Why.NOT_PROVEN):
            self._gate_due = self._clock() + self._pause(self._worked() - began)

    def retry_gate(self) -> None:
        """Load a gate that could not be loaded, now and then: what it lacked may be there by now.

        Seldom where that takes long.
        """
        if self._clock() < self._gate_due:
            return
        self.load_gate()
        if self.gate_off is None:
            _log.info("gate on: what it lacked is there")

    def _pause(self, worked: float) -> float:
        failed = f"{self.gate_off}: {self.problems.get('gate', '')}"
        again = failed == self._gate_failed
        self._gate_failed = failed
        self._gate_pause = self._gate_pause * 2 if again else _RETRY_SECONDS
        return min(max(self._gate_pause, worked / _RETRY_SHARE), _MOST_RETRY_SECONDS)

    def switch_off(self) -> None:
        """Use no gate, nor leave a predecessor's acting on limits nobody keeps up to date."""
        self.gate_off = Why.SWITCHED_OFF
        try:
            loader.unload(self._pins)
        except (BpfError, OSError) as error:
            self.problems["gate"] = f"gate cannot be removed: {error}"

    def attach(self) -> None:
        """Attach what waits for the driver: the ledger, and a gate that had to go without it."""
        if self.maps is None or (self.ledger is not LedgerSource.NONE and self._ledger_acts()):
            return
        self.ledger = LedgerSource.NONE
        if not self._load_ledger():
            self._go_without_ledger()
        elif self.gate_off is Why.NO_LEDGER:
            self.load_gate()

    def let_go(self) -> None:
        """Let the driver's module be unloaded: it has no GPU any more that a buffer could be on.

        What the ledger is attached to cannot be unloaded. Until it is attached again, the gate
        refuses its tenants.
        """
        if self._ledger is None or self.maps is None:
            return
        try:
            # A call that no buffer is known for is not waited for: no GPU is left to show that
            # nothing came of it, so the entry outlasts the driver.
            if any(one.followed for _, one in self.maps.buffers()):
                return
            self._ledger.detach()
        except (BpfError, OSError) as error:
            self.problems["ledger"] = f"ledger cannot be detached: {error}"
            return
        self._ledger = None
        self.ledger = LedgerSource.NONE
        _log.info("no GPU is left: the ledger has let go of the driver")

    def read(
        self,
    ) -> tuple[Mapping[tuple[int, int], int | None] | None, Mapping[tuple[int, int], LedgerUsage]]:
        """Limits and usage by (cgroup id, GPU); limits None without a gate. Raises OSError."""
        if self.maps is None:
            return None, {}
        try:
            return self.maps.limits(), self.maps.usage()
        except BpfError as error:
            raise OSError(str(error)) from error

    def owners(self) -> set[tuple[int, ...]]:
        """The cgroups charged for a buffer, outermost first; none where they are unreadable."""
        if self.maps is None:
            return set()
        try:
            return {one.cgroups for _, one in self.maps.buffers() if one.cgroups}
        except BpfError:
            return set()

    def unfollowed(self) -> Mapping[tuple[int, int], int]:
        """Bytes charged for calls without an end, by (innermost cgroup's id, GPU)."""
        if self.maps is None:
            return {}
        try:
            lost = {at: one for at, one in self.maps.buffers() if not one.followed and one.cgroups}
        except BpfError:
            return {}
        sizes: dict[tuple[int, int], int] = {}
        for one in lost.values():
            key = (one.cgroups[-1], one.gpu)
            sizes[key] = sizes.get(key, 0) + one.size
        return sizes

    def follows_queues(self) -> bool:
        """Whether the ledger knows of compute queues and their masks."""
        try:
            return self.maps is not None and self.maps.follows_queues()
        except (BpfError, OSError):
            return False

    def pending(self) -> Mapping[tuple[int, int], int | None]:
        """The limits for new containers by (pod's cgroup id, GPU); none where unreadable."""
        if self.maps is None:
            return {}
        try:
            return self.maps.pending()
        except (BpfError, OSError):
            return {}

    def keep_cu_masks(
        self,
        wanted: Mapping[tuple[int, int], int],
        live: Collection[int] | None,
        *,
        enforced: bool,
    ) -> None:
        """The compute units of containers, by (cgroup id, GPU), as CU masks are to be held to.

        As a limit, a mask ends with its cgroup and not with its slice. ``live`` are the cgroups
        that are there; None after an incomplete walk.
        """
        if self.maps is None:
            return
        problems = []
        try:
            before = self.maps.cu_masks()
            for cgroup, gpu in before:
                if live is not None and cgroup not in live:
                    self.maps.delete_cu_mask(cgroup, gpu)
            for (cgroup, gpu), cus in wanted.items():
                mask = decode.CuMask(cus, enforced)
                if before.get((cgroup, gpu)) == mask:
                    continue
                try:
                    self.maps.set_cu_mask(cgroup, gpu, mask)
                except ValueError as error:
                    problems.append(f"cgroup {cgroup} on {pci_bdf(gpu)}: {error}")
        except (BpfError, OSError) as error:
            problems.append(str(error))
        if problems:
            self.problems["cu_masks"] = f"compute units are not held: {'; '.join(problems)}"
        else:
            self.problems.pop("cu_masks", None)

    def counters(self) -> tuple[tuple[str, int], ...]:
        """The BPF programs' counters by name; none where they cannot be read."""
        if self.maps is None:
            return ()
        try:
            return tuple(sorted(self.maps.counters().items()))
        except (BpfError, OSError):
            return ()

    def untold(self) -> frozenset[int]:
        """Cgroups that have ever overrun, if an event of it may have been lost lately.

        One that a predecessor read is lost with what it remembered, and one that found no room.
        That comes before what it tells of: before the mark, and before the buffer in what was read.
        Empty where none can be lost, or the maps cannot be read.
        """
        if self.maps is None:
            return frozenset()
        try:
            dropped = self.maps.counters()["events_dropped"]
            if dropped != self._dropped:
                self._dropped, self._untold_until = dropped, self._clock() + _UNTOLD_SECONDS
            return self.maps.overran() if self._clock() < self._untold_until else frozenset()
        except (BpfError, OSError):
            return frozenset()

    def set_policy(self, policy: decode.Policy) -> None:
        """Tell the programs what to do about what they cannot simply measure, also later ones."""
        self._policy = policy
        self._apply_policy()

    def _apply_policy(self) -> None:
        if self.maps is None or self._policy is None:
            return
        try:
            self.maps.set_policy(self._policy)
        except (BpfError, OSError) as error:
            self.problems["policy"] = f"the gate's policy cannot be set: {error}"
        else:
            self.problems.pop("policy", None)

    def events(self) -> list[Event]:
        """What the gate told since the last call; nothing where it cannot be read."""
        if self.maps is None:
            return []
        try:
            events = self.maps.events()
            self.events_fd = self.maps.events_fileno()
        except (BpfError, OSError, ValueError) as error:
            self.problems["events"] = f"the gate's events cannot be read: {error}"
            return []
        self.problems.pop("events", None)
        return events

    def count_entries(self) -> None:
        """Bring ``map_fill`` up to date."""
        if self.maps is None:
            return
        try:
            fill = self.maps.fill()
        except (BpfError, OSError) as error:
            self.problems["fill"] = f"entries of the gate's maps cannot be counted: {error}"
            return
        self.problems.pop("fill", None)
        self.map_fill = tuple((name, used, most) for name, (used, most) in sorted(fill.items()))

    def set_gpus(self, by_kfd_id: Mapping[int, int], by_minor: Mapping[int, int]) -> None:
        """Tell the gate which GPU an ioctl is about."""
        if self.maps is None:
            return
        try:
            self.maps.set_builtin_majors(builtin_majors(self._sys))
            self.maps.set_gpus(by_kfd_id, by_minor)
            self.problems.pop("gpus", None)
        except (BpfError, OSError, FileError) as error:
            self.problems["gpus"] = f"gate does not know the GPUs: {error}"

    def close(self) -> None:
        """Let go of the maps; programs and limits stay in force."""
        if self.maps is not None:
            self.maps.close()
            self.maps = None

    def _open_maps(self) -> None:
        """Anew, as a predecessor's lack what came later."""
        self.close()
        self.events_fd = None
        self.maps = loader.open_maps(self._pins)

    def _keep_predecessor(self) -> None:
        """A predecessor's gate goes on acting; its maps can still be kept up to date."""
        if self.maps is None:
            with suppress(BpfError, OSError):
                self.maps = loader.open_maps(self._pins)

    def _predecessor(self) -> bool:
        """Whether a ledger is attached that an earlier process loaded."""
        return any(self._pins.glob("*/ledger_*"))

    def _load_ledger(self) -> bool:
        self._loading()
        try:
            ledger = loader.load_ledger(self._objects / "ledger.bpf.o", self._pins, keep=True)
        except (BpfError, OSError) as error:
            self.problems["ledger"] = f"ledger not loaded: {error}"
            return False
        self.problems.pop("ledger", None)
        self.ledger = ledger_source(by_probes=ledger.by_probes)
        self._ledger = ledger
        _log_left_out("ledger", ledger.attached)
        if ledger.by_probes:
            _log_preemption()
        return True

    def _ledger_acts(self) -> bool:
        """False where the driver was unloaded from under a ledger that does not hold its module."""
        try:
            return self.maps is not None and self.maps.ledger_acts()
        except (BpfError, OSError):
            return True

    def _go_without_ledger(self) -> None:
        """The gate refuses everything to limited callers while no ledger gives anything back.

        That is right until the driver is there, and for ever wrong with a driver the ledger cannot
        be attached to: dmem has to do alone then.
        """
        if self._predecessor() and self._ledger_acts():
            by_probes = loader.followed_by_probes(self._pins)
            self.ledger = ledger_source(by_probes=by_probes)  # a predecessor's goes on
            return
        if self._gate is None or not (self._sys / _DRIVER).is_dir():
            return
        try:
            self._gate.detach()
        except (BpfError, OSError) as error:
            self.problems["gate"] = f"gate cannot be detached: {error}"
            return
        self._gate = None
        self.gate_off = Why.NOT_POSSIBLE if never_possible(self._sys) else Why.NO_LEDGER


def ledger_source(*, by_probes: bool) -> LedgerSource:
    """What a BPF ledger that acts is called."""
    return LedgerSource.BO_PROBES if by_probes else LedgerSource.BO


def never_possible(sys: Path) -> bool:
    """Whether the kernel itself says that it cannot run the gate and a ledger.

    It has no type information, or the helpers listed in it lack one. False where that is not known.
    """
    try:
        types = (sys / _BTF).read_bytes()
    except FileNotFoundError:
        return (sys / "kernel").is_dir()
    except OSError:
        return False
    return _SOME_HELPER in types and _NEWEST_HELPER not in types


def _log_left_out(part: str, attached: Mapping[str, str | None]) -> None:
    for program, reason in attached.items():
        if reason is not None:
            _log.warning("%s goes without its program %s: %s", part, program, reason)


def _log_preemption() -> None:
    with unpreempted() as ours:
        if not ours:
            _log.warning(
                "the ledger goes by kprobes, and without CAP_SYS_NICE it may miss a buffer while "
                "its maps are read; what it missed stays charged until the container is empty"
            )


def unload(bpffs: Path) -> None:
    """Remove every program, map and pin; limits held by dmem stay. Raises BpfError or OSError."""
    loader.unload(bpffs / str(decode.SCHEMA))
