# SPDX-License-Identifier: Apache-2.0
"""The kernel layers where they cannot be had. Where they can: tests/vm."""

from pathlib import Path

import pytest

from bpf import loader
from bpf.libbpf import BpfError
from enforcer import layers
from enforcer.layers import KernelLayers
from enforcer.model import Layer, LayerState, Why


@pytest.fixture
def kernel(tmp_path: Path) -> KernelLayers:
    return KernelLayers(tmp_path / "objects", tmp_path / "bpf", tmp_path / "sys")


def test_a_gate_that_was_not_asked_for_yet_is_not_loaded(kernel: KernelLayers) -> None:
    assert kernel.gate == LayerState(Layer.GATE, Why.NOT_LOADED)
    assert (kernel.ledger, kernel.problems) == ("none", {})


def test_a_missing_object_is_a_reason_and_not_the_end(kernel: KernelLayers) -> None:
    kernel.load_gate()
    kernel.attach()
    assert kernel.gate.reason is Why.NOT_LOADED
    assert "gate.bpf.o: no such BPF object" in kernel.problems["gate"]
    assert kernel.ledger == "none"


def test_a_place_that_takes_no_pins_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kernel = KernelLayers(tmp_path, tmp_path / "file" / "bpf", tmp_path)
    kernel.load_gate()
    assert "file/bpf" in kernel.problems["gate"]


def test_without_maps_there_is_nothing_to_read_and_nothing_fails(kernel: KernelLayers) -> None:
    assert kernel.read() == (None, {})
    assert kernel.counters() == ()
    kernel.count_entries()
    kernel.set_gpus({5: 1}, {128: 1})
    kernel.close()
    assert (kernel.map_fill, kernel.problems) == ((), {})


class LedgerMaps(loader.Maps):
    """Pinned maps that say whether a ledger acts."""

    def __init__(self, acts: bool | BpfError) -> None:
        self._acts = acts

    def ledger_acts(self) -> bool:
        if isinstance(self._acts, BpfError):
            raise self._acts
        return self._acts


@pytest.mark.parametrize(
    ("acts", "ledger"), [(True, "bo"), (BpfError("unreadable"), "bo"), (False, "none")]
)
def test_a_ledger_is_attached_again_only_when_its_driver_went_from_under_it(
    kernel: KernelLayers, acts: bool | BpfError, ledger: str
) -> None:
    kernel.maps = LedgerMaps(acts)
    kernel.ledger = "bo"
    kernel.attach()  # there is no object to attach here
    assert kernel.ledger == ledger
    assert ("ledger" in kernel.problems) == (ledger == "none")


def test_a_switched_off_gate_says_so(kernel: KernelLayers) -> None:
    kernel.switch_off()
    assert kernel.gate.reason is Why.SWITCHED_OFF
    assert kernel.problems == {}


def test_unloading_nothing_is_harmless(tmp_path: Path) -> None:
    layers.unload(tmp_path)
    assert list(tmp_path.iterdir()) == []
