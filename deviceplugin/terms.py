# SPDX-License-Identifier: Apache-2.0
"""The terms on which this node's GPUs are offered: configured, and overridden on the node. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from enforcer.model import Gpu

RESOURCE = "amd.com/gpu"
OPERATING_MODE = "hami.io/amd-operating-mode"
COMPUTE_PARTITION = "hami.io/amd-compute-partition"
OPERATING_MODES = ("cu", "partition")
COMPUTE_PARTITIONS = ("spx", "dpx", "qpx", "cpx")

_RESOURCE = re.compile(r"amd\.com/(gpu|(spx|dpx|tpx|qpx|cpx)_nps\d{1,2})")


def is_gpu_resource(name: str) -> bool:
    """True for every name under which GPUs and partitions can be asked for."""
    return _RESOURCE.fullmatch(name) is not None


def partition_resource(gpu: Gpu) -> str:
    """The resource of a partitioned GPU where each kind has its own, as ``amd.com/cpx_nps4``."""
    name = f"amd.com/{gpu.compute_partition}_{gpu.memory_partition}"
    return name if is_gpu_resource(name) else RESOURCE


@dataclass(frozen=True, slots=True)
class Terms:
    """How GPUs are offered."""

    split_count: int = 0
    """Containers that may share a GPU; 0: by generation."""
    whole: bool = False
    """No scheduler of ours: kubelet hands out whole GPUs and partitions by itself."""
    operating_mode: str = "cu"
    """``cu``: slices of GPUs; ``partition``: GPUs in a partition mode are offered by partition."""
    compute_partition: str = ""
    """The mode GPUs are expected in; empty: any."""
    mixed: bool = False
    """Partitions have a resource for each kind instead of one for all."""
    memory_scaling: float = 1.0
    """How many times a shared GPU's VRAM is offered."""
    exclude: frozenset[str] = frozenset()
    """PCI addresses and ``cardN`` of GPUs that are not offered."""

    @property
    def partitions(self) -> bool:
        """True if partitions are offered, each by itself."""
        return self.whole or self.operating_mode == "partition"

    def excludes(self, gpu: Gpu) -> bool:
        """True for a GPU that is not to be offered."""
        return bool(self.exclude & {gpu.bdf, f"card{gpu.card}"})


def overridden(terms: Terms, annotations: Mapping[str, str]) -> tuple[Terms, tuple[str, ...]]:
    """The terms with what the node's annotations say, and a line for each that says nothing."""
    problems: list[str] = []
    for key, field, known in (
        (OPERATING_MODE, "operating_mode", OPERATING_MODES),
        (COMPUTE_PARTITION, "compute_partition", COMPUTE_PARTITIONS),
    ):
        value = annotations.get(key)
        if value is None:
            continue
        if value in known:
            terms = replace(terms, **{field: value})  # type: ignore[arg-type]
        else:
            problems.append(
                f"node annotation {key}: expected {' or '.join(known)}, found {value!r}: ignored"
            )
    return terms, tuple(problems)
