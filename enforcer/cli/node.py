# SPDX-License-Identifier: Apache-2.0
"""The node as a command sees it: what the enforcer says, else what can be read without one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bpf import decode, loader
from bpf.libbpf import BpfError
from enforcer.accounting import Checked, Readings, container_usage, observe
from enforcer.activity import Activities
from enforcer.host import cgroups, dmem, drm, runtime
from enforcer.host.files import FileError
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from enforcer.layers import ledger_source
from enforcer.limits import limits, pods_by_cgroup
from enforcer.model import GpuLoad, HostSupport, Layer, LayerState, LedgerSource, Snapshot, Why
from enforcer.observation import read_processes
from enforcer.orphans import Orphans, of_no_pod
from enforcer.plan import Actual, protections
from enforcer.printable import problem_lines
from enforcer.slices import FILE, CheckpointError, read_checkpoint
from enforcer.sources import charged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from enforcer.model import Container, Gpu, Limit, PodCgroup, Slice

_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot, and who took it."""

    snapshot: Snapshot
    by: str
    """``enforcer``, or ``this command``."""
    why: str = ""
    """Why the enforcer was not the one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are on a node."""

    roots: Roots
    socket: Path
    state: Path
    bpffs: Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options every command that looks at the node has."""
    roots = Roots()

    def path(flag: str, default: Path, text: str) -> None:
        parser.add_argument(flag, type=Path, default=default, metavar="PATH", help=text)

    path("--socket", Path("/run/ringfence/enforcer.sock"), "the enforcer's socket")
    path("--state-dir", Path("/var/lib/ringfence"), "where slices.json lies")
    path("--bpffs", Path("/sys/fs/bpf/ringfence"), "where the gate's maps are pinned")
    path("--sys", roots.sys, "the host's /sys")
    path("--proc", roots.proc, "the host's /proc")
    path("--run", roots.run, "the host's /run")
    path("--dev", roots.dev, "the host's /dev")
    path("--docker", roots.docker, "where Docker keeps its containers' records")
    path("--cgroup-root", roots.cgroup, "the cgroup2 mount")


def place(options: argparse.Namespace) -> Place:
    """Where the options say things are."""
    roots = Roots(
        sys=options.sys,
        proc=options.proc,
        run=options.run,
        dev=options.dev,
        cgroup=options.cgroup_root,
        docker=options.docker,
    )
    return Place(roots, options.socket, options.state_dir, options.bpffs)


def look(where: Place) -> Seen:
    """The enforcer's last pass; where it does not answer, the node read here and now.

    Without root that shows less, and each part that is missing is a problem of the snapshot.
    """
    from enforcer.api.client import Client, EnforcerError  # noqa: PLC0415 - slow to import

    if not where.socket.exists():
        return Seen(read_node(where), "this command", f"no socket at {where.socket}")
    try:
        with Client(where.socket) as client:
            return Seen(client.snapshot(_ANSWER_SECONDS), "enforcer")
    except EnforcerError as error:
        return Seen(read_node(where), "this command", str(error))


def read_slices(where: Place) -> tuple[list[Slice], list[str]]:
    """The slices given out, and a line for each problem."""
    try:
        return read_checkpoint(where.state / FILE)
    except CheckpointError as error:
        return [], [str(error)]


def read_node(where: Place) -> Snapshot:
    """One look at the node that writes nothing and needs no enforcer."""
    roots = where.roots
    gpus, problems = read_inventory(roots)
    held, unread = read_slices(where)
    problems += unread
    pins = where.bpffs / str(decode.SCHEMA)
    maps = _maps(pins, problems)
    try:
        root: Path | None = cgroups.cgroup2_root(roots.cgroup)
    except cgroups.NoCgroup2Error as error:
        problems.append(str(error))
        root = None
    owners: dict[int, Container | PodCgroup] = {}
    wanted: list[Limit] = []
    orphans: Mapping[tuple[int, int], int] | None = None
    if root is not None:
        tree = cgroups.walk(root)
        problems += tree.problems
        pods = {one.pod_uid for one in held}
        ours = [one for one in tree.containers if one.pod.uid in pods]
        named = cgroups.attribute(ours, lambda one: _record(roots, one, problems))
        owners.update((pod.cgroup_id, pod) for pod in tree.pods)
        owners.update((one.cgroup_id, one) for one in named)
        wanted = limits(held, tree.pods, named)
        if maps.usage is not None and not tree.problems:
            live = pods_by_cgroup(tree.pods, tree.containers)
            orphans = Orphans().find(maps.usage, live, partial(_owners, pins, problems))
    regions, dmem_off = _regions(root, gpus, problems)
    actual = _actual(wanted, root, maps, regions, dmem_off)
    no_vram = frozenset(gpu.bdf for gpu in gpus if gpu.system_memory)
    proven = protections(wanted, replace(actual, system_memory=no_vram))
    rows = []
    if root is not None:
        readings = Readings(
            maps.usage,
            charged(root, wanted, regions, problems),
            queues=maps.queues,
            faults=not maps.by_probes,
            orphans=orphans,
        )
        checked = _checked(roots, root, wanted, gpus, problems)
        rows = container_usage(wanted, owners, held, readings, proven, checked)
    return Snapshot(
        time=time.time(),
        support=_support(maps, regions, dmem_off, gpus),
        gpus=tuple(gpus),
        containers=tuple(rows),
        problems=problem_lines(map(str, problems)),
        loads=_loads(roots, gpus),
        counters=maps.counters,
        map_fill=maps.fill,
        orphaned=of_no_pod(orphans, wanted, gpus),
    )


@dataclass(frozen=True, slots=True)
class _Maps:
    """What the pinned maps hold; None and empty where they cannot be read."""

    limits: Mapping[tuple[int, int], int | None] | None = None
    usage: Mapping[tuple[int, int], decode.LedgerUsage] | None = None
    counters: tuple[tuple[str, int], ...] = ()
    fill: tuple[tuple[str, int, int], ...] = ()
    attached: bool = False
    queues: bool = False
    by_probes: bool = False
    """Whether the ledger goes by probes."""


def _maps(pins: Path, problems: list[str]) -> _Maps:
    try:
        with loader.open_maps(pins) as maps:
            return _Maps(
                maps.limits(),
                maps.usage() if any(pins.glob("*/ledger_*")) else None,
                tuple(sorted(maps.counters().items())),
                tuple((name, used, most) for name, (used, most) in sorted(maps.fill().items())),
                any(pins.glob("*/gate_*")),
                maps.follows_queues(),
                loader.followed_by_probes(pins),
            )
    except (BpfError, OSError) as error:
        problems.append(f"the gate's maps cannot be read: {error}")
        return _Maps()


def _owners(pins: Path, problems: list[str]) -> set[tuple[int, ...]]:
    try:
        with loader.open_maps(pins) as maps:
            return {one.cgroups for _, one in maps.buffers() if one.cgroups}
    except (BpfError, OSError) as error:
        problems.append(f"the ledger's buffers cannot be read: {error}")
        return set()


def _record(roots: Roots, container_id: str, problems: list[str]) -> runtime.ContainerRecord | None:
    try:
        return runtime.container_record(roots.run, roots.docker, container_id)
    except FileError as error:
        problems.append(str(error))
        return None


def _regions(
    root: Path | None, gpus: Iterable[Gpu], problems: list[str]
) -> tuple[Mapping[str, str], Why]:
    """The regions by BDF, and why a GPU has none."""
    if root is None:
        return {}, Why.NO_CGROUP2
    try:
        return dmem.regions(dmem.capacity(root), {gpu.bdf for gpu in gpus}), Why.NO_REGION
    except FileError as error:
        problems.append(str(error))
        return {}, Why.UNREAD


def _actual(
    wanted: Iterable[Limit],
    root: Path | None,
    maps: _Maps,
    regions: Mapping[str, str],
    dmem_off: Why,
) -> Actual:
    maximum: dict[str, Mapping[str, int | None]] = {}
    for path in {limit.path for limit in wanted} if regions and root is not None else ():
        try:
            maximum[path] = dmem.maximum(root / path)  # type: ignore[operator]
        except FileError:
            continue
    return Actual(
        gate=maps.limits,
        gate_off=None if maps.attached else Why.NOT_LOADED,
        regions=regions,
        dmem_off=dmem_off,
        maximum=maximum,
    )


def _checked(
    roots: Roots, root: Path, wanted: Iterable[Limit], gpus: list[Gpu], problems: list[str]
) -> dict[tuple[int, int], Checked]:
    wanted = tuple(wanted)
    processes, unread = read_processes(roots, root, [limit.path for limit in wanted], gpus)
    problems += unread
    activities, by_bdf = Activities(), {gpu.bdf: gpu for gpu in gpus}
    activities.keep(())
    return {
        limit.key: Checked(
            None,
            observe(processes, limit.path, limit.bdf),
            None,
            None,
            activities.look(limit, processes, by_bdf.get(limit.bdf)),
        )
        for limit in wanted
    }


def _support(
    maps: _Maps, regions: Mapping[str, str], dmem_off: Why, gpus: Iterable[Gpu]
) -> HostSupport:
    return HostSupport(
        LayerState(Layer.GATE, None if maps.attached else Why.NOT_LOADED),
        LayerState(Layer.DMEM, None if regions else dmem_off),
        _source(maps, gpus),
        tuple(sorted(regions.items())),
    )


def _source(maps: _Maps, gpus: Iterable[Gpu]) -> LedgerSource:
    if maps.usage is not None:
        return ledger_source(by_probes=maps.by_probes)
    return LedgerSource.SYSFS if list(gpus) else LedgerSource.NONE


def _loads(roots: Roots, gpus: Iterable[Gpu]) -> tuple[GpuLoad, ...]:
    found = []
    for bdf in sorted({gpu.bdf for gpu in gpus}):
        load = drm.load(roots.sys / "bus/pci/devices" / bdf)
        found.append(GpuLoad(bdf, load.vram_used, load.busy_percent, load.temperature, load.power))
    return tuple(found)
