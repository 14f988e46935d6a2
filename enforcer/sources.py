# SPDX-License-Identifier: Apache-2.0
"""The sources of usage compared with each other, a few pods in every pass.

Nothing is held by what is found here. It shows where a layer's count is not the whole truth, and it
is all there is of usage where neither BPF nor dmem can be had.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from audit_hook.ledger import LedgerError
from bpf.decode import LedgerUsage
from enforcer.accounting import DRIFT_BOUND, Checked, Found, compare, observe
from enforcer.activity import Activities
from enforcer.hookfiles import hooked
from enforcer.host import dmem
from enforcer.host.files import FileError, FileVanished
from enforcer.model import LedgerSource, PodCgroup, Problem, pci_key
from enforcer.observation import read_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from enforcer.accounting import LedgerRow, Observed, Processes, Readings
    from enforcer.devices import Devices
    from enforcer.hookfiles import HookFiles
    from enforcer.host.roots import Roots
    from enforcer.layers import KernelLayers
    from enforcer.model import Container, Limit, Slice

_SECONDS = 5.0
"""Between two looks at a pod, if there is time."""
_BUDGET = 0.002
"""Seconds of a pass; at one pass a second it bounds what the looking costs."""
_NOTHING = LedgerUsage(0)

_Clients = set[tuple[str, int]]
_Books = dict[tuple[str, str], dict[int, int]]


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at a pod left."""

    at: float
    checked: Mapping[tuple[int, int], Checked]
    found: Mapping[tuple[int, int], Found]
    clients: _Clients
    problems: tuple[str, ...]


class Sources:
    """What the last look at each pod found."""

    def __init__(
        self, roots: Roots, kernel: KernelLayers, devices: Devices, hook: HookFiles
    ) -> None:
        self._roots = roots
        self._kernel = kernel
        self._devices = devices
        self._hook = hook
        self._activities = Activities()
        self._looks: dict[str, _Look] = {}

    def look(
        self,
        now: float,
        root: Path,
        wanted: Sequence[Limit],
        owners: Mapping[int, Container | PodCgroup],
        held: Sequence[Slice],
        before: Readings,
    ) -> tuple[Mapping[tuple[int, int], Checked], list[str]]:
        """The state of every limit's cgroup that was looked at, and a line for each problem.

        At ``now`` (monotonic seconds) as many pods are looked at as there is time for: those with
        new containers first, then those not looked at for longest. ``before`` is what the pass has
        read.
        """
        pods: dict[str, list[Limit]] = {}
        for limit in wanted:
            pods.setdefault(_pod(owners[limit.cgroup_id]).uid, []).append(limit)
        self._looks = {uid: look for uid, look in self._looks.items() if uid in pods}
        self._activities.keep(wanted)
        gpus = {gpu.bdf: gpu for gpu in self._devices.gpus}
        end = time.monotonic() + _BUDGET
        read: dict[str, tuple[Processes, list[str]]] = {}
        for uid in self._due(now, pods):
            if read and time.monotonic() >= end:
                break
            paths = [limit.path for limit in pods[uid]]
            read[uid] = read_processes(self._roots, root, paths, self._devices.gpus)
        after = self._ledger() if read else None
        for uid, (processes, unread) in read.items():
            books = self._books((one for one in held if one.pod_uid == uid), unread)
            elsewhere: _Clients = set()
            elsewhere.update(
                *(look.clients for other, look in self._looks.items() if other != uid),
                *(_clients(found) for other, (found, _) in read.items() if other != uid),
            )
            last = self._looks.get(uid)
            checked, found = {}, {}
            for limit in pods[uid]:
                observed = observe(processes, limit.path, limit.bdf, elsewhere)
                found[limit.key] = one = _compare(
                    limit, observed, before, after, last.found.get(limit.key) if last else None
                )
                checked[limit.key] = Checked(
                    _hook(books, owners[limit.cgroup_id], pci_key(limit.bdf)),
                    observed,
                    *one.agreed,
                    self._activities.look(limit, processes, gpus.get(limit.bdf)),
                )
            self._looks[uid] = _Look(now, checked, found, _clients(processes), tuple(unread))
        known = {key: one for look in self._looks.values() for key, one in look.checked.items()}
        problems = [problem for look in self._looks.values() for problem in look.problems]
        return known, [*problems, *_findings(wanted, owners, held, known)]

    def _due(self, now: float, pods: Mapping[str, Sequence[Limit]]) -> list[str]:
        seen = {
            uid: look.at
            for uid, look in self._looks.items()
            if all(limit.key in look.checked for limit in pods[uid])
        }
        late = [uid for uid in pods if now - seen.get(uid, -math.inf) >= _SECONDS]
        return sorted(late, key=lambda uid: seen.get(uid, -math.inf))

    def _ledger(self) -> Mapping[tuple[int, int], LedgerRow] | None:
        if self._kernel.ledger is LedgerSource.NONE:
            return None
        try:
            return self._kernel.read()[1]
        except OSError:
            return None  # said by the pass

    def _books(self, slices: Iterable[Slice], problems: list[str]) -> _Books:
        books = {}
        for one in filter(hooked, slices):
            try:
                used = self._hook.used(one)
            except LedgerError as error:
                what = f"hook of container {one.container} of {one.namespace}/{one.pod}"
                problems.append(Problem(what, f"{what}: {error}"))
                continue
            except ValueError:
                continue  # said when its files could not be written
            if used is not None:
                books[one.key] = used
        return books


