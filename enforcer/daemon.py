# SPDX-License-Identifier: Apache-2.0
"""The enforcer: facts, plan, apply, account, from the whole state, every pass.

One thread, the loop's, reads and writes the node; the API and the metrics only see the last pass.
The limits are in force before anything that is slow to import is imported.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import bpf
from bpf.libbpf import BpfError
from enforcer import layers, slices
from enforcer.accounting import container_usage
from enforcer.api.errors import NotFoundError
from enforcer.apply import apply, probe_dmem
from enforcer.host import cgroups, dmem, drm, runtime
from enforcer.host.files import FileError, FileVanished
from enforcer.host.lock import HeldError, hold
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from enforcer.limits import gpu_shares, limits
from enforcer.model import (
    GpuLoad,
    HostSupport,
    Layer,
    LayerState,
    PodCgroup,
    Snapshot,
    Why,
    pci_key,
)
from enforcer.plan import Actual, ancestors, plan, protections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enforcer.accounting import LedgerRow
    from enforcer.model import Container, Gpu, Limit, Protection, Slice

_log = logging.getLogger(__name__)

_INVENTORY_SECONDS = 30.0
_SENSOR_SECONDS = 5.0
_POD_CGROUP_POLL = 0.1
_PASS_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Config:
    """The options of ``ringfence enforcer``."""

    roots: Roots = field(default_factory=Roots)
    state_dir: Path = Path("/var/lib/ringfence")
    socket: Path = Path("/run/ringfence/enforcer.sock")
    bpffs: Path = Path("/sys/fs/bpf/ringfence")
    objects: Path = Path(bpf.__file__).parent
    metrics_address: str = ":9394"
    interval: float = 1.0
    node: str = ""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass leaves for others to see."""

    number: int
    slices: Mapping[tuple[str, str], Slice]
    limits: Sequence[Limit]
    owners: Mapping[int, Container | PodCgroup]
    protections: Mapping[tuple[int, int], Protection]
    snapshot: Snapshot


