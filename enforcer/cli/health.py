# SPDX-License-Identifier: Apache-2.0
"""``ringfence health``: how a daemon of this container goes, for its probes and for people."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enforcer.host.heartbeat import read_verdict
from enforcer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER: Final = Path("/run/ringfence-health")
"""Where the chart has each daemon write its file, by its name."""


def main(argv: Sequence[str]) -> int:
    """0 if the daemon is ready, or with ``--live`` only alive; else 1; and a line why."""
    parser = argparse.ArgumentParser(
        prog="ringfence health",
        description="Whether a daemon is ready: at work, or in line for when another one ends.",
        epilog="It runs where the daemon runs: kubectl exec POD -c enforcer -- "
        "ringfence health enforcer",
    )
    parser.add_argument("daemon", choices=("enforcer", "device-plugin"))
    parser.add_argument(
        "--live",
        action="store_true",
        help="only whether its loop comes by at all, or its start is not overdue",
    )
    parser.add_argument(
        "--heartbeat",
        type=Path,
        help=f"the file of that option of the daemon (default: {FOLDER}/DAEMON)",
        metavar="PATH",
    )
    options = parser.parse_args(argv)
    found = read_verdict(options.heartbeat or FOLDER / options.daemon, time.monotonic())
    state = "ready" if found.ready else "alive, not ready" if found.live else "not alive"
    sys.stdout.write(f"{options.daemon}: {state}: {printable(found.line)}\n")
    return int(not (found.live if options.live else found.ready))
