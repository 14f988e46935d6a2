# SPDX-License-Identifier: Apache-2.0
"""The gate and the ledger as the daemon holds them: loaded, proven, and their maps open."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bpf import decode, loader
from bpf.libbpf import BpfError
from enforcer.model import Layer, LayerState, Why

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)

_DRIVER = "module/amdgpu"
_DRIVER_BTF = "kernel/btf/amdgpu"


class KernelLayers:
    """Loads both BPF objects. What does not load is a state with a reason, never an exception.

    The limits already in the pinned maps hold before, during and after.
    """

    def __init__(self, objects: Path, bpffs: Path, sys: Path) -> None:
        """``objects``: where the two .bpf.o lie; ``bpffs``: where to pin; ``sys``: the host's."""
        self._objects = objects
        self._pins = bpffs / str(decode.SCHEMA)
        self._sys = sys
        self._gate: loader.Gate | None = None
        self.maps: loader.Maps | None = None
        self.gate_off: Why | None = Why.NOT_LOADED
        self.ledger = "none"
        """Source of the accounting: ``bo`` or ``none``."""
        self.problems: dict[str, str] = {}
        """Part -> one line: why it is not there."""

    @property
    def gate(self) -> LayerState:
        return LayerState(Layer.GATE, self.gate_off)

    def load_gate(self) -> None:
        """Attach the gate, or take over from the one that is attached, and prove it."""
        try:
            self._gate = loader.load_gate(self._objects / "gate.bpf.o", self._pins)
            self.maps = loader.open_maps(self._pins)
            proven = self._gate.self_test()
        except (BpfError, OSError) as error:
            self.problems["gate"] = f"gate not loaded: {error}"
            self._take_over()
            return
        self.gate_off = None if proven else Why.NOT_PROVEN
        for program, reason in self._gate.attached.items():
            if reason is not None:
                _log.warning("gate program %s is not attached: %s", program, reason)

    def load_ledger(self) -> None:
        """Attach the ledger to the driver; again after the driver came back."""
        if self.ledger != "none" or self._gate is None:
            return
        try:
            ledger = loader.load_ledger(self._objects / "ledger.bpf.o", self._pins)
        except (BpfError, OSError) as error:
            self.problems["ledger"] = f"ledger not loaded: {error}"
            self._without_ledger()
            return
        self.problems.pop("ledger", None)
        self.ledger = "bo"
        for program, reason in ledger.attached.items():
            if reason is not None:
                _log.warning("ledger program %s is not attached: %s", program, reason)

    def set_gpus(self, by_kfd_id: Mapping[int, int], by_minor: Mapping[int, int]) -> None:
        """Tell the gate which GPU an ioctl is about."""
        if self.maps is None:
            return
        try:
            self.maps.set_gpus(by_kfd_id, by_minor)
            self.problems.pop("gpus", None)
        except (BpfError, OSError) as error:
            self.problems["gpus"] = f"gate does not know the GPUs: {error}"

    def close(self) -> None:
        """Let go of the maps; programs and limits stay in force."""
        if self.maps is not None:
            self.maps.close()
            self.maps = None

    def _take_over(self) -> None:
        """A predecessor's gate goes on acting; its maps can still be kept up to date."""
        try:
            self.maps = loader.open_maps(self._pins)
        except (BpfError, OSError):
            self.maps = None

    def _without_ledger(self) -> None:
        """The gate refuses everything to limited callers while no ledger gives anything back.

        That is right until the driver is there, and for ever wrong with a driver the ledger cannot
        attach to: dmem has to do alone then.
        """
        if self._gate is None or not (self._sys / _DRIVER).is_dir():
            return
        if (self._sys / _DRIVER_BTF).exists():
            return
        try:
            self._gate.detach()
        except (BpfError, OSError) as error:
            self.problems["gate"] = f"gate cannot be detached: {error}"
            return
        self._gate = None
        self.gate_off = Why.NO_LEDGER


def unload(bpffs: Path) -> None:
    """Remove every program, map and pin; limits held by dmem stay. Raises BpfError or OSError."""
    loader.unload(bpffs / str(decode.SCHEMA))
