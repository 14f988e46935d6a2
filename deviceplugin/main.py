# SPDX-License-Identifier: Apache-2.0
"""``ringfence device-plugin``: options, and the wiring of the parts."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from deviceplugin.checkpoint import Checkpoint
from deviceplugin.health import GpuSource, Offer
from deviceplugin.hold import Holder
from deviceplugin.node import Publisher
from deviceplugin.podresources import read_pod_resources
from deviceplugin.pods import PodCache
from deviceplugin.reap import Reaper
from deviceplugin.registration import Registration
from deviceplugin.release import Release
from deviceplugin.server import DevicePlugin
from enforcer.api.client import Client
from enforcer.host.lock import HeldError, hold
from enforcer.host.roots import Roots
from enforcer.slices import FILE, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from deviceplugin.apiserver import ApiServer

RESOURCE = "amd.com/gpu"
_INVENTORY_SECONDS = 10.0
_POD_RESOURCES_SECONDS = 2.0
_LOCK = "device-plugin.lock"
_LOCK_SECONDS = 0.2

_log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """The options; each has an environment variable of its name, ``RINGFENCE_`` in front."""
    options = argparse.ArgumentParser(
        prog="ringfence device-plugin",
        description="Offer this node's AMD GPUs to kubelet and give out what a scheduler decided.",
        epilog="Each option can be set by an environment variable: --state-dir by "
        "RINGFENCE_STATE_DIR. NODE_NAME is the node's name too.",
    )
    options.add_argument(
        "--node-name",
        default=_env("--node-name", os.environ.get("NODE_NAME")),
        help="name of this node in the cluster (default: $NODE_NAME)",
    )
    _path(options, "--kubelet-dir", "/var/lib/kubelet", "kubelet's directory")
    _path(options, "--state-dir", "/var/lib/ringfence", "where the checkpoint is written")
    _path(options, "--socket", "/run/ringfence/enforcer.sock", "the enforcer's socket")
    _path(
        options,
        "--hook-dir",
        "/usr/local/ringfence",
        "the host's directory with the hook, mounted into slices when both its files are there",
    )
    _path(options, "--sys", "/sys", "where sysfs is mounted")
    _path(options, "--dev", "/dev", "where the host's /dev is mounted")
    _path(options, "--kubeconfig", None, "how to reach the API server (default: in the cluster)")
    options.add_argument(
        "--split-count",
        type=_split_count,
        default=_env("--split-count", "0"),
        metavar="N",
        help="containers that may share one GPU; 0: 2 on RDNA4, else 10 (default: 0)",
    )
    options.add_argument(
        "--scheduler",
        choices=["hami"],
        default=_env("--scheduler", "hami"),
        help="whose annotations say what each container gets (default: hami)",
    )
    options.add_argument(
        "--fail-open",
        action="store_true",
        default=_env("--fail-open", "") not in {None, "", "0", "false"},
        help="start containers whose limit nothing can hold, instead of refusing them",
    )
    options.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default=_env("--log-level", "info"),
        help="what to log (default: info)",
    )
    return options


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        return run(arguments, stopping)
    except _StartError as error:
        sys.stderr.write(f"ringfence device-plugin: {error}\n")
        return 1


class _StartError(Exception):
    """Why the plugin cannot start; for the administrator."""


def run(arguments: argparse.Namespace, stopping: threading.Event) -> int:
    """Work until ``stopping`` is set; the exit status."""
    if not arguments.node_name:
        raise _StartError("expected the node's name in --node-name or NODE_NAME, found none")
    api = _connect(arguments)
    lock = _lock(arguments.state_dir, stopping)
    if lock is None:
        return 0
    with lock:
        return _work(arguments, stopping, api)


def _work(arguments: argparse.Namespace, stopping: threading.Event, api: ApiServer) -> int:
    """Wire the parts together, and keep them going."""
    checkpoint = _checkpoint(arguments.state_dir)
    cache = PodCache(api, RESOURCE)
    client = Client(arguments.socket)
    source = GpuSource(Roots(sys=arguments.sys, dev=arguments.dev), client)
    offer = Offer(source.read, arguments.split_count, _INVENTORY_SECONDS, cache.wake)
    release = Release(api, cache, checkpoint, lambda: offer.devices)
    pod_resources = arguments.kubelet_dir / "pod-resources" / "kubelet.sock"
    reaper = Reaper(
        api,
        cache,
        checkpoint,
        lambda: read_pod_resources(pod_resources, RESOURCE, _POD_RESOURCES_SECONDS),
        lambda: offer.devices,
    )
    plugin = DevicePlugin(
        offer,
        cache,
        checkpoint,
        release,
        Holder(client),
        node=arguments.node_name,
        hook_dir=arguments.hook_dir,
        fail_open=arguments.fail_open,
    )
    broken = threading.Event()

    def end(failure: threading.ExceptHookArgs) -> None:
        # A plugin with a part missing would look alive; a new one picks up where this one was.
        name = failure.thread.name if failure.thread else "a thread"
        _log.critical("%s ended by a mistake in it", name, exc_info=failure.exc_value)
        broken.set()
        stopping.set()

    threading.excepthook = end
    parts = (offer, cache, Publisher(api, cache, offer), release, reaper)
    for part in parts:
        part.start()
    registration = Registration(plugin, arguments.kubelet_dir / "device-plugins", RESOURCE)
    registration.run(stopping, lambda: bool(offer.devices))
    for part in reversed(parts):
        part.stop()
    client.close()
    return 1 if broken.is_set() else 0


def _connect(arguments: argparse.Namespace) -> ApiServer:
    # The client costs a third of this process, so it comes after what can be wrong without it.
    from kubernetes.config import ConfigException  # noqa: PLC0415

    from deviceplugin.apiserver import connect  # noqa: PLC0415

    try:
        return connect(arguments.node_name, arguments.kubeconfig)
    except (ConfigException, OSError) as error:
        raise _StartError(
            f"the API server: expected --kubeconfig or a service account, found: {error}"
        ) from error


def _lock(directory: Path, stopping: threading.Event) -> IO[bytes] | None:
    """The state directory's lock; None if this process was told to leave before it got it.

    Each plugin keeps the slices in memory and writes the whole checkpoint, so of two, as an update
    has them for a while, one would drop what the other gave out. The later one stands in line.
    """
    waiting = False
    while not stopping.is_set():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return hold(directory / _LOCK)
        except HeldError as error:
            if not waiting:
                waiting = True
                _log.info("waiting for the other device plugin of this node to end: %s", error)
        except OSError as error:
            raise _StartError(f"the state directory: {error}") from error
        stopping.wait(_LOCK_SECONDS)
    return None


def _checkpoint(directory: Path) -> Checkpoint:
    try:
        return Checkpoint(directory / FILE)
    except (OSError, CheckpointError) as error:
        raise _StartError(f"the checkpoint: {error}") from error


def _env(option: str, default: str | None) -> str | None:
    name = "RINGFENCE_" + option.removeprefix("--").replace("-", "_").upper()
    return os.environ.get(name, default)


def _path(options: argparse.ArgumentParser, name: str, default: str | None, purpose: str) -> None:
    if default is not None:
        purpose = f"{purpose} (default: {default})"
    options.add_argument(name, type=Path, default=_env(name, default), metavar="PATH", help=purpose)


def _split_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"expected 0 to 1000, found {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
