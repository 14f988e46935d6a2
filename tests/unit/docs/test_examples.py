# SPDX-License-Identifier: Apache-2.0
"""The example manifests are such as an API server takes, and ask for what exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "docs/examples").glob("*.yaml"))
RESOURCES = {
    "amd.com/gpu": (1, 8),
    "amd.com/gpumem": (1, 1 << 20),
    "amd.com/gpumem-percentage": (1, 100),
    "amd.com/gpucores": (1, 100),
    "amd.com/priority": (0, (1 << 31) - 1),
}


def load(path: Path) -> dict[str, Any]:
    item: dict[str, Any] = yaml.safe_load(path.read_text())
    return item


def test_there_is_one_for_each_way_to_share() -> None:
    assert {path.stem for path in EXAMPLES} == {
        *("whole-gpu", "memory", "percentage", "cores", "memory-and-cores", "two-containers"),
        *("priority", "non-root", "multi-gpu", "pytorch", "jax", "vllm"),
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_api_server_takes_it(path: Path) -> None:
    item = load(path)
    assert item["metadata"]["name"] == path.stem
    # A quantity may be a number; strict schemas of the API say so only from text.
    for container in item["spec"]["containers"]:
        limits = container["resources"]["limits"]
        container["resources"]["limits"] = {name: str(value) for name, value in limits.items()}
    for version in ("1.25", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_asks_for_amounts_that_a_node_can_have(path: Path) -> None:
    for container in load(path)["spec"]["containers"]:
        limits = container["resources"]["limits"]
        assert "amd.com/gpu" in limits
        for name, value in limits.items():
            low, high = RESOURCES[name]
            assert low <= value <= high, name
