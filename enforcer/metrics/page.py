# SPDX-License-Identifier: Apache-2.0
"""The node on one page, for people: HTML and SVG, complete without a script. Pure.

What colour says is said by a letter and in words as well. The colours are those of Okabe and Ito
(jfly.uni-koeln.de/color), which people with any kind of colour blindness can tell apart.
"""

from __future__ import annotations

import time
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from enforcer.model import GIB, MIB, Why
from enforcer.table import cards, cu_count, cu_ids, spilled, used

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from enforcer.model import ContainerUsage, Incident, LayerState, Snapshot
    from enforcer.table import Card

_COLOURS = 8
_WHITE_ON = 4
"""The one colour that black letters cannot be read on."""
_SHOWN = 20
_REFRESH = 10
_LETTER_PERCENT = 5
"""Of the bar's width, that a letter needs on a telephone."""
_ON_GROUND = 'class="on-ground"'
_COLUMNS = 32
_NEVER_HAD = (Why.NO_REGION, Why.SWITCHED_OFF, Why.NOT_POSSIBLE, Why.SYSTEM_MEMORY)

_HATCH = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern>'
    "</defs></svg>"
)


def page(snapshot: Snapshot | None, node: str, version: str) -> str:
    """The whole document. None: before the first pass."""
    name = node or "this node"
    body = (
        "<p>The first pass over the node is not done yet.</p>"
        if snapshot is None
        else "".join(_body(snapshot))
    )
    style = resources.files("enforcer.metrics").joinpath("page.css").read_text()
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{_REFRESH}">'
        f"<title>{escape(name)}: GPU shares</title><style>{style}</style></head><body>"
        f"{_HATCH}<header><h1>GPUs of {escape(name)}</h1></header>{body}"
        f'<p class="faint">Ringfence {escape(version)} · every {_REFRESH} s anew · '
        "numbers for programs: /metrics</p></body></html>\n"
    )


def size(value: int | None) -> str:
    """To the byte where that is short, else in GiB with two places; a dash is unknown."""
    if value is None:
        return "-"
    if value >= GIB:
        return f"{value // GIB} GiB" if value % GIB == 0 else f"{value / GIB:.2f} GiB"
    if value >= MIB:
        return f"{value // MIB} MiB" if value % MIB == 0 else f"{value / MIB:.2f} MiB"
    return f"{value // 1024} KiB" if value and value % 1024 == 0 else f"{value} B"


def letter(index: int) -> str:
    """A, B ... Z, AA, AB ..."""
    text = chr(ord("A") + index % 26)
    return text if index < 26 else letter(index // 26 - 1) + text


def _body(snapshot: Snapshot) -> Iterator[str]:
    support = snapshot.support
    clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.time))
    yield (
        f'<p class="facts faint"><span>as of {clock}</span>'
        f"{''.join(f'<span>{one}</span>' for one in _states((support.gate, support.dmem)))}"
        f"<span>ledger {escape(support.ledger)}</span></p>"
    )
    if snapshot.problems:
        yield f'<section><h2 class="bad">▲ Problems: {len(snapshot.problems)}</h2>'
        yield _list(snapshot.problems)
        yield "</section>"
    found = cards(snapshot)
    if not found:
        yield "<section><h2>No AMD GPU</h2><p>Is amdgpu loaded? See <code>ringfence doctor</code>."
        yield "</p></section>"
    for card in found:
        yield from _card(card)
    yield '<section><h2>Last refusals <span class="faint">(UTC)</span></h2>'
    yield _incidents(snapshot.incidents)
    yield "</section>"


def _card(card: Card) -> Iterator[str]:
    yield '<section><div class="gpu"><div class="wide">'
    yield f"<h2>{escape(card.name)}</h2>"
    yield f'<p class="facts faint"><span>{escape(card.bdf)}</span>{_load(card)}</p></div>'
    yield "<div><h3>VRAM</h3>"
    yield _vram(card)
    yield "</div><div><h3>Compute units</h3>"
    yield _cus(card)
    yield '</div><div class="wide">'
    yield _table(card.rows)
    yield "</div></div></section>"


