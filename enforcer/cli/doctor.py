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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.cli.node import Place
    from enforcer.model import Snapshot

_WIDTH = 80
_INDENT = 24
_SIGNS = {State.OK: "ok", State.NOTE: "note", State.PROBLEM: "PROBLEM"}
_SECONDS = 5.0


def main(argv: Sequence[str]) -> int:
    """0: no problem; 1: at least one."""
    parser = argparse.ArgumentParser(
        prog="ringfence doctor",
        description="Look at everything Ringfence needs of this node. Changes nothing.",
        epilog="exit status: 0 no problem, 1 at least one problem",
    )
    parser.add_argument("--json", action="store_true", help="the findings, for programs")
    parser.add_argument(
        "--kubelet-dir", type=Path, metavar="PATH",
        help="the kubelet's directory (the host's /var/lib/kubelet)",
    )  # fmt: skip
    parser.add_argument(
        "--hook-dir", type=Path, metavar="PATH",
        help="where the hook's objects lie (the host's /var/lib/ringfence-hook/current)",
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
        options.kubelet_dir or host / "var/lib/kubelet",
        options.hook_dir or host / "var/lib/ringfence-hook/current",
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
        text,
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
