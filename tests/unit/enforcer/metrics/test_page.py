# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.metrics.page import letter, page, size
from enforcer.model import GIB, Layer, LayerState, Snapshot, Usage, Why
from tests.unit.enforcer.sample import GPUS, ILL, NO_DMEM, ORPHANED, ROWS, SNAPSHOT

VOID = {"meta", "br"}


class Checked(HTMLParser):
    """Elements closed in the order they were opened, and no id twice."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def checked(snapshot: Snapshot | None) -> Checked:
    reader = Checked()
    reader.feed(page(snapshot, "node-a", "1.2.3"))
    reader.close()
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    return reader


def words(snapshot: Snapshot | None) -> str:
    return " ".join(" ".join(checked(snapshot).text).split()).replace("\xa0", " ")


def test_it_needs_no_script_and_nothing_from_elsewhere() -> None:
    text = page(SNAPSHOT, "node-a", "1")
    assert "script" not in checked(SNAPSHOT).names
    assert not re.search(r"(src|href)=|@import|url\((?!#)", text)


def test_it_names_gpus_containers_and_what_they_hold() -> None:
    text = words(SNAPSHOT)
    for word in (
        "GPUs of node-a", "0000:03:00.0", "73 % busy", "61 °C", "train", "64 GiB", "48 GiB",
        "6 GiB", "booked 112 GiB of 192 GiB", "in use on the card 81 GiB", "whole GPU",
        "248 of 304 given out by mask, 8 of them to more than one",
        "without a mask, and so on all of them: A",
    ):  # fmt: skip
        assert word in text


def test_what_outlived_its_container_is_told_with_the_gpu() -> None:
    assert words(ORPHANED).count("orphaned 4 GiB") == 1
    assert "orphaned" not in words(SNAPSHOT)


def test_every_size_is_there_to_the_byte() -> None:
    row = replace(ROWS[0], usage=Usage(requested=GIB + 1, resident=GIB, peak=GIB + 3))
    text = page(replace(SNAPSHOT, containers=(row,)), "", "")
    for label, value in (("Limit", 64 * GIB), ("Held", GIB + 1), ("Spilled", 1), ("Peak", GIB + 3)):
        assert f'data-label="{label}" title="{value} bytes"' in text


def test_a_layer_that_is_off_says_so_in_words() -> None:
    rows = (replace(ROWS[0], layers=NO_DMEM),)
    assert "dmem ○ off: no dmem region for this GPU" in words(replace(SNAPSHOT, containers=rows))


def test_colour_is_never_all_that_tells_containers_apart() -> None:
    many = tuple(
        replace(ROWS[0], pod=f"p{n:02}", limit=4 * GIB, cus=f"{n * 9}-{n * 9 + 8}")
        for n in range(30)
    )
    text = page(replace(SNAPSHOT, containers=many), "", "")
    for n in range(30):
        assert f">{letter(n)}</text>" in text
    assert len({letter(n) for n in range(800)}) == 800


def test_more_booked_than_there_is_stays_within_the_bar() -> None:
    rows = tuple(replace(ROWS[0], pod=f"p{n}", limit=100 * GIB) for n in range(4))
    text = page(replace(SNAPSHOT, containers=rows), "", "")
    assert "208 GiB more booked than there is" in words(replace(SNAPSHOT, containers=rows))
    ends = [
        float(left) + float(width)
        for left, width in re.findall(r'x="([\d.]+)%" y="0" width="([\d.]+)%"', text)
    ]
    assert max(ends) <= 100.001


def test_what_a_tenant_names_is_text_and_no_markup() -> None:
    evil = "<script>alert(1)</script>\"&'"
    row = replace(ROWS[0], pod=evil, namespace=evil, container=evil, cus="0-3")
    incident = replace(SNAPSHOT.incidents[0], text=evil, pod=evil)
    snapshot = replace(
        SNAPSHOT, containers=(row,), incidents=(incident,), problems=(evil,),
        gpus=(replace(GPUS[0], name=evil),),
    )  # fmt: skip
    reader = checked(snapshot)
    assert "script" not in reader.names
    assert evil in "".join(reader.text)


def test_a_gpu_that_only_slices_name_is_shown_as_missing() -> None:
    text = words(replace(SNAPSHOT, gpus=GPUS[1:]))
    assert "slices name it, the node has it not" in text


def test_a_gpu_without_a_known_size_or_load_has_no_bar() -> None:
    bare = tuple(replace(gpu, vram_bytes=None, cu_count=0) for gpu in GPUS)
    assert "Its size is not known." in words(replace(SNAPSHOT, gpus=bare, loads=()))


def test_each_compute_unit_says_whose_it_is() -> None:
    text = page(replace(SNAPSHOT, containers=ROWS[:3]), "node-a", "1")
    grid = text[text.index('<div class="cus"') :].partition("</div>")[0]
    assert 'style="--columns:38;--narrow:19"' in grid
    assert grid.count("<i ") == GPUS[0].cu_count
    assert grid.count('<i class="c0 ink"') == 220 - 152
    assert grid.count('<i class="shared"') == 228 - 220
    assert grid.count('<i class="free"') == 304 - 248
    assert '<i class="c2 ink" title="CU 151: C team-a/train main">C</i>' in grid
    both = "A team-a/infer main, B team-a/notebook-of-somebody-with-a-long-name main"
    assert f'title="CU 227: {both}">+</i>' in grid


def test_several_without_a_mask_leave_the_compute_units_to_all() -> None:
    rows = (replace(ROWS[0], cus=None), replace(ROWS[1], cus=None), replace(ROWS[2], cus="0-3"))
    snapshot = replace(SNAPSHOT, containers=rows)
    grid = page(snapshot, "node-a", "1").partition('<div class="cus"')[2].partition("</div>")[0]
    assert grid.count('<i class="free"') == GPUS[0].cu_count - 4
    assert "4 of 304 given out by mask; without a mask, and so on all of them: A, C" in words(
        snapshot
    )


@pytest.mark.parametrize(
    ("gate", "dmem", "shown"),
    [
        (None, Why.NO_REGION, ("good", "faint")),
        (Why.SWITCHED_OFF, None, ("faint", "good")),
        (Why.NOT_POSSIBLE, None, ("faint", "good")),
        (None, Why.NO_CONTROLLER, ("good", "bad")),
        (Why.NOT_LOADED, Why.NO_REGION, ("bad", "bad")),
        (Why.SWITCHED_OFF, Why.SWITCHED_OFF, ("bad", "bad")),
    ],
)
def test_what_a_node_never_had_is_no_fault_while_another_layer_holds(
    gate: Why | None, dmem: Why | None, shown: tuple[str, str]
) -> None:
    layers = (LayerState(Layer.GATE, gate), LayerState(Layer.DMEM, dmem))
    text = page(replace(SNAPSHOT, containers=(replace(ROWS[0], layers=layers),)), "node-a", "1")
    cell = text.partition('data-label="Layers"')[2].partition("</td>")[0]
    assert tuple(re.findall(r'<span class="(\w+)">', cell)) == shown


def test_a_mask_that_is_none_does_not_cost_the_page() -> None:
    row = replace(ROWS[0], cus="all of them")
    assert "train" in words(replace(SNAPSHOT, containers=(row,)))


@pytest.mark.parametrize(
    ("snapshot", "word"),
    [
        (None, "not done yet"),
        (replace(SNAPSHOT, gpus=(), containers=(), loads=()), "No AMD GPU"),
        (replace(SNAPSHOT, containers=()), "No container has a slice of it."),
        (SNAPSHOT, "✓ healthy reset 2026-11-18 10:51:40 UTC"),
        (replace(SNAPSHOT, health=(ILL,)), "▲ unhealthy: wedged: the driver asks for rebind"),
        (replace(SNAPSHOT, incidents=()), "None since this enforcer started."),
        (replace(SNAPSHOT, incidents=SNAPSHOT.incidents * 25), "and 5 older ones"),
        (replace(SNAPSHOT, problems=("one", "two")), "Problems: 2"),
    ],
)
def test_every_state_of_a_node_has_its_words(snapshot: Snapshot | None, word: str) -> None:
    assert word in words(snapshot)


def test_states_that_are_unknown_are_dashes() -> None:
    row = replace(ROWS[0], usage=Usage(), activity=None, layers=())
    text = words(replace(SNAPSHOT, containers=(row,)))
    assert "- - - 152 -" in text
    assert "accounted, not limited" in text


@given(st.integers(0, 1 << 50))
def test_a_size_is_short(value: int) -> None:
    assert len(size(value)) <= 15


def test_sizes_are_rounded_only_where_they_must_be() -> None:
    assert [size(one) for one in (None, 0, 4096, 1 << 20, (1 << 20) + 1, 3 << 29)] == [
        "-", "0 B", "4 KiB", "1 MiB", "1.00 MiB", "1.50 GiB",
    ]  # fmt: skip


def test_the_host_layers_are_told() -> None:
    support = replace(SNAPSHOT.support, gate=LayerState(Layer.GATE, Why.NOT_LOADED))
    assert "gate ✗ off: gate not loaded" in words(replace(SNAPSHOT, support=support))