def _load(card: Card) -> str:
    if not card.gpus:
        return '<span class="bad">▲ slices name it, the node has it not</span>'
    parts = []
    if (health := card.health) is not None:
        parts.append(
            '<span class="good">✓ healthy</span>'
            if health.healthy
            else f'<span class="bad">▲ unhealthy: {escape(health.reason)}</span>'
        )
        if health.last_reset is not None:
            clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(health.last_reset))
            parts.append(f"<span>reset {clock}</span>")
    load = card.load
    if load is None:
        return "".join(parts)
    if load.busy_percent is not None:
        parts.append(f"<span>{load.busy_percent} % busy</span>")
    if load.temperature is not None:
        parts.append(f"<span>{load.temperature:.0f} °C</span>")
    if load.power is not None:
        parts.append(f"<span>{load.power:.0f} W</span>")
    return "".join(parts)


def _vram(card: Card) -> str:
    total = card.vram
    if not total:
        return '<p class="faint">Its size is not known.</p>'
    parts = [
        '<svg height="58" role="img" aria-label="VRAM by container">'
        '<rect class="room" width="100%" height="40" rx="3"/>'
    ]
    # Oversubscribed GPUs have more booked than they have.
    scale = 100 / max(total, card.booked)
    left = 0.0
    for index, row in enumerate(card.rows):
        booked = total if row.limit is None else row.limit
        held, outside = used(row) or 0, spilled(row) or 0
        width = booked * scale
        solid, hatched = min(held, booked) * scale, min(outside, held, booked) * scale
        colour = f"c{index % _COLOURS}"
        title = f"{letter(index)} {_who(row)}: {size(held)} of {size(booked)}"
        if outside:
            title += f", {size(outside)} of it in system memory"
        parts.append(f"<g><title>{escape(title)}</title>")
        parts.append(_bar(left, width, f"{colour} tint"))
        parts.append(_bar(left, solid, colour))
        if hatched:
            parts.append(_bar(left + solid - hatched, hatched, "", 'fill="url(#hatch)"'))
        parts.append(_bar(left, width, "edge"))
        if width > _LETTER_PERCENT:
            on_colour = f'class="{_ink(index)}"' if solid > _LETTER_PERCENT else _ON_GROUND
            parts.append(f'<text x="{left:.3f}%" dx="7" y="25" {on_colour}>{letter(index)}</text>')
        parts.append("</g>")
        left += width
    card_used = None if card.load is None else card.load.vram_used
    if card_used is not None:
        parts.append('<rect class="room" y="46" width="100%" height="8" rx="2"/>')
        share = min(100.0, card_used * 100 / total)
        parts.append(f'<rect class="card-used" y="46" width="{share:.3f}%" height="8" rx="2"/>')
    parts.append("</svg>")
    over = card.booked - total
    parts.append(
        f'<p class="facts number"><span>booked {size(card.booked)} of {size(total)}</span>'
        f"<span>held by slices {size(card.used)}</span>"
        f"<span>in use on the card {size(card_used)}</span>"
        + (f"<span>orphaned {size(card.orphaned)}</span>" if card.orphaned else "")
        + (f'<span class="bad">▲ {size(over)} more booked than there is</span>' if over > 0 else "")
        + '</p><p class="faint">Framed: booked. Filled: held. Striped: spilled to system memory. '
        "The thin bar: in use on the card.</p>"
    )
    return "".join(parts)


def _bar(left: float, width: float, names: str, more: str = "") -> str:
    return f'<rect class="{names}" x="{left:.3f}%" y="0" width="{width:.3f}%" height="40" {more}/>'


def _cus(card: Card) -> str:
    total = card.cu_count
    if not total:
        return '<p class="faint">Their number is not known.</p>'
    owners: dict[int, list[int]] = {}
    every = []
    for index, row in enumerate(card.rows):
        try:
            mask = None if row.cus is None else cu_ids(row.cus)
        except ValueError:
            mask = None
        if mask is None:
            every.append(index)
        for number in mask or ():
            owners.setdefault(number, []).append(index)
    given = len([number for number in owners if number < total])
    xccs = sum(gpu.xcc_count or 1 for gpu in card.gpus)
    columns = total // xccs if xccs > 1 and total % xccs == 0 else _COLUMNS
    columns = min(columns, 2 * _COLUMNS, total)
    narrow = columns if columns % 2 else columns // 2
    parts = [
        '<div class="cus" role="img" aria-label="compute units by container" '
        f'style="--columns:{columns};--narrow:{narrow}">'
    ]
    # Several that may use every one say nothing about any.
    rest = every if len(every) == 1 else []
    parts += [_cell(number, owners.get(number, rest), card.rows) for number in range(total)]
    parts.append("</div><p>")
    parts.append(f'<span class="number">{given} of {total}</span> given out by mask')
    shared = len([number for number, who in owners.items() if len(who) > 1])
    if shared:
        parts.append(f", {shared} of them to more than one (<b>+</b>)")
    if every:
        names = ", ".join(letter(index) for index in every)
        parts.append(f"; without a mask, and so on all of them: {names}")
    parts.append("</p>")
    return "".join(parts)