class Enforcer:
    """The loop and what it remembers between passes. ``run_pass`` belongs to one thread."""

    def __init__(self, config: Config, kernel: layers.KernelLayers) -> None:
        self._config = config
        self._kernel = kernel
        self._checkpoint = _Checkpoint(config.state_dir / slices.FILE)
        self._records: dict[str, runtime.ContainerRecord] = {}
        self._gpus: list[Gpu] = []
        self._gpu_problems: list[str] = []
        self._loads: tuple[GpuLoad, ...] = ()
        self._dmem: dict[str, Why | None] = {}
        self._regions: dict[str, str] = {}
        self._map_fill: tuple[tuple[str, int, int], ...] = ()
        self._inventory_due = 0.0
        self._sensors_due = 0.0
        self._reported: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._asked = 0
        self._passed: _Pass | None = None
        self._wake = threading.Event()
        self._stopping = False

    def gpus_changed(self) -> None:
        """Look at the devices again, now. From any thread."""
        self._inventory_due = 0.0
        self._wake.set()

    def stop(self) -> None:
        """End ``run`` after the pass under way; every limit stays in force. From any thread."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Pass after pass until ``stop``."""
        while not self._stopping:
            self._wake.clear()
            try:
                self.run_pass()
            except Exception:
                # What is in the kernel holds; the next pass starts from the whole state again.
                _log.exception("pass failed")
            self._wake.wait(self._config.interval)

    def snapshot(self) -> Snapshot | None:
        """The last pass; None before the first."""
        passed = self._passed
        return None if passed is None else passed.snapshot

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
                raise NotFoundError(
                    f"no slice for container {container!r} of pod {pod_uid} in "
                    f"{self._checkpoint.path}"
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
                raise NotFoundError(f"no cgroup of pod {pod_uid} after {wait:.1f} s")
            time.sleep(_POD_CGROUP_POLL)

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
                raise TimeoutError("the enforcer's loop did not come round in time")
            return self._passed

    def run_pass(self) -> Snapshot:
        """One pass over the node."""
        with self._changed:
            number = self._asked
        start = time.monotonic()
        problems: list[str] = []
        self._look_at_devices(start, problems)
        held = self._checkpoint.read(problems)
        # Both maps before the tree: an entry without a cgroup then is an entry of a dead cgroup.
        entries, ledger = self._read_maps(problems)
        root = self._cgroup_root(problems)
        tree = cgroups.Tree((), ())
        if root is not None and (held or entries or ledger):
            tree = cgroups.walk(root)
            problems.extend(tree.problems)
        containers = self._name(tree, {one.pod_uid for one in held}, problems)
        wanted = limits(held, tree.pods, containers)
        actual = self._actual(wanted, tree, entries, ledger, root)
        outcomes = []
        if root is not None and (actions := plan(wanted, actual)):
            outcomes = apply(actions, self._kernel.maps, root)
            problems.extend(
                f"{outcome.action}: {outcome.why}: {outcome.detail}"
                for outcome in outcomes
                if outcome.why not in (None, Why.VANISHED)
            )
            entries, _ = self._read_maps(problems)
            actual = self._actual(wanted, tree, entries, ledger, root)
        proven = protections(wanted, actual, outcomes)
        owners: dict[int, Container | PodCgroup] = {pod.cgroup_id: pod for pod in tree.pods}
        owners.update((container.cgroup_id, container) for container in containers)
        charged = _charged(root, wanted, self._regions, problems)
        rows = container_usage(
            wanted,
            owners,
            held,
            ledger if self._kernel.ledger != "none" else None,
            charged,
            proven,
        )
        snapshot = Snapshot(
            time=time.time(),
            support=self._support(root),
            gpus=tuple(self._gpus),
            containers=tuple(rows),
            problems=tuple(problems),
            loads=self._loads,
            pass_seconds=time.monotonic() - start,
            counters=self._counters(problems),
            map_fill=self._map_fill,
        )
        self._report(snapshot.problems)
        by_key = {one.key: one for one in held}
        with self._changed:
            self._passed = _Pass(number, by_key, wanted, owners, proven, snapshot)
            self._changed.notify_all()
        return snapshot

    def _look_at_devices(self, now: float, problems: list[str]) -> None:
        if now >= self._inventory_due:
            self._inventory_due = now + _INVENTORY_SECONDS
            self._sensors_due = 0.0
            gpus, self._gpu_problems = read_inventory(self._config.roots)
            if gpus != self._gpus:
                _log.info("%d GPUs: %s", len(gpus), ", ".join(gpu.bdf for gpu in gpus) or "none")
            self._gpus = gpus
            self._kernel.set_gpus(*_gpu_keys(gpus))
            self._kernel.load_ledger()
            self._probe_dmem()
        if now >= self._sensors_due:
            self._sensors_due = now + _SENSOR_SECONDS
            self._loads = _loads(self._config.roots, self._gpus)
            self._map_fill = self._fill()
        problems.extend(self._gpu_problems)
        problems.extend(self._kernel.problems.values())

    def _probe_dmem(self) -> None:
        """Try a region when it is new; a region that took a limit once is not tried again."""
        try:
            root = cgroups.cgroup2_root(self._config.roots.cgroup)
            found = dmem.regions(dmem.capacity(root), {gpu.bdf for gpu in self._gpus})
        except (cgroups.NoCgroup2Error, FileError) as error:
            self._regions, self._dmem = {}, {}
            self._gpu_problems.append(str(error))
            return
        untried = {
            bdf: region
            for bdf, region in found.items()
            if self._dmem.get(bdf, Why.NO_REGION) is not None
        }
        tried = {**self._dmem, **probe_dmem(root, untried)}
        self._dmem = {bdf: tried[bdf] for bdf in found}
        self._regions = {bdf: region for bdf, region in found.items() if tried[bdf] is None}

    def _cgroup_root(self, problems: list[str]) -> Path | None:
        try:
            return cgroups.cgroup2_root(self._config.roots.cgroup)
        except cgroups.NoCgroup2Error as error:
            if str(error) not in problems:
                problems.append(str(error))
            return None

    def _read_maps(
        self, problems: list[str]
    ) -> tuple[Mapping[tuple[int, int], int | None] | None, Mapping[tuple[int, int], LedgerRow]]:
        if self._kernel.maps is None:
            return None, {}
        try:
            return self._kernel.maps.limits(), self._kernel.maps.usage()
        except (BpfError, OSError) as error:
            problems.append(f"the gate's maps cannot be read: {error}")
            return None, {}

    def _name(
        self, tree: cgroups.Tree, pods: set[str], problems: list[str]
    ) -> tuple[Container, ...]:
        """Ask the runtime once per container of a pod with slices."""

        def identify(container_id: str) -> runtime.ContainerRecord | None:
            if container_id not in self._records:
                try:
                    record = runtime.container_record(self._config.roots.run, container_id)
                except FileError as error:
                    problems.append(str(error))
                    return None
                if record is None:
                    return None
                self._records[container_id] = record
            return self._records[container_id]

        ours = [container for container in tree.containers if container.pod.uid in pods]
        named = cgroups.attribute(ours, identify)
        alive = {container.id for container in ours}
        self._records = {key: value for key, value in self._records.items() if key in alive}
        return named

    def _actual(
        self,
        wanted: Sequence[Limit],
        tree: cgroups.Tree,
        entries: Mapping[tuple[int, int], int | None] | None,
        ledger: Mapping[tuple[int, int], LedgerRow],
        root: Path | None,
    ) -> Actual:
        maximum: dict[str, Mapping[str, int | None]] = {}
        parents: set[str] = set()
        if root is not None and self._regions:
            for path in {limit.path for limit in wanted}:
                try:
                    maximum[path] = dmem.maximum(root / path)
                except FileError:
                    continue
            for path in {above for limit in wanted for above in ancestors(limit.path)}:
                if "dmem" in (cgroups.subtree_controllers(root, path) or ()):
                    parents.add(path)
        live = {pod.cgroup_id: pod.cgroup_id for pod in tree.pods}
        live.update((container.cgroup_id, container.pod.cgroup_id) for container in tree.containers)
        return Actual(
            gate=entries,
            spent=frozenset(
                key for key, row in ledger.items() if row.empty and key not in (entries or {})
            ),
            gate_off=self._kernel.gate_off,
            regions=self._regions,
            dmem_off=self._dmem_off(root),
            maximum=maximum,
            dmem_parents=frozenset(parents),
            live=None if tree.problems or root is None else live,
        )

    def _dmem_off(self, root: Path | None) -> Why | None:
        if root is None:
            return Why.NO_CGROUP2
        return next((why for why in self._dmem.values() if why is not None), None)

    def _support(self, root: Path | None) -> HostSupport:
        dmem_state = None if self._regions else self._dmem_off(root) or Why.NO_REGION
        return HostSupport(
            gate=self._kernel.gate,
            dmem=LayerState(Layer.DMEM, dmem_state),
            ledger=self._kernel.ledger,
            dmem_regions=tuple(sorted(self._regions.items())),
        )

    def _counters(self, problems: list[str]) -> tuple[tuple[str, int], ...]:
        if self._kernel.maps is None:
            return ()
        try:
            return tuple(sorted(self._kernel.maps.counters().items()))
        except (BpfError, OSError) as error:
            problems.append(f"the gate's counters cannot be read: {error}")
            return ()

    def _fill(self) -> tuple[tuple[str, int, int], ...]:
        if self._kernel.maps is None:
            return ()
        try:
            fill = self._kernel.maps.fill()
        except (BpfError, OSError):
            return ()
        return tuple((name, used, most) for name, (used, most) in sorted(fill.items()))

    def _report(self, problems: tuple[str, ...]) -> None:
        """Log a problem when it comes and when it goes, not on every pass between."""
        now = frozenset(problems)
        for problem in sorted(now - self._reported):
            _log.warning("%s", problem)
        for problem in sorted(self._reported - now):
            _log.info("no longer: %s", problem)
        self._reported = now


class _Checkpoint:
    """The checkpoint's last good state, read again when the file is another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._slices: list[Slice] = []
        self._problems: list[str] = []

    def read(self, problems: list[str]) -> list[Slice]:
        try:
            status = self.path.stat()
            seen = status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            seen = None
        if seen is None or seen != self._seen:
            try:
                self._slices, self._problems = slices.read_checkpoint(self.path)
            except slices.CheckpointError as error:
                self._problems = [f"{error}; keeping what was known before"]
            self._seen = seen
        problems.extend(self._problems)
        return self._slices


def main(argv: Sequence[str]) -> int:
    """``ringfence enforcer``: run until SIGTERM; 0 unless it could not start."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    if options.unload:
        return _unload(options.bpffs)
    config = Config(
        roots=Roots(
            sys=options.sys, proc=options.proc, run=options.run, cgroup=options.cgroup_root
        ),
        state_dir=options.state_dir,
        socket=options.socket,
        bpffs=options.bpffs,
        objects=options.bpf_objects,
        metrics_address=options.metrics_address,
        interval=options.interval,
        node=options.node_name,
    )
    try:
        config.socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = hold(config.socket.with_suffix(".lock"))
    except HeldError:
        _log.error("another enforcer is running on this node: it holds %s", config.socket)
        return 1
    except OSError as error:
        _log.error("%s: %s; run as root", config.socket.parent, error.strerror)
        return 1
    with lock:
        return _run(config, once=options.once)


def _run(config: Config, *, once: bool) -> int:
    kernel = layers.KernelLayers(config.objects, config.bpffs, config.roots.sys)
    kernel.load_gate()
    enforcer = Enforcer(config, kernel)
    first = enforcer.run_pass()
    _log.info(
        "gate %s, dmem %s, ledger %s", first.support.gate, first.support.dmem, first.support.ledger
    )
    try:
        return 0 if once else _serve(config, enforcer)
    finally:
        kernel.close()


def _serve(config: Config, enforcer: Enforcer) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: enforcer.stop())
    # From here on, what takes memory and time to import: the limits are in force.
    from enforcer.api.server import Server  # noqa: PLC0415

    server = Server(enforcer, config.socket)
    try:
        server.start()
    except OSError as error:
        _log.error("%s", error)
        return 1
    stop_metrics = None
    if config.metrics_address:
        from enforcer import metrics  # noqa: PLC0415

        try:
            stop_metrics = metrics.serve(
                config.metrics_address, metrics.SnapshotCollector(enforcer.snapshot, config.node)
            )
        except (OSError, ValueError) as error:
            _log.error("metrics at %s: %s; going on without", config.metrics_address, error)
    threading.Thread(target=_follow_devices, args=(enforcer,), name="uevents", daemon=True).start()
    _log.info("serving %s", config.socket)
    enforcer.run()
    server.stop()
    if stop_metrics is not None:
        stop_metrics()
    _log.info("stopped; the limits stay in force")
    return 0


