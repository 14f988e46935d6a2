# SPDX-License-Identifier: Apache-2.0
"""Runs in the virtual node: times the calls with and without the programs, prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bpf import loader
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from enforcer.model import pci_key

OBJECTS: Final = Path(loader.__file__).parent
CGROUP: Final = Path("/sys/fs/cgroup/bench")
CALLS: Final = "2000"
ROUNDS: Final = "100"
SETTLE: Final = 3.0
"""Seconds in which the kernel is done with what attaching or detaching left for later."""


def measure(program: str, render: str) -> dict[str, float]:
    """Nanoseconds a call, by kind of call."""
    time.sleep(SETTLE)
    ran = subprocess.run(
        [program, render, CALLS, ROUNDS], check=True, capture_output=True, text=True
    )
    return {name: float(took) for name, took in map(str.split, ran.stdout.splitlines())}


def main(program: str) -> None:
    """Without, with as no tenant, with as a tenant, without again."""
    (gpu,), _ = read_inventory(Roots())
    render = f"/dev/dri/renderD{gpu.render}"
    measured = [("without", measure(program, render))]
    gate = loader.load_gate(OBJECTS / "gate.bpf.o")
    loader.load_ledger(OBJECTS / "ledger.bpf.o")
    measured.append(("attached, no tenant", measure(program, render)))
    CGROUP.mkdir()
    with loader.open_maps() as maps:
        maps.set_gpus({gpu.kfd_id: pci_key(gpu.bdf)}, {gpu.render: pci_key(gpu.bdf)})
        maps.set_limit(CGROUP.stat().st_ino, pci_key(gpu.bdf), 1 << 30)
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    measured.append(("attached, tenant", measure(program, render)))
    (CGROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
    gate.unload()
    measured.append(("without, again", measure(program, render)))
    found = {"release": os.uname().release, "asked_by": gate.asked_by, "measured": measured}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
