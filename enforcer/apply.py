# SPDX-License-Identifier: Apache-2.0
"""The only writer: carries out actions on cgroups and on the gate's map, and reads each one back.

Nothing here is believed for having been written. On kernels up to 7.2 a write of ``dmem.max`` below
the current usage succeeds and changes nothing. It is told as not taken, what is in use is made the
limit until then, and as long as another value is read every pass writes the wanted one again.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, assert_never

from bpf.libbpf import BpfError
from enforcer.host import dmem
from enforcer.host.cgroups import (
    ControllerNames,
    CoreFiles,
    Directory,
    subtree_controllers,
    walk,
)
from enforcer.host.files import FileError, FileVanished
from enforcer.model import Why, pci_key
from enforcer.plan import (
    DeleteGate,
    DeletePending,
    DeleteUsage,
    EnableDmem,
    ForgetUsage,
    KillCgroup,
    Outcome,
    SetDmem,
    SetGate,
    SetPending,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from enforcer.plan import Action

_DMEM = "dmem"
# kernfs answers EPERM or EACCES to the creation of a file: the controller's files are not there.
_REASONS = {
    errno.ENOENT: Why.VANISHED,
    errno.ENODEV: Why.VANISHED,
    errno.EBUSY: Why.BUSY,
    errno.EACCES: Why.DENIED,
    errno.EPERM: Why.DENIED,
    errno.EROFS: Why.DENIED,
    errno.E2BIG: Why.MAP_FULL,
    errno.ENOSPC: Why.MAP_FULL,
}

_NOT_THERE = frozenset({None, Why.VANISHED, Why.NO_CONTROLLER, Why.NO_REGION})
"""What can have come of a limit that is not there any more."""


class GateMaps(Protocol):
    """The gate's maps of limits and usage. All raise BpfError, ValueError for what does not fit."""

    def limits(self) -> Mapping[tuple[int, int], int | None]: ...

    def set_limit(self, cgroup_id: int, gpu: int, limit: int | None, /) -> None: ...

    def delete_limit(self, cgroup_id: int, gpu: int, /) -> object: ...

    def set_pending(self, pod: int, gpu: int, limit: int | None, /) -> None: ...

    def delete_pending(self, pod: int, gpu: int, /) -> object: ...

    def delete_usage(self, cgroup_id: int, gpu: int, /) -> object: ...

    def forget(self, cgroup_id: int, gpu: int, /) -> object: ...


def apply(actions: Iterable[Action], gate: GateMaps | None, root: Path) -> list[Outcome]:
    """Carry out every action, whatever became of the others, on the cgroup2 tree at ``root``."""
    outcomes = [_apply(action, gate, root) for action in actions]
    return _read_back_gate(outcomes, gate)


def probe_dmem(root: Path, regions: Mapping[str, str]) -> dict[str, Why | None]:
    """Try on a scratch cgroup whether each region of ``{bdf: region}`` takes a limit.

    By GPU: None if it does, or why it does not. A region that is not tried is never claimed.
    """
    if not regions:
        return {}
    scratch = root / "ringfence-probe"
    enabled = _enable(EnableDmem(""), root)
    if enabled.why is not None:
        return dict.fromkeys(regions, enabled.why)
    try:
        # One enforcer a node, so what is there was left by one that was killed.
        scratch.mkdir(exist_ok=True)
    except OSError as error:
        return dict.fromkeys(regions, _why(error))
    try:
        # Any value would do: the group is empty.
        return {
            bdf: _set_dmem(SetDmem(scratch.name, bdf, region, 1 << 20), root).why
            for bdf, region in regions.items()
        }
    finally:
        # Whoever made a cgroup in it keeps the next probe from nothing.
        with suppress(OSError):
            scratch.rmdir()


def lift_dmem(root: Path, regions: Mapping[str, str]) -> list[str]:
    """Take every limit on ``{bdf: region}`` from the pods and containers there are.

    A line for each that stays. Nobody else limits them there.
    """
    tree = walk(root)
    paths = [pod.path for pod in tree.pods] + [one.path for one in tree.containers]
    actions = [
        SetDmem(path, bdf, region, None) for path in paths for bdf, region in regions.items()
    ]
    failed = [one for one in apply(actions, None, root) if one.why not in _NOT_THERE]
    return [*tree.problems, *(f"{one.action}: {one.detail or one.why}" for one in failed)]


def _apply(action: Action, gate: GateMaps | None, root: Path) -> Outcome:
    match action:
        case SetGate() | DeleteGate() | SetPending() | DeletePending():
            return _write_gate(action, gate)
        case DeleteUsage() | ForgetUsage():
            return _write_gate(action, gate)
        case EnableDmem():
            return _enable(action, root)
        case SetDmem():
            return _set_dmem(action, root)
        case KillCgroup():
            return _kill(action, root)
        case _:
            assert_never(action)


