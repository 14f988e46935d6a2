# SPDX-License-Identifier: Apache-2.0
"""``ringfence enforcer``: the loop, and around it the API, the metrics and the uevents.

The limits are in force before anything that is slow to import is imported.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import threading
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import bpf
from bpf.decode import Policy
from bpf.libbpf import BpfError
from enforcer import layers, log, slices
from enforcer.apply import lift_dmem
from enforcer.devices import DEVICE
from enforcer.host import cgroups, dmem, driver
from enforcer.host.apart import Apart
from enforcer.host.event import SignalSafeEvent
from enforcer.host.files import FileError
from enforcer.host.heartbeat import Heartbeat
from enforcer.host.lock import HeldError, hold, wait_to_hold
from enforcer.host.nodes import test_device
from enforcer.host.roots import Roots
from enforcer.host.sockets import socket_path
from enforcer.images import IMAGE, LAYERS, look_into, look_into_layers
from enforcer.loop import Enforcer
from enforcer.model import Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

_APART: Final = {DEVICE: test_device, IMAGE: look_into, LAYERS: look_into_layers}

_log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM; exit status 0 unless it could not start.

    While another enforcer runs on this node, wait for it to end: in a rolling update the new pod
    starts beside the old one, and the limits are in force meanwhile.
    """
    options = _options(argv)
    log.to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(message)s")
    lasting = not (options.once or options.unload)
    heart = Heartbeat(options.heartbeat if lasting else None, options.interval)
    stop = SignalSafeEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        lock = _lock(options, stop, heart)
    except HeldError as error:
        _log.error("another enforcer is running on this node: %s", error)
        return 1
    except OSError as error:
        cure = "; run as root" if isinstance(error, PermissionError) else ""
        _log.error("%s: cannot be used: %s%s", options.socket.parent, error.strerror, cure)
        return 1
    if lock is None:
        _log.info("stopped while waiting; the other enforcer goes on")
        return 0
    with lock:
        heart.start()
        status = _unload(options) if options.unload else _run(options, stop, heart)
    return log.leave(status) if lasting else status


def _lock(options: argparse.Namespace, stop: SignalSafeEvent, heart: Heartbeat) -> IO[bytes] | None:
    """The right to be this node's enforcer; None if told to stop before it was had."""
    path = options.socket.with_suffix(".lock")
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if options.once or options.unload:
        return hold(path)

    def waiting(error: HeldError) -> None:
        if heart.wait(str(error)):
            _log.info("another enforcer is running on this node, waiting for it to end: %s", error)

    return wait_to_hold(path, stop, waiting)


def _run(options: argparse.Namespace, stop: SignalSafeEvent, heart: Heartbeat) -> int:
    try:
        apart = None if options.once else Apart(_APART)
    except OSError as error:
        _log.error(
            "no process to look into devices and images with: %s; are the container's memory or "
            "process ids used up?",
            error.strerror,
        )
        return 1
    kernel = layers.KernelLayers(
        options.bpf_objects, options.bpffs, options.sys, loading=heart.start
    )
    if Layer.GATE in options.layers:
        kernel.load_gate()
        kernel.set_policy(
            Policy(
                kill_switchers=options.on_switch == "kill",
                refuse_imports=options.refuse_imports,
                refuse_passed=options.refuse_passed,
            )
        )
    else:
        kernel.switch_off()
    roots = Roots(
        sys=options.sys,
        proc=options.proc,
        run=options.run,
        dev=options.dev,
        docker=options.docker,
        cgroup=options.cgroup_root,
        share=options.share,
        host=options.proc / "1/root",
    )
    enforcer = Enforcer(
        roots,
        options.state_dir / slices.FILE,
        kernel,
        use_dmem=Layer.DMEM in options.layers,
        kill=options.on_switch == "kill",
        hold_cus=options.cu_masks == "enforce",
        apart=apart,
    )
    first = enforcer.try_pass()
    if first is not None:
        support = first.support
        _log.info("gate %s, dmem %s, ledger %s", support.gate, support.dmem, support.ledger)
    try:
        if apart is None:
            return int(first is None)
        return _serve(options, enforcer, apart, stop, heart)
    finally:
        kernel.close()


