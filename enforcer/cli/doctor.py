# SPDX-License-Identifier: Apache-2.0
"""``ringfence doctor``: what is wrong with this node, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.cli.checks import Finding, Node, State, examine
from enforcer.cli.node import add_options, place
from enforcer.host.roots import Roots
from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.cli.node import Place
    from enforcer.model import Snapshot

_WIDTH = 80
_INDENT = 24
_SIGNS = {State.OK: "ok", State.NOTE: "note", State.PROBLEM: "PROBLEM"}
_SECONDS = 5.0
_PLUGINS = "/var/lib/kubelet/device-plugins"
_KUBELETS = (
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
)
_LINKS = 40
"""As many as the kernel follows (path_resolution(7))."""
_HOOK = "/var/lib/ringfence-hook/current"
_HOOK_VARIABLE = "RINGFENCE_HOOK_DIR"
"""As the device plugin takes it; the chart gives it to the container that the doctor is run in."""


def main(argv: Sequence[str]) -> int:
    """0: no problem; 1: at least one."""
    parser = argparse.ArgumentParser(
        prog="ringfence doctor",
        description="Look at everything Ringfence needs of this node. Changes nothing.",
        epilog="exit status: 0 no problem, 1 at least one problem",
    )
    parser.add_argument("--json", action="store_true", help="the findings, for programs")
    parser.add_argument(
        "--device-plugins-dir", type=Path, metavar="PATH",
        help=f"where device plugins register (the host's {_PLUGINS})",
    )  # fmt: skip
    parser.add_argument(
        "--kubelet-dir", type=Path, metavar="PATH",
        help=f"the kubelet's root directory (the host's first of {', '.join(_KUBELETS)})",
    )  # fmt: skip
    parser.add_argument(
        "--hook-dir", type=Path, metavar="PATH",
        help=f"where the hook's objects lie (the host's ${_HOOK_VARIABLE}, else {_HOOK})",
    )  # fmt: skip
    add_options(parser)
    options = parser.parse_args(argv)
    where = place(options)
    snapshot, silence = _ask(where)
    host = host_root(where.roots.proc)
    if where.roots.dev == Roots().dev:
        # A container's own is as it was when the container was made.
        where = replace(where, roots=replace(where.roots, dev=host / "dev"))
    node = Node(
        where,
        options.device_plugins_dir or on_host(host, _PLUGINS),
        options.kubelet_dir or _kubelet(host),
        options.hook_dir or on_host(host, os.environ.get(_HOOK_VARIABLE, _HOOK)),
        os.geteuid(),
        snapshot,
        silence,
        time.time(),
        run=host / "run" if where.roots.run == Roots().run else where.roots.run,
    )
    findings = examine(node)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print("\n".join(told(findings)))
    return int(any(finding.state is State.PROBLEM for finding in findings))


def host_root(proc: Path) -> Path:
    """The host's root as seen from here: in a container with the host's processes, the first one's.

    So the doctor sees in the enforcer's container what is not mounted there.
    """
    root = proc / "1/root"
    try:
        return Path("/") if root.samefile("/") else root
    except OSError:
        return Path("/")


def on_host(root: Path, name: str) -> Path:
    """The absolute ``name`` below ``root``, its links followed as the host does.

    The kernel would follow an absolute one from our own root, and microk8s has such a one in the
    place of /var/lib/kubelet.
    """
    path, rest, links = root, name.strip("/").split("/")[::-1], 0
    while rest:
        part = rest.pop()
        if part == "..":
            path = path.parent if path != root else root
            continue
        try:
            target = (path / part).readlink()
        except OSError:
            path /= part
            continue
        links += 1
        if links > _LINKS:
            return root / name.strip("/")
        path = root if target.is_absolute() else path
        rest += target.relative_to(target.anchor).parts[::-1]
    return path


def _kubelet(host: Path) -> Path:
    """The first of the directories that some kubelet has for its root and this node has."""
    places = [on_host(host, name) for name in _KUBELETS]
    there = [place for place in places if os.access(place / "pod-resources", os.F_OK)]
    return there[0] if there else places[0]


def told(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings as a table of 80 columns, and the sum of it."""
    for finding in findings:
        head = f"{_SIGNS[finding.state]:<8}{finding.name:<{_INDENT - 8}}"
        yield from _wrapped(head, finding.found)
        if finding.cure:
            yield from _wrapped(" " * (_INDENT - 3) + "-> ", finding.cure)
    counts = Counter(finding.state for finding in findings)
    yield ""
    yield f"{counts[State.PROBLEM]} problems, {counts[State.NOTE]} notes, {counts[State.OK]} ok"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def _ask(where: Place) -> tuple[Snapshot | None, str]:
    if not where.socket.exists():
        return None, f"no socket at {where.socket}"
    from enforcer.api.client import Client, EnforcerError  # noqa: PLC0415 - slow to import

    try:
        with Client(where.socket) as client:
            return client.snapshot(_SECONDS), ""
    except EnforcerError as error:
        return None, str(error)