def _write_gate(
    action: SetGate | DeleteGate | SetPending | DeletePending | DeleteUsage | ForgetUsage,
    gate: GateMaps | None,
) -> Outcome:
    if gate is None:
        return Outcome(action, Why.NOT_LOADED)
    try:
        match action:
            case SetGate(limit):
                gate.set_limit(limit.cgroup_id, pci_key(limit.bdf), limit.vram_bytes)
            case DeleteGate(cgroup_id, gpu):
                gate.delete_limit(cgroup_id, gpu)
            case SetPending(limit):
                gate.set_pending(limit.cgroup_id, pci_key(limit.bdf), limit.vram_bytes)
            case DeletePending(cgroup_id, gpu):
                gate.delete_pending(cgroup_id, gpu)
            case DeleteUsage(cgroup_id, gpu):
                gate.delete_usage(cgroup_id, gpu)
            case ForgetUsage(cgroup_id, gpu):
                gate.forget(cgroup_id, gpu)
    except (BpfError, OSError, ValueError) as error:
        return Outcome(action, _why(error), str(error))
    return Outcome(action)


def _enable(action: EnableDmem, root: Path) -> Outcome:
    if _DMEM in (subtree_controllers(root, action.path) or ()):
        return Outcome(action)
    core = CoreFiles(Directory(root / action.path))
    try:
        core.subtree_control = ControllerNames(frozenset({_DMEM}))
    except OSError as error:
        # ENOENT is both "no such cgroup" and "the parent does not hand out dmem".
        if error.errno == errno.ENOENT and (root / action.path).is_dir():
            return Outcome(action, Why.NO_CONTROLLER, str(error))
        return Outcome(action, _why(error), str(error))
    if _DMEM not in (subtree_controllers(root, action.path) or frozenset()):
        return Outcome(action, Why.NOT_IN_PLACE)
    return Outcome(action)


def _set_dmem(action: SetDmem, root: Path) -> Outcome:
    directory = root / action.path
    try:
        # Opening for writing would try to create a file that is not there.
        dmem.maximum(directory)
        found = _written(directory, action.region, action.size)
        if action.size is not None and _above(found, action.region, action.size):
            # What is in use is taken, so that at least it does not grow.
            size = max(action.size, dmem.current(directory).get(action.region) or 0)
            if _above(found, action.region, size):
                found = _written(directory, action.region, size)
    except FileVanished as error:
        why = Why.NO_CONTROLLER if directory.is_dir() else Why.VANISHED
        return Outcome(action, why, str(error))
    except FileError as error:
        return Outcome(action, Why.REFUSED, str(error))
    except OSError as error:
        # EINVAL: the region went away with its driver.
        why = Why.NO_REGION if error.errno == errno.EINVAL else _why(error)
        return Outcome(action, why, str(error))
    if action.region not in found:
        return Outcome(action, Why.NO_REGION, f"{directory}/dmem.max: no line {action.region}")
    if found[action.region] != action.size:
        detail = f"{directory}/dmem.max: wrote {action.size}, reads {found[action.region]}"
        return Outcome(action, Why.NOT_TAKEN, detail)
    return Outcome(action)


def _written(directory: Path, region: str, size: int | None) -> Mapping[str, int | None]:
    """What ``dmem.max`` reads after a write of one region."""
    dmem.DmemFiles(Directory(directory)).max = dmem.RegionBytes(region, size)
    return dmem.maximum(directory)


def _above(found: Mapping[str, int | None], region: str, size: int) -> bool:
    """Whether a region is there and its limit, None for none, leaves more than ``size``."""
    return region in found and ((now := found[region]) is None or now > size)


def _kill(action: KillCgroup, root: Path) -> Outcome:
    """``cgroup.kill`` catches processes that fork meanwhile as well."""
    directory = root / action.path
    try:
        if directory.stat().st_ino != action.cgroup_id:
            return Outcome(action, Why.VANISHED, "another cgroup has its path")
        with (directory / "cgroup.kill").open("r+b", buffering=0) as file:
            file.write(b"1")
    except FileNotFoundError as error:
        if directory.is_dir():
            return Outcome(action, Why.REFUSED, f"{directory}/cgroup.kill: needs Linux 5.14")
        return Outcome(action, Why.VANISHED, str(error))
    except OSError as error:
        return Outcome(action, _why(error), str(error))
    return Outcome(action)


def _read_back_gate(outcomes: list[Outcome], gate: GateMaps | None) -> list[Outcome]:
    """One reading of the map judges every entry written in this round."""
    written = [
        outcome
        for outcome in outcomes
        if outcome.why is None and isinstance(outcome.action, SetGate | DeleteGate)
    ]
    if gate is None or not written:
        return outcomes
    try:
        found = gate.limits()
    except (BpfError, OSError) as error:
        why, detail = _why(error), str(error)
        return [
            Outcome(outcome.action, why, detail) if outcome in written else outcome
            for outcome in outcomes
        ]
    return [_compare(outcome, found) if outcome in written else outcome for outcome in outcomes]


def _compare(outcome: Outcome, found: Mapping[tuple[int, int], int | None]) -> Outcome:
    match outcome.action:
        case SetGate(limit) if limit.key not in found or found[limit.key] != limit.vram_bytes:
            return Outcome(outcome.action, Why.NOT_IN_PLACE, "the gate's map reads another limit")
        case DeleteGate(cgroup_id, gpu) if (cgroup_id, gpu) in found:
            return Outcome(outcome.action, Why.NOT_IN_PLACE, "the gate's map still has the entry")
        case _:
            return outcome


def _why(error: Exception) -> Why:
    return _REASONS.get(getattr(error, "errno", None) or 0, Why.REFUSED)
