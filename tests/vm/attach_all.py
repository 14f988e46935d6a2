# SPDX-License-Identifier: Apache-2.0
"""Runs in the virtual node: attaches every BPF object we ship and prints what attached, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bpf import loader

OBJECTS = Path(loader.__file__).parent


def attach_all() -> dict[str, object]:
    """{"gate"|"ledger"|"probes": {program: None | why not}, "self_test": bool, "seconds": float,
    "vramsnoop": exit status, "left_behind": [path], "holders": references on the driver}.

    ``probes`` is the ledger for a driver without type information, here on one that has it.
    """
    subprocess.run(["modprobe", "amdgpu"], check=True)
    before = time.monotonic()
    gate = loader.load_gate(OBJECTS / "gate.bpf.o")
    ledger = loader.load_ledger(OBJECTS / "ledger.bpf.o")
    seconds = time.monotonic() - before
    probes = loader.load_ledger(OBJECTS / "ledger_probes.bpf.o")
    result = {
        "gate": dict(gate.attached),
        "ledger": dict(ledger.attached),
        "probes": dict(probes.attached),
        "self_test": gate.self_test(),
        "seconds": round(seconds, 2),
    }
    gate.unload()
    snoop = [sys.executable, "-m", "bpf.tools.vramsnoop", "--duration", "0.5"]
    result["vramsnoop"] = subprocess.run(snoop, check=False, stdout=subprocess.DEVNULL).returncode
    result["left_behind"] = [str(path) for path in Path("/sys/fs/bpf").rglob("*")]
    result["holders"] = _holders_after_release()
    return result


def _holders_after_release() -> int:
    """References on the driver; the kernel lets go of a removed link a moment later."""
    for _ in range(50):
        holders = int(Path("/sys/module/amdgpu/refcnt").read_text())
        if not holders:
            break
        time.sleep(0.1)
    return holders


if __name__ == "__main__":
    json.dump(attach_all(), sys.stdout)
