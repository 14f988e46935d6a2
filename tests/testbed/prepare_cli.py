# SPDX-License-Identifier: Apache-2.0
"""`tests/testbed/prepare`: brings a fresh machine to the point where tests can run."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import image, kernels, kmodule, kubernetes, packages, stock, venv
from tests.testbed.cache import Cache, Report, StepError
from tests.testbed.stopping import stop_by_exception

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = Path(__file__).resolve().parents[2]

_NAMES: dict[str, tuple[str, ...]] = {
    "packages": (),
    "venv": (),
    "kernel": kernels.LINES,
    "driver": kernels.LINES,
    "stock": stock.NAMES,
    "kubelet": (),
}
"""Steps in the order in which each has what it needs, and the names each can be given."""

_UNNAMED = {"kernel": kernels.EVERYDAY, "driver": kernels.EVERYDAY}
"""Of steps that without a name are not all of their kind."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One step; `name` is empty for steps that have none."""

    step: str
    name: str = ""


def wishes(words: Sequence[str]) -> list[Wish]:
    """The steps asked for: `kernel dmem` is one of them, `kernel` alone all that every tier uses.

    `all` is every step without a name.

    Raises ValueError for a word that is neither a step nor a name of the step before it.
    """
    wanted: list[Wish] = []
    pending = list(words) or ["all"]
    while pending:
        step = pending.pop(0)
        if step == "all":
            wanted += [wish for each in _NAMES for wish in _every(each)]
            continue
        if step not in _NAMES:
            raise ValueError(f"expected one of {', '.join(_NAMES)} or all, found {step!r}")
        named = []
        while pending and pending[0] in _NAMES[step]:
            named.append(Wish(step, pending.pop(0)))
        wanted += named or _every(step)
    order = list(_NAMES)
    return sorted(dict.fromkeys(wanted), key=lambda wish: order.index(wish.step))


def main(argv: Sequence[str]) -> int:
    """Do the steps; 0 if all are done, 1 with a message that says what to do if one is not."""
    parser = argparse.ArgumentParser(
        prog="tests/testbed/prepare",
        description="Prepare this machine: packages, Python, kernels, driver, kubelet.",
        epilog="Everything built is kept in $RINGFENCE_CACHE (default ~/.cache/ringfence).",
    )
    parser.add_argument("--refresh", action="store_true", help="look for newer packages to build")
    parser.add_argument(
        "steps",
        nargs="*",
        metavar="STEP",
        help="packages, venv, kernel [dmem|nodmem|dmem-7.2], driver [dmem|nodmem|dmem-7.2], "
        "stock [6.1|6.12|newest], kubelet, all (default)",
    )
    options = parser.parse_args(argv)
    try:
        wanted = wishes(options.steps)
    except ValueError as error:
        parser.error(str(error))
    stop_by_exception()
    cache = Cache.from_environment(os.environ)
    report = Report()
    try:
        cache.root.mkdir(parents=True, exist_ok=True)
        for wish in wanted:
            _do(wish, cache, report, refresh=options.refresh)
    except (StepError, OSError) as error:
        print(f"tests/testbed/prepare: {error}", file=sys.stderr)
        return 1
    report(f"ready: {', '.join(f'{wish.step} {wish.name}'.strip() for wish in wanted)}")
    return 0


def _do(wish: Wish, cache: Cache, report: Report, *, refresh: bool) -> None:
    match wish.step:
        case "packages":
            packages.prepare(cache, report)
        case "venv":
            place = venv.prepare(cache, PROJECT, report)
            image.prepare(cache, image.python_directories(place), report)
        case "kernel":
            kernels.prepare(cache, wish.name, report, refresh=refresh)
        case "driver":
            kmodule.prepare(cache, kernels.prepare(cache, wish.name, report), report)
        case "stock":
            stock.prepare(cache, wish.name, report, refresh=refresh)
        case "kubelet" if kubernetes.obtainable(platform.freedesktop_os_release()):
            kubernetes.prepare(cache, report, refresh=refresh)
        case "kubelet":
            report("kubelet: left out, as its source is in Debian's archive alone")
        case other:
            raise AssertionError(other)


def _every(step: str) -> list[Wish]:
    return [Wish(step, name) for name in _UNNAMED.get(step, _NAMES[step])] or [Wish(step)]
