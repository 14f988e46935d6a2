# SPDX-License-Identifier: Apache-2.0
"""``ringfence top``: every GPU of the node and every container that has a slice of it, live."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from enforcer.cli.node import Place, Seen, add_options, look, place
from enforcer.model import GIB, MIB
from enforcer.printable import printable
from enforcer.table import cards, cu_count, spilled, used

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enforcer.model import ContainerUsage
    from enforcer.table import Card

WIDTH = 80
_BAR = 44
_NUMBERS = f"{'LIMIT':>8}{'HELD':>8}{'SPILLED':>8}{'CUS':>5}{'BUSY':>5}{'REFUSED':>8} LAYERS"
_LAYERS = 9
_HOME = "\x1b[H\x1b[J"
_SCREEN = "\x1b[?1049h\x1b[?25l"
_BACK = "\x1b[?25h\x1b[?1049l"


def main(argv: Sequence[str]) -> int:
    """Until Ctrl-C, or once; 1 if the last look met a problem."""
    parser = argparse.ArgumentParser(
        prog="ringfence top",
        description="Every GPU of this node and every container that has a slice of it. HELD is "
        "what counts against the limit, SPILLED the part of it that lies in system memory, BUSY "
        "the compute units at work (Instinct). In the bar an upper-case letter is VRAM held, a "
        "lower-case one VRAM booked and not held.",
    )
    parser.add_argument("--once", action="store_true", help="one look, then leave")
    parser.add_argument("--json", action="store_true", help="one look, to the byte, for programs")
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="S", help="seconds between looks"
    )
    add_options(parser)
    options = parser.parse_args(argv)
    where = place(options)
    if options.json:
        seen = look(where)
        print(json.dumps({"by": seen.by, "why": seen.why, **asdict(seen.snapshot)}, indent=1))
        return int(bool(seen.snapshot.problems))
    if options.once or not sys.stdout.isatty():
        seen = look(where)
        print("\n".join(lines(seen, max(WIDTH, shutil.get_terminal_size().columns))))
        return int(bool(seen.snapshot.problems))
    return _live(where, options.interval)


def lines(seen: Seen, width: int = WIDTH) -> list[str]:
    """The whole table, printable, no line longer than ``width`` (at least 80)."""
    return [printable(line)[:width] for line in _lines(seen, width)]


def _live(where: Place, interval: float) -> int:
    sys.stdout.write(_SCREEN)
    problems = False
    try:
        while True:
            seen = look(where)
            problems = bool(seen.snapshot.problems)
            size = shutil.get_terminal_size()
            shown = lines(seen, max(WIDTH, size.columns))
            if len(shown) > size.lines - 1:
                left = len(shown) - size.lines + 2
                shown = [*shown[: size.lines - 2], f"... {left} lines more: --once shows all"]
            sys.stdout.write(_HOME + "\n".join(line[: size.columns] for line in shown))
            sys.stdout.flush()
            time.sleep(interval)
    except KeyboardInterrupt:
        return int(problems)
    finally:
        sys.stdout.write(_BACK)
        sys.stdout.flush()


def _lines(seen: Seen, width: int) -> Iterator[str]:
    snapshot, support = seen.snapshot, seen.snapshot.support
    clock = time.strftime("%H:%M:%S", time.gmtime(snapshot.time))
    yield f"{clock} UTC   seen by {seen.by}   ledger {support.ledger}"
    yield f"gate {support.gate}   dmem {support.dmem}"
    if seen.why:
        yield from textwrap.wrap(f"the enforcer was not asked: {seen.why}", width)
    found = cards(snapshot)
    if not found:
        yield "no AMD GPU; `ringfence doctor` looks for the reason"
    for card in found:
        yield ""
        yield from _card(card, width)
    if snapshot.problems:
        yield ""
        for problem in snapshot.problems:
            yield from textwrap.wrap(f"! {problem}", width, subsequent_indent="  ")


def _card(card: Card, width: int) -> Iterator[str]:
    load = card.load
    parts = [f"GPU {card.bdf}  {card.name}"]
    if load is not None:
        parts += [f"{load.busy_percent}%"] if load.busy_percent is not None else []
        parts += [f"{load.temperature:.0f}C"] if load.temperature is not None else []
        parts += [f"{load.power:.0f}W"] if load.power is not None else []
    yield "  ".join(parts)
    if card.health is not None and not card.health.healthy:
        yield f"! unhealthy: {card.health.reason}"
    total = card.vram
    if total:
        card_used = None if load is None else load.vram_used
        yield f"[{_bar(card, total)}] {_size(card_used)} used of {_size(total)}"
    if card.orphaned:
        yield f"! {_size(card.orphaned)} charged for containers that are gone: others keep it"
    if not card.rows:
        yield "no container has a slice of it"
        return
    who = width - len(_NUMBERS) - _LAYERS + len("LAYERS")
    yield f"{'  CONTAINER':{who}}{_NUMBERS}"
    for index, row in enumerate(card.rows):
        yield f"{letter(index)} {_name(row, who - 3)} {_numbers(row)}"


def _numbers(row: ContainerUsage) -> str:
    count = cu_count(row)
    busy = None if row.activity is None else row.activity.cu_occupancy
    refused = row.usage.refusals
    on = "+".join(state.layer.value for state in row.layers if state.on)
    return (
        f"{'whole' if row.limit is None else _size(row.limit):>8}{_size(used(row)):>8}"
        f"{_size(spilled(row)):>8}{'all' if count is None else count:>5}"
        f"{'-' if busy is None else busy:>5}{'-' if refused is None else refused:>8} "
        f"{on or ('none' if row.layers else '-')}"
    )


def letter(index: int) -> str:
    """A to Z, and over again: the bar has one column for it."""
    return chr(ord("A") + index % 26)


def _bar(card: Card, total: int) -> str:
    """Booked from the left, each container's held part first."""
    scale = _BAR / max(total, card.booked)
    cells, end = "", 0.0
    for index, row in enumerate(card.rows):
        booked = total if row.limit is None else row.limit
        start, end = end, end + booked * scale
        room = round(end) - round(start)
        held = min(room, -(-min(used(row) or 0, booked) * room // booked) if booked else 0)
        cells += letter(index) * held + letter(index).lower() * (room - held)
    return f"{cells:.<{_BAR}}"


def _name(row: ContainerUsage, width: int) -> str:
    """``namespace/pod/container``; what does not fit is cut out of its middle."""
    text = f"{row.namespace}/{row.pod}/{row.container}"
    if len(text) <= width:
        return text.ljust(width)
    half = (width - 2) // 2
    return f"{text[: width - 2 - half]}..{text[len(text) - half :]}"


def _size(value: int | None) -> str:
    """Seven columns: exact in MiB below 10 GiB, else GiB with a place."""
    if value is None:
        return "-"
    if value < MIB:
        return f"{value // 1024}Ki" if value and value % 1024 == 0 else f"{value}"
    if value < 10 * GIB:
        return f"{value // MIB}Mi" if value % MIB == 0 else f"{value / MIB:.1f}Mi"
    return f"{value // GIB}Gi" if value % GIB == 0 else f"{value / GIB:.1f}Gi"


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected 0.1 to 3600 seconds, found {text!r}")
    return value
