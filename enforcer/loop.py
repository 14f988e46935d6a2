# SPDX-License-Identifier: Apache-2.0
"""The enforcer's loop: facts, plan, apply, account, from the whole state, every pass.

One thread reads and writes the node; everybody else sees the last pass only.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from enforcer.accounting import Readings, container_usage
from enforcer.api.errors import NotFoundError, UntoldError
from enforcer.apply import apply
from enforcer.corrections import Corrections
from enforcer.devices import Devices
from enforcer.health import Health, HealthFile
from enforcer.hookfiles import HookFiles, held_by_kernel, hooked
from enforcer.host import cgroups, dmem, runtime
from enforcer.host.event import SignalSafeEvent
from enforcer.host.files import FileError, FileVanished
from enforcer.host.watch import Watch
from enforcer.images import ImageError, Images, NoImageError
from enforcer.incidents import Incidents
from enforcer.limits import cu_masks, gpu_shares, limits, pending_limits, pods_by_cgroup
from enforcer.model import (
    HostSupport,
    Layer,
    LayerState,
    LedgerSource,
    PodCgroup,
    Problem,
    Snapshot,
    Why,
    about,
    pci_bdf,
)
from enforcer.orphans import Orphans, of_no_pod
from enforcer.overruns import Overruns
from enforcer.plan import Actual, KillCgroup, ancestors, plan, protections
from enforcer.printable import MOST_PROBLEMS, problem_lines
from enforcer.slices import Checkpoint
from enforcer.sources import Sources, charged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from enforcer.accounting import LedgerRow
    from enforcer.host.apart import Apart
    from enforcer.host.roots import Roots
    from enforcer.incidents import GateEvent
    from enforcer.layers import KernelLayers
    from enforcer.model import (
        Container,
        ContainerUsage,
        DeviceTest,
        Gpu,
        ImageLibc,
        Incident,
        Limit,
        Protection,
        Slice,
    )
    from enforcer.plan import Action, Outcome

_log = logging.getLogger(__name__)

_POD_CGROUP_POLL = 0.1
_KFD_SECONDS = 5.0
_WATCH_SECONDS = 60.0
"""Between two tries to be told of new cgroups where inotify has no instance left."""
_ILL = "health.json"


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass leaves for others to see."""

    number: int
    slices: Mapping[tuple[str, str], Slice]
    limits: Sequence[Limit]
    owners: Mapping[int, Container | PodCgroup]
    protections: Mapping[tuple[int, int], Protection]
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class _Found:
    """The cgroups a pass works on. ``root`` None: this host has no cgroup2 tree."""

    root: Path | None
    tree: cgroups.Tree
    containers: tuple[Container, ...]

    @property
    def owners(self) -> dict[int, Container | PodCgroup]:
        owners: dict[int, Container | PodCgroup] = {pod.cgroup_id: pod for pod in self.tree.pods}
        owners.update((container.cgroup_id, container) for container in self.containers)
        return owners

    @property
    def live(self) -> dict[int, int] | None:
        if self.root is None or self.tree.problems:
            return None
        return pods_by_cgroup(self.tree.pods, self.tree.containers)