def _follow_devices(enforcer: Enforcer) -> None:
    from enforcer.host import uevents  # noqa: PLC0415 - late, as above

    try:
        for event in uevents.listen():
            _log.info("%s %s %s", event.action, event.subsystem, event.bdf or event.path)
            enforcer.gpus_changed()
    except OSError as error:
        _log.warning(
            "no uevents (%s): devices are looked at every %.0f s", error, _INVENTORY_SECONDS
        )


def _unload(bpffs: Path) -> int:
    try:
        layers.unload(bpffs)
    except (BpfError, OSError) as error:
        _log.error("%s", error)
        return 1
    _log.info("nothing of the gate or the ledger is left; dmem limits stay")
    return 0


def _gpu_keys(gpus: Sequence[Gpu]) -> tuple[dict[int, int], dict[int, int]]:
    by_minor = {gpu.render: pci_key(gpu.bdf) for gpu in gpus}
    by_minor.update((gpu.card, pci_key(gpu.bdf)) for gpu in gpus if gpu.card is not None)
    return {gpu.kfd_id: pci_key(gpu.bdf) for gpu in gpus}, by_minor


def _loads(roots: Roots, gpus: Sequence[Gpu]) -> tuple[GpuLoad, ...]:
    found = []
    for bdf in sorted({gpu.bdf for gpu in gpus}):
        load = drm.load(roots.sys / "bus/pci/devices" / bdf)
        found.append(GpuLoad(bdf, load.vram_used, load.busy_percent, load.temperature, load.power))
    return tuple(found)