def _serve(
    options: argparse.Namespace,
    enforcer: Enforcer,
    apart: Apart,
    stop: SignalSafeEvent,
    heart: Heartbeat,
) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: enforcer.stop())
    if stop.is_set():
        enforcer.stop()
    from enforcer.api.server import Server  # noqa: PLC0415 - the limits are in force by now

    server = Server(enforcer, options.socket)
    try:
        server.start()
    except OSError as error:
        _log.error("%s", error)
        return 1
    stop_metrics = _serve_metrics(options, enforcer)
    from enforcer import follow  # noqa: PLC0415 - as above

    followers = (
        (follow.follow_uevents, "uevents"),
        (follow.follow_tree, "cgroups"),
        (follow.follow_gate, "gate"),
    )
    for target, name in followers:
        threading.Thread(target=target, args=(enforcer,), name=name, daemon=True).start()
    follow.KfdFollower(
        enforcer,
        options.dev / "kfd",
        on=options.kfd_events != "off",
        always=options.kfd_events == "on",
    ).start()
    lame = threading.Event()
    threading.Thread(
        target=_end_with, args=(apart, enforcer, lame), name="apart", daemon=True
    ).start()
    _log.info("serving %s", options.socket)
    enforcer.run(options.interval, lambda passed: heart.beat(well=passed))
    server.stop()
    stop_metrics()
    _log.info("stopped; the limits stay in force")
    return int(lame.is_set())


def _end_with(apart: Apart, enforcer: Enforcer, lame: threading.Event) -> None:
    """Without its process apart an enforcer tests no device and looks into no image, for ever.

    It can make no new one, but its successor can.
    """
    how = apart.wait()
    _log.error(
        "the process that looks into devices and images ended %s: ending too, to be started anew "
        "with one; the limits stay in force. If it comes again, see dmesg for out of memory",
        how,
    )
    lame.set()
    enforcer.stop()


def _serve_metrics(options: argparse.Namespace, enforcer: Enforcer) -> Callable[[], None]:
    """Metrics are no reason not to enforce: without them the daemon goes on."""
    if not options.metrics_address:
        return lambda: None
    from enforcer.metrics.serve import Site, serve_when_free  # noqa: PLC0415 - as above

    site = Site(
        enforcer.snapshot,
        options.node_name,
        version("ringfence"),
        with_page=options.page == "on",
        token=options.metrics_token_file,
    )
    try:
        return serve_when_free(options.metrics_address, site)
    except ValueError as error:
        _log.error("metrics at %s: %s; going on without", options.metrics_address, error)
        return lambda: None


def _unload(options: argparse.Namespace) -> int:
    try:
        layers.unload(options.bpffs)
        problems = _lift_dmem(options.cgroup_root, driver.devices(options.sys) or frozenset())
    except (BpfError, OSError, FileError) as error:
        problems = [str(error)]
    for problem in problems:
        _log.error("%s", problem)
    if not problems:
        _log.info("nothing of the gate or the ledger is left, and no limit of dmem")
    return int(bool(problems))


def _lift_dmem(mount: Path, bdfs: frozenset[str]) -> list[str]:
    try:
        root = cgroups.cgroup2_root(mount)
    except cgroups.NoCgroup2Error:
        return []
    return lift_dmem(root, dmem.regions(dmem.capacity(root), bdfs))


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """What the command line says. Ends the process for what cannot be, or cannot go together."""
    parser = _parser()
    options = parser.parse_args(argv)
    asked = [
        flag
        for flag, given in (
            ("--cu-masks enforce", options.cu_masks == "enforce"),
            ("--refuse-imports", options.refuse_imports),
            ("--refuse-passed", options.refuse_passed),
        )
        if given
    ]
    if asked and Layer.GATE not in options.layers:
        parser.error(
            f"--layers leaves out the gate, and nothing else can hold {', '.join(asked)}: "
            "add gate to --layers, or leave the rest out"
        )
    return options


