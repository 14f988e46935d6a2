# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

from tests.testbed import qemu

MACHINE = qemu.Machine(
    kernel=Path("/k/bzImage"),
    initrd=Path("/t/initrd"),
    append="console=ttyS0",
    log=Path("/t/a,b.log"),
    memory_mib=2049,
    gpus=3,
    numa=False,
    image=None,
    shares=(),
    ports={1: 11, 2: 12},
)


def devices(machine: qemu.Machine) -> list[str]:
    argv = qemu.arguments(machine)
    return [value for name, value in itertools.pairwise(argv) if name == "-device"]


def test_each_gpu_is_a_device_of_its_own() -> None:
    gpus = [device for device in devices(MACHINE) if device.startswith("ati-vga")]
    assert len(gpus) == len(set(gpus)) == 3


def test_no_machine_of_ours_depends_on_hardware_virtualisation() -> None:
    argv = qemu.arguments(MACHINE)
    assert argv[argv.index("-accel") + 1].startswith("tcg")
    assert "-enable-kvm" not in argv


def test_a_comma_in_a_path_is_doubled() -> None:
    assert "file:/t/a,,b.log" in qemu.arguments(MACHINE)


def test_the_host_s_root_is_read_only_and_a_share_is_not() -> None:
    shared = dataclasses.replace(MACHINE, shares=[qemu.Share("share0", Path("/out"))])
    systems = [word for word in qemu.arguments(shared) if word.startswith("local,")]
    assert [("path=/," in word, "readonly=on" in word) for word in systems] == [
        (True, True),
        (False, False),
    ]


def test_numa_spreads_memory_and_gpus_over_two_nodes() -> None:
    numa = dataclasses.replace(MACHINE, numa=True)
    argv = qemu.arguments(numa)
    sizes = [word.rpartition("size=")[2] for word in argv if "memory-backend-ram" in word]
    assert sizes == ["1025M", "1024M"]
    slots = [device for device in devices(numa) if device.startswith("pcie-root-port")]
    assert ["bus=node0" in slot for slot in slots] == [True, False, True]