def _charged(
    root: Path | None, wanted: Sequence[Limit], regions: Mapping[str, str], problems: list[str]
) -> dict[tuple[str, str], int]:
    charged: dict[tuple[str, str], int] = {}
    if root is None or not regions:
        return charged
    for path in sorted({limit.path for limit in wanted}):
        try:
            lines = dmem.current(root / path)
        except FileVanished:
            continue
        except FileError as error:
            problems.append(str(error))
            continue
        charged.update(
            ((path, bdf), size)
            for bdf, region in regions.items()
            if (size := lines.get(region)) is not None
        )
    return charged


def _parser() -> argparse.ArgumentParser:
    defaults = Config()
    parser = argparse.ArgumentParser(
        prog="ringfence enforcer",
        description="Hold every container of this node to its slice of each GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--state-dir", type=Path, default=defaults.state_dir, help="where slices.json lies")
    add("--socket", type=Path, default=defaults.socket, help="unix socket to serve")
    add("--bpffs", type=Path, default=defaults.bpffs, help="where to pin maps and programs")
    add("--bpf-objects", type=Path, default=defaults.objects, help="directory of the BPF objects")
    add("--metrics-address", default=defaults.metrics_address, help='HOST:PORT; "" is off')
    add("--interval", type=_seconds, default=defaults.interval, help="seconds between passes")
    add("--node-name", default=os.environ.get("NODE_NAME", ""), help="this node, for labels")
    add("--sys", type=Path, default=defaults.roots.sys, help="the host's /sys")
    add("--proc", type=Path, default=defaults.roots.proc, help="the host's /proc")
    add("--run", type=Path, default=defaults.roots.run, help="the host's /run")
    add("--cgroup-root", type=Path, default=defaults.roots.cgroup, help="the cgroup2 mount")
    add("--once", action="store_true", help="one pass, then leave")
    add("--unload", action="store_true", help="remove the gate and the ledger, then leave")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return value
