# SPDX-License-Identifier: Apache-2.0
"""The QEMU command line of one virtual machine. Pure: nothing here touches the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTROL_PORT, STDOUT_PORT, STDERR_PORT = 1, 2, 3
"""Numbers of the virtio-serial ports; the guest sees port N as /dev/vport<device>pN."""

_NUMA_NODES = 2
_CPUS = 2
_CPU = "Nehalem"
"""x86-64-v2, which every distribution runs on. Emulating what came later costs a third more."""


@dataclass(frozen=True, slots=True)
class Share:
    """A host directory the guest may write to, at the same path there."""

    tag: str
    path: Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything QEMU has to be told.

    `ports` are connected sockets (file descriptors QEMU inherits) by virtio-serial port number;
    `numa` spreads memory, CPUs and GPUs over two nodes.
    """

    kernel: Path
    initrd: Path
    append: str
    log: Path
    memory_mib: int
    gpus: int
    numa: bool
    image: Path | None
    shares: Sequence[Share]
    ports: dict[int, int]


def arguments(machine: Machine) -> list[str]:
    """The command line for `machine`, under software emulation.

    No option ROM for the display devices: nothing shows a picture, and running one takes a second.
    """
    argv = [
        "qemu-system-x86_64",
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-vga", "none"),
        # One host thread for all CPUs: with one each, a CPU now and then runs the int3 of a text
        # patch that is over (attaching BPF patches kernel functions), and the guest oopses.
        *("-machine", "q35", "-accel", "tcg,thread=single", "-cpu", _CPU),
        *("-smp", str(_CPUS), "-m", f"{machine.memory_mib}M"),
        *("-kernel", str(machine.kernel), "-initrd", str(machine.initrd)),
        *("-append", machine.append),
        *("-serial", f"file:{_escaped(machine.log)}"),
        *(
            "-object",
            "rng-random,id=rng,filename=/dev/urandom",
            "-device",
            "virtio-rng-pci,rng=rng",
        ),
        *_file_system("root", Path("/"), readonly=True),
    ]
    for share in machine.shares:
        argv += _file_system(share.tag, share.path, readonly=False)
    if machine.image is not None:
        argv += [
            "-drive",
            f"id=image,file={_escaped(machine.image)},if=none,format=raw,readonly=on",
            *("-device", "virtio-blk-pci,drive=image"),
        ]
    argv += ["-device", "virtio-serial-pci,id=serial,max_ports=8"]
    for number, descriptor in sorted(machine.ports.items()):
        argv += [
            *("-chardev", f"socket,id=port{number},fd={descriptor}"),
            *("-device", f"virtserialport,bus=serial.0,nr={number},chardev=port{number}"),
        ]
    argv += _numa_nodes(machine.memory_mib) if machine.numa else []
    argv += _gpus(machine.gpus, numa=machine.numa)
    return argv


def _file_system(tag: str, path: Path, *, readonly: bool) -> list[str]:
    options = f"local,id={tag},path={_escaped(path)},security_model=none,multidevs=remap"
    return [
        *("-fsdev", options + (",readonly=on" if readonly else "")),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _numa_nodes(memory_mib: int) -> list[str]:
    argv = []
    share = memory_mib // _NUMA_NODES
    for node in range(_NUMA_NODES):
        size = share if node else memory_mib - share * (_NUMA_NODES - 1)
        argv += [
            *("-object", f"memory-backend-ram,id=memory{node},size={size}M"),
            *("-numa", f"node,nodeid={node},memdev=memory{node},cpus={node}"),
            # One expander bridge per node: what is plugged behind it has that node as its own.
            *(
                "-device",
                f"pxb-pcie,id=node{node},bus=pcie.0,bus_nr={64 * (node + 1)},numa_node={node}",
            ),
        ]
    return argv


def _gpus(count: int, *, numa: bool) -> list[str]:
    """Display adapters of AMD's vendor number 0x1002 for the simulated driver to bind to."""
    argv = []
    for index in range(count):
        device = f"ati-vga,model=rv100,id=gpu{index},romfile="
        if numa:
            argv += [
                "-device",
                f"pcie-root-port,id=slot{index},bus=node{index % _NUMA_NODES},chassis={index + 1}",
            ]
            device += f",bus=slot{index}"
        argv += ["-device", device]
    return argv


def _escaped(path: Path) -> str:
    """QEMU splits option values at commas; a doubled comma stands for one."""
    return str(path).replace(",", ",,")