def charged(
    root: Path, wanted: Iterable[Limit], regions: Mapping[str, str], problems: list[str]
) -> dict[tuple[str, str], int]:
    """``dmem.current`` by (cgroup path, BDF); ``problems`` gets a line for what is unreadable."""
    found: dict[tuple[str, str], int] = {}
    if not regions:
        return found
    for path in sorted({limit.path for limit in wanted}):
        try:
            lines = dmem.current(root / path)
        except FileVanished:
            continue
        except FileError as error:
            problems.append(str(error))
            continue
        found.update(
            ((path, bdf), size)
            for bdf, region in regions.items()
            if (size := lines.get(region)) is not None
        )
    return found


def _pod(owner: Container | PodCgroup) -> PodCgroup:
    return owner if isinstance(owner, PodCgroup) else owner.pod


def _clients(processes: Processes) -> _Clients:
    return {
        (client.bdf, client.client) for clients in processes.clients.values() for client in clients
    }


def _compare(
    limit: Limit,
    observed: Observed,
    before: Readings,
    after: Mapping[tuple[int, int], LedgerRow] | None,
    last: Found | None,
) -> Found:
    if before.ledger is None or after is None:
        return Found()
    return (last or Found()).then(
        *compare(
            before.ledger.get(limit.key, _NOTHING),
            after.get(limit.key, _NOTHING),
            observed,
            before.charged.get((limit.path, limit.bdf)),
        )
    )


def _hook(books: _Books, owner: Container | PodCgroup, gpu: int) -> int | None:
    if isinstance(owner, PodCgroup):
        sizes = [used[gpu] for (uid, _), used in books.items() if uid == owner.uid and gpu in used]
        return sum(sizes) if sizes else None
    return books.get((owner.pod.uid, owner.name or ""), {}).get(gpu)


def _findings(
    wanted: Iterable[Limit],
    owners: Mapping[int, Container | PodCgroup],
    held: Iterable[Slice],
    checked: Mapping[tuple[int, int], Checked],
) -> Iterator[str]:
    """Lines for people: whole MiB, so that they do not change with every page."""
    pods = {one.pod_uid: f"{one.namespace}/{one.pod}" for one in held}
    for limit in wanted:
        owner, found = owners[limit.cgroup_id], checked.get(limit.key)
        if found is None:
            continue
        who = (
            f"pod {pods[owner.uid]}"
            if isinstance(owner, PodCgroup)
            else f"container {owner.name or owner.id} of {pods[owner.pod.uid]}"
        )
        if found.drift:
            yield Problem(
                f"{who} on {limit.bdf}: drift",
                f"{who} on {limit.bdf}: the kernel counts {found.drift >> 20} MiB of VRAM more "
                "than the ledger; the gate cannot hold what is not in its books",
            )
        if found.escaped is not None and found.escaped > DRIFT_BOUND:
            yield Problem(
                f"{who} on {limit.bdf}: escaped",
                f"{who} on {limit.bdf}: dmem does not charge {found.escaped >> 20} MiB of VRAM "
                "that it holds, brought back by the driver after an eviction or older than its "
                "dmem.max; only the gate holds it to its slice",
            )
