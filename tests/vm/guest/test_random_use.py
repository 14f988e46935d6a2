# SPDX-License-Identifier: Apache-2.0
"""Random use of two GPUs by 16 processes in 4 containers: the ledger says what the driver says.

The processes create, free, map, share and take buffers, fork children that do so and exit or die,
and are killed in the middle of it. After each round, with nobody at it, the ledger must have for
each container on each GPU exactly what the driver itself finds in VRAM, and in the end nothing.
What the kernel passed over the ledger for is charged until its container is empty.

``RINGFENCE_OPERATIONS`` says how many operations (10,000), ``RINGFENCE_SEED`` repeats a run; seeds
that failed once are in ``FAILED``.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.model import MIB, pci_key
from tests.vm.guest import truth
from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.vm.guest.gatenode import Node

OPERATIONS: Final = int(os.environ.get("RINGFENCE_OPERATIONS", "10000"))
CONTAINERS: Final = 4
PROCESSES: Final = 16
ROUND: Final = 32
"""Operations of a process between two looks."""
LIMITS: Final = (20 * MIB, 12 * MIB)
"""Of a container on the first and on the second GPU: less than its processes ask for."""
KILLED: Final = 3
"""Processes killed in a round."""
FAILED: Final[tuple[int, ...]] = ()
"""Seeds of runs that failed once."""


def seeds() -> list[int]:
    given = os.environ.get("RINGFENCE_SEED")
    return [*FAILED, int(given) if given else random.SystemRandom().randrange(1 << 32)]


@dataclass
class Process:
    """One that takes part, and what it had of each GPU when it last answered."""

    box: Path
    client: PlainClient
    held: tuple[int, ...]

    def answer(self) -> dict[str, str]:
        """The answer to a command that was only sent."""
        line = self.client.stdout.readline()
        verdict, _, *fields = line.split() or ["nothing", ""]
        assert verdict == "ok", f"{self.box.name}: {line!r}"
        return dict(field.split("=", 1) for field in fields)


class Run:
    """All the processes, and the checks between their rounds."""

    def __init__(self, node: Node, binary: Path, seed: int) -> None:
        self._node = node
        self._binary = binary
        self._dice = random.Random(seed)  # noqa: S311 - not a secret
        self._gpus = node.gpus[: len(LIMITS)]
        self._boxes = [node.cgroup(f"box{number}") for number in range(CONTAINERS)]
        for box in self._boxes:
            for gpu, limit in zip(self._gpus, LIMITS, strict=True):
                node.maps.set_limit(box.stat().st_ino, pci_key(gpu.bdf), limit)
        self._processes = [self._start(number) for number in range(PROCESSES)]
        self.refused = self.taken = 0

    def round(self) -> None:
        """Everybody does some operations at once; some are killed while they do."""
        for one in self._processes:
            one.client.stdin.write(f"storm {self._dice.randrange(1 << 32)} {ROUND}\n")
            one.client.stdin.flush()
        killed = self._dice.sample(range(PROCESSES), KILLED)
        for number in killed:
            time.sleep(self._dice.uniform(0.0, 0.05))
            self._processes[number].client.process.kill()
        for number, one in enumerate(self._processes):
            if number in killed:
                one.client.finish()
                continue
            answer = one.answer()
            one.held = tuple(int(size) for size in answer["held"].split(","))
            self.refused += int(answer["refused"])
            self.taken += int(answer["taken"])
        for number in killed:
            self._processes[number].held = (0,) * len(self._gpus)
        # What they left is given back by kernel threads.
        wait_for("the ledger and the driver to agree", lambda: not self.differences(), 30)
        for number in killed:
            self._processes[number] = self._start(number)

    def differences(self) -> list[str]:
        """Where the ledger has something else than the driver, or more than the limit."""
        found: list[str] = []
        usages = self._node.maps.usage()
        lost = self._lost()
        for at, gpu in enumerate(self._gpus):
            placed = truth.in_vram(gpu.bdf)
            for box in self._boxes:
                key = box.stat().st_ino, pci_key(gpu.bdf)
                row = usages.get(key)
                at_least = sum(one.held[at] for one in self._processes if one.box == box)
                if row is None:
                    if placed[box.name] or at_least:
                        found.append(f"{box.name} {gpu.bdf}: nothing, driver {placed[box.name]}")
                elif (
                    row.reserved
                    or row.requested != row.resident + lost[key]
                    # Of what was not followed each may still be there, or not any more.
                    or not 0 <= placed[box.name] - row.resident - row.page_tables <= lost[key]
                    or not at_least <= row.requested <= LIMITS[at]
                    or row.peak > LIMITS[at]
                ):
                    found.append(
                        f"{box.name} {gpu.bdf}: {row}, {lost[key]} not followed, "
                        f"driver {placed[box.name]}"
                    )
        return found

    def _lost(self) -> Counter[tuple[int, int]]:
        """Bytes charged to each container for what the kernel passed over the ledger for."""
        lost: Counter[tuple[int, int]] = Counter()
        for one in dict(self._node.maps.buffers()).values():
            if not one.followed:
                lost.update({(cgroup, one.gpu): one.size for cgroup in one.cgroups})
        return lost

    def end(self) -> None:
        """Everybody leaves; nothing may be left."""
        for one in self._processes:
            one.client.finish()
            one.held = (0,) * len(self._gpus)
        wait_for("the ledger and the driver to agree", lambda: not self.differences(), 30)
        # As the enforcer does when nobody is left.
        for cgroup, gpu in self._lost():
            self._node.maps.forget(cgroup, gpu)
        usage = self._node.maps.usage
        wait_for("all given back", lambda: all(row.empty for row in usage().values()), 30)
        wait_for("the ledger and the driver to agree", lambda: not self.differences(), 30)
        assert [truth.in_vram(gpu.bdf).total() for gpu in self._gpus] == [0] * len(self._gpus)

    def _start(self, number: int) -> Process:
        box = self._boxes[number % CONTAINERS]
        client = PlainClient(self._binary)
        (box / "cgroup.procs").write_text(str(client.process.pid))
        client.ask(f"name {box.name}")
        files = " ".join(f"{gpu.render} {gpu.kfd_id}" for gpu in self._gpus)
        client.ask(f"storm-join {number} {PROCESSES} {files}")
        return Process(box, client, (0,) * len(self._gpus))


@pytest.mark.timeout(120 + OPERATIONS // 20)
@pytest.mark.parametrize("seed", seeds())
def test_after_every_round_the_ledger_has_what_the_driver_has(
    node: Node, client_binary: Path, seed: int
) -> None:
    print(f"RINGFENCE_SEED={seed} RINGFENCE_OPERATIONS={OPERATIONS}")
    lost = node.counted("unrecorded_buffer") + node.counted("unrecorded_resource")
    started = time.monotonic()
    run = Run(node, client_binary, seed)
    for _ in range(-(-OPERATIONS // (PROCESSES * ROUND))):
        run.round()
    run.end()
    took = time.monotonic() - started
    print(f"{took:.1f} s, {run.refused} refused, {run.taken} taken from a peer")
    assert run.refused > 0
    assert run.taken > 0
    assert node.counted("unrecorded_buffer") + node.counted("unrecorded_resource") == lost