def _parser() -> argparse.ArgumentParser:
    roots = Roots()
    parser = argparse.ArgumentParser(
        prog="ringfence enforcer",
        description="Hold every container of this node to its slice of each GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def folder(flag: str, default: Path, text: str) -> None:
        parser.add_argument(flag, type=Path, default=default, help=text, metavar="DIR")

    folder("--state-dir", Path("/var/lib/ringfence"), "where slices.json lies")
    folder("--bpffs", Path("/sys/fs/bpf/ringfence"), "where to pin maps and programs")
    folder("--bpf-objects", Path(bpf.__file__).parent, "where the BPF objects lie")
    folder("--sys", roots.sys, "the host's /sys")
    folder("--proc", roots.proc, "the host's /proc")
    folder("--run", roots.run, "the host's /run")
    folder("--docker", roots.docker, "where Docker keeps its containers' records")
    folder("--dev", roots.dev, "the host's /dev")
    folder("--share", roots.share, "the host's /usr/share, for pci.ids")
    folder("--cgroup-root", roots.cgroup, "the cgroup2 mount")
    add = parser.add_argument
    add(
        "--socket",
        type=_socket,
        default=Path("/run/ringfence/enforcer.sock"),
        help="unix socket to serve",
        metavar="PATH",
    )
    add(
        "--layers",
        type=_layers,
        default="auto",
        help='"auto" is every layer the node has; for tests only some: gate, dmem, gate,dmem, none',
        metavar="LAYERS",
    )
    add(
        "--on-switch",
        choices=("kill", "report"),
        default="kill",
        help="what becomes of a process that switches the arguments of a call to get more VRAM "
        "than it asked for, and of its container, then its pod, if that is above its limit a "
        "second later",
    )
    add(
        "--cu-masks",
        choices=("report", "enforce"),
        default="report",
        help="what becomes of a queue's CU mask beyond its container's slice, and of a further "
        "queue beside one that was left without a mask: counted, or refused",
    )
    add(
        "--refuse-imports",
        action="store_true",
        help="refuse a container to import a buffer (dma-buf) of another one, also of its own pod",
    )
    add(
        "--refuse-passed",
        action="store_true",
        help="keep back buffers and opened GPU files that containers hand to each other",
    )
    add(
        "--kfd-events",
        choices=("auto", "on", "off"),
        default="auto",
        help="listen to KFD for resets and faults; while anyone does, the driver refuses to change "
        "compute partitions, so auto is only where no GPU can be partitioned",
    )
    add("--metrics-address", default=":9394", help='where to serve metrics, "" is nowhere')
    add(
        "--page", choices=("on", "off"), default="on", help="the node page at / of the same address"
    )
    add(
        "--metrics-token-file",
        type=Path,
        help="show metrics and page only to who sends what this file holds: as a bearer token, or "
        "as the password of any user",
        metavar="PATH",
    )
    add(
        "--interval",
        type=_seconds,
        default=2.0,
        help="seconds between passes; new pods, containers and devices are seen at once",
    )
    add("--node-name", default=os.environ.get("NODE_NAME", ""), help="this node, for labels")
    add(
        "--heartbeat",
        type=Path,
        help="where to write how it goes, for `ringfence health`; by default nowhere",
        metavar="PATH",
    )
    add("--once", action="store_true", help="one pass, then leave")
    add(
        "--unload",
        action="store_true",
        help="remove the gate and the ledger, lift dmem's limits of all pods, then leave; what is "
        "in --state-dir and beside --socket stays, and dmem stays enabled for the pods' cgroups",
    )
    return parser


def _socket(text: str) -> Path:
    # What it is made under ends with the number of a process, of which this is the highest.
    return socket_path(text, ".4194304")


def _layers(text: str) -> frozenset[Layer]:
    kernel_layers = frozenset({Layer.GATE, Layer.DMEM})
    if text == "none":
        return frozenset()
    names = [layer.value for layer in kernel_layers] if text == "auto" else text.split(",")
    if not set(names) <= kernel_layers:
        raise argparse.ArgumentTypeError(
            f"expected auto, gate, dmem, gate,dmem or none, found {text!r}"
        )
    return frozenset(Layer(name) for name in names)


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return value