def _cell(number: int, who: list[int], rows: tuple[ContainerUsage, ...]) -> str:
    if not who:
        return f'<i class="free" title="CU {number}: in no mask"></i>'
    names = ", ".join(f"{letter(index)} {_who(rows[index])}" for index in who)
    look, text = f"c{who[0] % _COLOURS} {_ink(who[0])}", letter(who[0])
    if len(who) > 1:
        look, text = "shared", "+"
    return f'<i class="{look}" title="CU {number}: {escape(names)}">{text}</i>'


def _ink(index: int) -> str:
    return "chalk" if index % _COLOURS == _WHITE_ON else "ink"


def _table(rows: tuple[ContainerUsage, ...]) -> str:
    if not rows:
        return '<p class="faint">No container has a slice of it.</p>'
    numbers = "".join(
        f'<th class="n">{name}</th>'
        for name in ("Limit", "Held", "Spilled", "Peak", "CUs", "Refused")
    )
    lines = []
    for index, row in enumerate(rows):
        chip = (
            f'<svg class="chip" viewBox="0 0 34 29"><rect class="c{index % _COLOURS}" width="34" '
            f'height="29" rx="4"/><text x="17" y="20" text-anchor="middle" class="{_ink(index)}">'
            f"{letter(index)}</text></svg>"
        )
        refusals = row.usage.refusals
        lines.append(
            f'<tr><td class="who">{chip} <b>{escape(row.pod)}</b> '
            f'<span class="faint">in {escape(row.namespace)}, container</span> '
            f"{escape(row.container)}</td>"
            + (_count("Limit", "whole GPU") if row.limit is None else _bytes("Limit", row.limit))
            + _bytes("Held", used(row))
            + _bytes("Spilled", spilled(row))
            + _bytes("Peak", row.usage.peak)
            + _count("CUs", "all" if (count := cu_count(row)) is None else str(count))
            + _count("Refused", "-" if refusals is None else str(refusals))
            + f'<td class="layers" data-label="Layers"><span>{_layers(row.layers)}</span></td></tr>'
        )
    return (
        f"<table><thead><tr><th>Container</th>{numbers}<th>Layers</th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _bytes(label: str, value: int | None) -> str:
    """Rounded for the eye, exact in the title."""
    title = "" if value is None else f' title="{value} bytes"'
    return f'<td class="n" data-label="{label}"{title}>{size(value)}</td>'


def _count(label: str, text: str) -> str:
    return f'<td class="n" data-label="{label}">{text}</td>'


def _layers(layers: tuple[LayerState, ...]) -> str:
    if not layers:
        return '<span class="faint">none: accounted, not limited</span>'
    return "<br>".join(_states(layers))


def _states(layers: tuple[LayerState, ...]) -> Iterator[str]:
    """What the node never had is no fault while another layer holds."""
    held = any(state.on for state in layers)
    for state in layers:
        if state.on:
            sign, name = "✓", "good"
        elif held and state.reason in _NEVER_HAD:
            sign, name = "○", "faint"
        else:
            sign, name = "✗", "bad"
        text = escape(str(state))
        yield f'{escape(state.layer.value)}&nbsp;<span class="{name}">{sign}&nbsp;{text}</span>'


def _incidents(incidents: tuple[Incident, ...]) -> str:
    if not incidents:
        return '<p class="faint">None since this enforcer started.</p>'
    lines = []
    for one in incidents[:_SHOWN]:
        clock = time.strftime("%H:%M:%S", time.gmtime(one.time))
        who = f"container {one.container} of" if one.container else "pod"
        times = f" ({one.count} times)" if one.count > 1 else ""
        where = f" on {one.bdf}" if one.bdf else ""
        lines.append(f"{clock} {who} {one.namespace}/{one.pod}{where}: {one.text}{times}")
    if len(incidents) > _SHOWN:
        lines.append(f"and {len(incidents) - _SHOWN} older ones")
    return _list(lines)


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _who(row: ContainerUsage) -> str:
    return f"{row.namespace}/{row.pod} {row.container}"