class Enforcer:
    """The loop and what it remembers between passes. ``run_pass`` belongs to one thread."""

    def __init__(
        self,
        roots: Roots,
        checkpoint: Path,
        kernel: KernelLayers,
        *,
        use_dmem: bool = True,
        kill: bool = True,
        hold_cus: bool = False,
        apart: Apart | None = None,
    ) -> None:
        """``kill`` False: a container above its limit by switched arguments is only reported.

        ``hold_cus``: CU masks beyond a container's slice are refused; False: counted.
        """
        self._roots = roots
        self._checkpoint = Checkpoint(checkpoint)
        self._kernel = kernel
        self._devices = Devices(roots, kernel, use_dmem=use_dmem, apart=apart)
        self._hook = HookFiles(roots.run / "ringfence")
        self._sources = Sources(roots, kernel, self._devices, self._hook)
        self._incidents = Incidents()
        self._overruns = Overruns(kill=kill)
        self._hold_cus = hold_cus
        self._corrections = Corrections()
        self._orphans = Orphans()
        self.watch = _watch()
        """Tells when a pod or container comes or goes; None while the kernel does not."""
        self._watch_due = time.monotonic() + _WATCH_SECONDS
        self._images = Images(roots, apart)
        self.health = Health()
        """What is told of the GPUs goes here, from any thread."""
        self._ill = HealthFile(roots.run / "ringfence" / _ILL, self.health)
        self._ill.read()
        self._records: dict[str, runtime.ContainerRecord] = {}
        self._reported: Mapping[str, str] = {}
        self._mistake = ""
        self._changed = threading.Condition()
        self._asked = 0
        self._passed: _Pass | None = None
        self._wake = SignalSafeEvent()
        self._stopping = False

    def devices_changed(self) -> None:
        """Look at the devices again, now. From any thread."""
        self._devices.changed()
        self._wake.set()

    @property
    def events_fd(self) -> int | None:
        """Readable when the gate has something to tell; None while it is not known."""
        return self._kernel.events_fd

    def wake(self) -> None:
        """Let the next pass begin now. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End ``run`` after the pass under way; every limit stays in force.

        From any thread, and from the handler of a signal.
        """
        self._stopping = True
        self._wake.set()

    def run(self, interval: float, passed: Callable[[bool], object] = bool) -> None:
        """Pass after pass until ``stop``, ``interval`` seconds apart unless woken.

        ``passed`` is told after each whether it succeeded.
        """
        while not self._stopping:
            self._wake.clear()
            passed(self.try_pass() is not None)
            self._wake.wait(self._overruns.wait(interval))

    def try_pass(self) -> Snapshot | None:
        """One pass; None, and the reason in the log, if something nobody thought of stopped it.

        What is in the kernel holds, and the next pass starts from the whole state again.
        """
        try:
            passed = self.run_pass()
        except Exception as error:
            # Where, as there can be a number in the message.
            mistake = str(traceback.extract_tb(error.__traceback__)[-1:])
            if mistake != self._mistake:
                self._mistake = mistake
                _log.exception(
                    "a pass failed: limits stay in force, but new containers wait until one "
                    "succeeds; report it with what follows"
                )
            return None
        if self._mistake:
            self._mistake = ""
            _log.info("a pass succeeded again")
        return passed

    def snapshot(self) -> Snapshot | None:
        """The last pass; None before the first."""
        passed = self._passed
        return None if passed is None else passed.snapshot

    def instances(self, gpus: Iterable[Gpu]) -> Mapping[int, int]:
        """The instance of each of these GPUs by KFD's id; none while the driver comes or goes."""
        if not self._devices.settled:
            return {}
        known = self._devices.instances
        return {gpu.kfd_id: known[gpu.bdf] for gpu in gpus if gpu.bdf in known}

    def look_for_missed_ends(self) -> None:
        """See whether resets that take long are over; from one thread, which may have to wait.

        KFD is locked from the beginning of a reset until it has succeeded.
        """
        asked = time.time()
        overdue = self.health.overdue(asked)
        if not overdue:
            return
        try:
            kfd_opens = self._devices.test((), _KFD_SECONDS, nodes=False)[0].usable
        except UntoldError:
            return
        for bdf in overdue if kfd_opens else ():
            if self.health.reset_ended(bdf, asked, time.time()):
                _log.info("GPU %s: KFD is open again, so its reset is over", bdf)
                self.wake()

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        """Open ``/dev/kfd`` and the render nodes of some GPUs, or of all, as the local API.

        Raises NotFoundError for a GPU that is not there, UntoldError if nothing could be tried.
        """
        if missing := set(bdfs) - {gpu.bdf for gpu in self._devices.gpus}:
            raise NotFoundError(f"no GPU {', '.join(sorted(missing))} on this node")
        return self._devices.test(bdfs, wait)

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        """What the C library of a container's image means for the hook, as the local API.

        ``image`` is its name in the pod, where the container is not there yet. Raises NotFoundError
        for a container or an image that is not there, UntoldError if it cannot be looked into.
        """
        if image:
            try:
                return self._images.stored_libc(image, wait)
            except NoImageError as error:
                raise NotFoundError(str(error)) from None
            except ImageError as error:
                raise UntoldError(str(error)) from None
        passed = self._passed
        owners = passed.owners.values() if passed is not None else ()
        found = [
            owner
            for owner in owners
            if not isinstance(owner, PodCgroup)
            and owner.pod.uid == pod_uid
            and owner.name == container
        ]
        try:
            if not found:
                raise NotFoundError(f"no container {container!r} of pod {pod_uid} is there")
            root = cgroups.cgroup2_root(self._roots.cgroup)
            return self._images.libc(found[-1], root / found[-1].path, wait)
        except (ImageError, cgroups.NoCgroup2Error) as error:
            raise UntoldError(str(error)) from None

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        """Hold the pod-level limit of a container's slice, as the local API's Prepare.

        Waits up to ``wait`` seconds for the pod's cgroup, which kubelet makes before it asks.
        Raises NotFoundError, and TimeoutError if no pass came to an end.
        """
        deadline = time.monotonic() + wait
        while True:
            passed = self._fresh_pass(deadline)
            one = passed.slices.get((pod_uid, container))
            if one is None:
                path = str(self._checkpoint.path)
                wrong = [line for line in passed.snapshot.problems if line.startswith(path)]
                raise NotFoundError(
                    f"no slice for container {container!r} of pod {pod_uid} in "
                    f"{'; '.join([path, *wrong])}"
                )
            bdfs = gpu_shares(one).keys()
            held = [
                (passed.protections[limit.key], limit.vram_bytes is None)
                for limit in passed.limits
                if limit.bdf in bdfs
                and isinstance(owner := passed.owners[limit.cgroup_id], PodCgroup)
                and owner.uid == pod_uid
            ]
            if held:
                return held
            if time.monotonic() + _POD_CGROUP_POLL >= deadline:
                why = cgroups.shortcoming(self._roots.cgroup)
                raise NotFoundError(
                    f"no cgroup of pod {pod_uid} after {wait:.1f} s{f'; {why}' if why else ''}"
                )
            time.sleep(_POD_CGROUP_POLL)

    def run_pass(self) -> Snapshot:
        """One pass over the node."""
        with self._changed:
            number = self._asked
        start = time.monotonic()
        self._devices.look(start)
        self.health.see(self._devices.instances, time.time())
        self._devices.attach()
        held, checkpoint_problems = self._checkpoint.read()
        if not checkpoint_problems:
            self.health.give_up({bdf for one in held for bdf in gpu_shares(one)}, time.time())
        problems = [*self._devices.problems, *self.health.problems, *checkpoint_problems]
        # Both maps before the tree: an entry without a cgroup then is an entry of a dead cgroup.
        entries, ledger = self._read_maps(problems)
        needed = bool(held or entries or ledger or self._hook.present)
        found = self._find(held, needed, problems)
        self._follow_tree(found, problems)
        wanted = limits(held, found.tree.pods, found.containers)
        pending = pending_limits(held, found.tree.pods)
        proven = self._enforce(wanted, pending, found, entries, ledger, problems)
        self._kernel.keep_cu_masks(
            cu_masks(held, found.containers), found.live, enforced=self._hold_cus
        )
        problems.extend(self._keep_hook_files(held, wanted, found, proven))
        if not checkpoint_problems and found.live is not None:
            problems.extend(self._drop_hook_files(held, found))
        # Maps that could not be read say nothing, not that nothing is used.
        no_books = entries is None or self._kernel.ledger is LedgerSource.NONE
        books = None if no_books else ledger
        readings = self._readings(wanted, found, books, problems)
        rows = self._account(start, held, wanted, found, readings, proven, problems)
        incidents = self._take_incidents(start, found, held, entries, books, problems)
        snapshot = Snapshot(
            time=time.time(),
            support=self._support(found),
            gpus=self._devices.gpus,
            containers=tuple(rows),
            problems=problem_lines(map(str, problems)),
            loads=self._devices.loads,
            pass_seconds=time.monotonic() - start,
            counters=self._kernel.counters(),
            map_fill=self._kernel.map_fill,
            incidents=incidents,
            health=self.health.rows,
            orphaned=of_no_pod(readings.orphans, wanted, self._devices.gpus),
        )
        self._ill.write()
        self._report(problems[:MOST_PROBLEMS])
        by_key = {one.key: one for one in held}
        with self._changed:
            self._passed = _Pass(number, by_key, wanted, found.owners, proven, snapshot)
            self._changed.notify_all()
        return snapshot

    def _readings(
        self,
        wanted: Sequence[Limit],
        found: _Found,
        books: Mapping[tuple[int, int], LedgerRow] | None,
        problems: list[str],
    ) -> Readings:
        root, live, regions = found.root, found.live, self._devices.regions
        orphans = None
        if books is not None and live is not None:
            orphans = self._orphans.find(books, live, self._kernel.owners)
        return Readings(
            books,
            {} if root is None else charged(root, wanted, regions, problems),
            queues=self._kernel.follows_queues(),
            faults=self._kernel.ledger is not LedgerSource.BO_PROBES,
            orphans=orphans,
        )

    def _account(
        self,
        now: float,
        held: Sequence[Slice],
        wanted: Sequence[Limit],
        found: _Found,
        readings: Readings,
        proven: Mapping[tuple[int, int], Protection],
        problems: list[str],
    ) -> list[ContainerUsage]:
        if found.root is None:
            return []
        checked, differences = self._sources.look(
            now, found.root, wanted, found.owners, held, readings
        )
        problems.extend(differences)
        by_hook = self._support(found).kernel_can_hold_nothing
        return container_usage(
            wanted, found.owners, held, readings, proven, checked, by_hook=by_hook
        )

    def _take_incidents(
        self,
        now: float,
        found: _Found,
        held: Sequence[Slice],
        entries: Mapping[tuple[int, int], int | None] | None,
        books: Mapping[tuple[int, int], LedgerRow] | None,
        problems: list[str],
    ) -> tuple[Incident, ...]:
        if books is not None and entries is not None:
            self._overruns.add_untold(now, self._kernel.untold(), books, entries, found.owners)
        kills, overruns = self._overruns.judge(
            now, books, entries, found.owners, partial(_empty, found)
        )
        corrections = self._corrections.judge(
            now,
            books,
            found.live,
            self._devices.vram_used,
            partial(self._drained, found),
            self._kernel.unfollowed,
        )
        for _, correction in corrections:
            # Its pod may be long gone, and then this is all there is of it.
            _log.warning(
                "cgroup %d on %s: %s", correction.cgroup, pci_bdf(correction.gpu), correction
            )
        actions: list[Action] = [*kills, *(action for action, _ in corrections)]
        if found.root is not None and actions:
            for outcome in apply(actions, self._kernel.maps, found.root):
                if outcome.why in (None, Why.VANISHED):
                    continue
                problems.append(_unfit(outcome))
                if isinstance(outcome.action, KillCgroup):
                    self._overruns.lives_on(outcome.action.cgroup_id, now)
        events = self._kernel.events()
        self._overruns.add(events)
        told: list[GateEvent] = [*overruns, *(event for _, event in corrections), *events]
        lines = self._incidents.add(told, found.owners, held, now, time.time())
        for line in lines:
            _log.warning("%s", line)
        return self._incidents.rows

    def _drained(self, found: _Found, cgroup_id: int) -> bool:
        """True if a live cgroup has no process and, as far as dmem tells, no VRAM."""
        owner = found.owners.get(cgroup_id)
        if found.root is None or owner is None:
            return False
        if not _empty(found, owner):
            return False
        try:
            charged_to_it = dmem.current(found.root / owner.path)
        except FileVanished:
            # Without the controller; a cgroup that went meanwhile is looked at next time.
            return (found.root / owner.path).is_dir()
        except FileError:
            return False
        return not any(charged_to_it.get(region) for region in self._devices.regions.values())

    def _support(self, found: _Found) -> HostSupport:
        observes = self._devices.gpus and found.root is not None
        source = self._kernel.ledger
        if source is LedgerSource.NONE and observes:
            source = LedgerSource.SYSFS
        return HostSupport(
            # Both know a container by its cgroup in that tree.
            gate=self._kernel.gate if found.root else LayerState(Layer.GATE, Why.NO_CGROUP2),
            dmem=self._devices.dmem if found.root else LayerState(Layer.DMEM, Why.NO_CGROUP2),
            ledger=source,
            dmem_regions=tuple(sorted(self._devices.regions.items())),
        )

    def _fresh_pass(self, deadline: float) -> _Pass:
        """The first pass that began after this call."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._wake.set()
            self._changed.wait_for(
                lambda: self._passed is not None and self._passed.number >= ticket,
                max(0.0, deadline - time.monotonic()),
            )
            if self._passed is None or self._passed.number < ticket:
                raise TimeoutError(
                    "no pass of the enforcer came to an end in time: see its log; if it hangs, "
                    "kill it, the limits stay in force"
                )
            return self._passed

    def _read_maps(
        self, problems: list[str]
    ) -> tuple[Mapping[tuple[int, int], int | None] | None, Mapping[tuple[int, int], LedgerRow]]:
        try:
            return self._kernel.read()
        except OSError as error:
            problems.append(f"the gate's maps cannot be read: {error}")
            return None, {}

    def _find(self, held: Iterable[Slice], needed: bool, problems: list[str]) -> _Found:
        """Walk the tree; a node without slices is spared it."""
        try:
            root = cgroups.cgroup2_root(self._roots.cgroup)
        except cgroups.NoCgroup2Error as error:
            problems.append(str(error))
            return _Found(None, cgroups.Tree((), ()), ())
        if not needed:
            return _Found(root, cgroups.Tree((), ()), ())
        tree = cgroups.walk(root)
        problems.extend(tree.problems)
        pods = {one.pod_uid for one in held}
        ours = [container for container in tree.containers if container.pod.uid in pods]
        known = self._look_up({container.id for container in ours}, problems)
        return _Found(root, tree, cgroups.attribute(ours, known.get))

    def _look_up(
        self, ids: Iterable[str], problems: list[str]
    ) -> Mapping[str, runtime.ContainerRecord]:
        """The runtime's records; each container is asked for until there is one."""
        records = {}
        for one in ids:
            try:
                record = self._records.get(one) or runtime.container_record(
                    self._roots.run, self._roots.docker, one
                )
            except FileError as error:
                problems.append(str(error))
                continue
            if record is not None:
                records[one] = record
        self._records = records
        return records

    def _enforce(
        self,
        wanted: Sequence[Limit],
        pending: Sequence[Limit],
        found: _Found,
        entries: Mapping[tuple[int, int], int | None] | None,
        ledger: Mapping[tuple[int, int], LedgerRow],
        problems: list[str],
    ) -> dict[tuple[int, int], Protection]:
        actual = self._actual(wanted, found, entries, ledger)
        actions = [] if found.root is None else plan(wanted, actual, pending)
        if found.root is None or not actions:
            return protections(wanted, actual)
        outcomes = apply(actions, self._kernel.maps, found.root)
        problems.extend(
            _unfit(outcome) for outcome in outcomes if outcome.why not in (None, Why.VANISHED)
        )
        entries, _ = self._read_maps(problems)
        return protections(wanted, self._actual(wanted, found, entries, ledger), outcomes)

    def _keep_hook_files(
        self,
        held: Sequence[Slice],
        wanted: Sequence[Limit],
        found: _Found,
        proven: Mapping[tuple[int, int], Protection],
    ) -> list[str]:
        refusing = held_by_kernel(held, wanted, found.owners, proven)
        return self._hook.write(held, self._devices.gpus, refusing)

    def _drop_hook_files(self, held: Sequence[Slice], found: _Found) -> list[str]:
        return self._hook.remove(
            [one.key for one in held if hooked(one)], [pod.uid for pod in found.tree.pods]
        )

    def _actual(
        self,
        wanted: Sequence[Limit],
        found: _Found,
        entries: Mapping[tuple[int, int], int | None] | None,
        ledger: Mapping[tuple[int, int], LedgerRow],
    ) -> Actual:
        maximum: dict[str, Mapping[str, int | None]] = {}
        parents: set[str] = set()
        if found.root is not None and self._devices.regions:
            for path in {limit.path for limit in wanted}:
                try:
                    maximum[path] = dmem.maximum(found.root / path)
                except FileError:
                    continue
            lacking = {limit.path for limit in wanted} - maximum.keys()
            for path in {above for below in lacking for above in ancestors(below)}:
                if "dmem" in (cgroups.subtree_controllers(found.root, path) or ()):
                    parents.add(path)
        idle = frozenset(key for key, row in ledger.items() if row.empty)
        return Actual(
            gate=entries,
            spent=idle - (entries or {}).keys(),
            pending=self._kernel.pending(),
            gate_off=self._kernel.gate_off,
            regions=self._devices.regions,
            dmem_off=Why.NO_CGROUP2 if found.root is None else self._devices.dmem_off,
            system_memory=self._devices.system_memory,
            maximum=maximum,
            dmem_parents=frozenset(parents),
            live=found.live,
        )

    def _follow_tree(self, found: _Found, problems: list[str]) -> None:
        """Be woken when a pod or container comes or goes, also before the next pass is due."""
        if self.watch is None and time.monotonic() >= self._watch_due:
            self._watch_due = time.monotonic() + _WATCH_SECONDS
            self.watch = _watch()
        if found.root is None or self.watch is None:
            return
        try:
            self.watch.set(found.root / path for path in found.tree.parents)
        except OSError as error:
            problems.append(f"{error}; some new containers are seen by the next pass only")

    def _report(self, problems: Sequence[str]) -> None:
        """Log a problem when it comes and when it goes, not on every pass between."""
        before = self._reported
        # As it was told first: what ends is found by its words.
        now = {about(one): before.get(about(one), one) for one in reversed(problems)}
        for problem in sorted(now[key] for key in now.keys() - before.keys()):
            _log.warning("%s", problem)
        for problem in sorted(before[key] for key in before.keys() - now.keys()):
            _log.info("no longer: %s", problem)
        self._reported = now


def _unfit(outcome: Outcome) -> Problem:
    what = f"{outcome.action}: {outcome.why}"
    return Problem(what, f"{what}: {outcome.detail}")


def _empty(found: _Found, owner: Container | PodCgroup) -> bool:
    """Whether a cgroup has no process, as none has that is gone."""
    try:
        return found.root is not None and not cgroups.populated(found.root / owner.path)
    except FileVanished:
        return True
    except FileError:
        return False


def _watch() -> Watch | None:
    try:
        return Watch()
    except OSError as error:
        _log.warning("%s; new containers are seen by the next pass only", error)
        return None
