# SPDX-License-Identifier: Apache-2.0
"""Every value of amd-device-plugin's chart (0.0.3) has a line, and every line names what is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/migrate.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| amd-device-plugin")
]
THEIRS = """
dp.image.repository dp.image.tag dp.image.pullPolicy dp.serviceAccount.create
dp.serviceAccount.name dp.serviceAccount.annotations dp.securityContext dp.hostHookPath
dp.hookInstaller.enabled dp.logVerbosity dp.healthPulse dp.splitCount dp.allocatorPolicy
dp.dmemBackend dp.muslFailClosed.enabled dp.muslFailClosed.ctrPath
dp.muslFailClosed.containerdSocketDir dp.muslFailClosed.containerdSocket
dp.muslFailClosed.containerdDataDir dp.cdi.enabled dp.cdi.specDir dp.reportNodeCapacity
dp.excludeGPUs dp.hipLogLevel dp.operatingMode dp.computePartition dp.deviceMemoryScaling
dp.resources dp.updateStrategy monitor.enabled monitor.metricsBindAddress monitor.resources
imagePullSecrets tolerations node_selector_enabled node_selector -resource_naming_strategy
""".split()  # noqa: SIM905


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_each_of_their_values_has_a_line() -> None:
    patterns = [name for row in ROWS for name in named(row[0])]

    def covered(value: str) -> bool:
        return any(
            value == name or (name.endswith(".*") and value.startswith(name[:-1]))
            for name in patterns
        )

    assert [value for value in THEIRS if not covered(value)] == []


def test_each_of_ours_exists() -> None:
    schema = json.loads((ROOT / "charts/ringfence/values.schema.json").read_text())

    def exists(name: str) -> bool:
        part: Any = schema
        for word in name.removesuffix(".*").split("."):
            part = part.get("properties", {}).get(word)
            if part is None:
                return False
        return True

    ours = [name.partition(":")[0] for row in ROWS for name in named(row[1])]
    assert ours
    assert [name for name in ours if not exists(name)] == []
