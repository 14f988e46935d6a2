# SPDX-License-Identifier: Apache-2.0
"""A loader that finds its own build attached, whole and acting, leaves it as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bpf import loader
from enforcer.model import MIB
from tests.vm.guest.gatenode import OBJECTS, PINS, Node

if TYPE_CHECKING:
    from pathlib import Path


GATE = OBJECTS / "gate.bpf.o"
LEDGER = OBJECTS / "ledger.bpf.o"


def pins() -> set[str]:
    return {str(path.relative_to(PINS)) for path in PINS.rglob("*")}


def holds(node: Node) -> None:
    """The limit, to the byte, and what is given back."""
    box = node.cgroup("box", MIB)
    caller = node.caller(box)
    for _ in range(2):
        handle = caller.do("kfd_alloc", node.kfd_id, MIB)
        assert caller.refused("gem_create", node.render, 1) == "ENOMEM"
        caller.do("kfd_free", handle)
    caller.end()


def test_both_parts_stay_and_are_what_was_loaded(gate: loader.Gate, node: Node) -> None:
    before, tests = pins(), node.counted("self_tests")
    kept = loader.load_gate(GATE, PINS, keep=True)
    proven = node.counted("self_tests") - tests
    assert proven == sum(name in loader._HOOKS for name, why in gate.attached.items() if not why)
    assert (kept.generation, kept.attached) == (gate.generation, gate.attached)
    assert kept.self_test()
    ledger = loader.load_ledger(LEDGER, PINS, keep=True)
    again = loader.load_ledger(LEDGER, PINS, keep=True)
    assert (again.generation, again.attached) == (ledger.generation, ledger.attached)
    assert pins() == before
    holds(node)


@pytest.mark.parametrize("gone", ["ledger_forget", "ledger_bo_destroy", "ledger_record"])
def test_one_that_is_not_whole_is_loaded_anew(node: Node, gone: str) -> None:
    whole = {name.partition("/")[2] for name in pins()}
    (pin,) = (path for path in PINS.rglob("*") if path.name == gone)
    pin.unlink()
    before = int(pin.parent.name)
    assert loader.load_ledger(LEDGER, PINS, keep=True).generation > before
    assert {name.partition("/")[2] for name in pins()} == whole
    holds(node)


def test_one_of_another_build_or_that_does_not_act_is_loaded_anew(
    node: Node, tmp_path: Path
) -> None:
    other = tmp_path / "gate.bpf.o"
    other.write_bytes(GATE.read_bytes() + bytes(8))
    first = loader.load_gate(GATE, PINS, keep=True).generation
    second = loader.load_gate(other, PINS, keep=True).generation
    assert second > first
    assert loader.load_gate(other, PINS, keep=True).generation == second
    with loader.open_maps(PINS) as maps:
        maps._stop(loader._Part.GATE)
    third = loader.load_gate(other, PINS, keep=True)
    assert third.generation > second
    assert third.self_test()
    holds(node)


def test_one_on_maps_that_are_no_longer_those_of_the_others_is_loaded_anew(node: Node) -> None:
    kept = loader.load_gate(GATE, PINS, keep=True).generation
    (PINS / "tenants").unlink()
    # As the enforcer does: the ledger comes first, finds a map missing and makes it anew.
    loader.load_ledger(LEDGER, PINS, keep=True)
    assert loader.load_gate(GATE, PINS, keep=True).generation > kept


def test_one_that_was_attached_to_another_driver_is_loaded_anew(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = loader.load_ledger(LEDGER, PINS, keep=True).generation
    monkeypatch.setattr(loader, "_driver", list)
    assert loader.load_ledger(LEDGER, PINS, keep=True).generation > kept
