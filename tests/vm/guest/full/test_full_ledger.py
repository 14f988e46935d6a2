# SPDX-License-Identifier: Apache-2.0
"""As many buffers as the ledger can follow, made for real: a million, of one page each."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.model import MIB
from tests.vm.guest import truth
from tests.vm.guest.gatenode import PAGE, Node, client_in, fresh_node, loaded_parts
from tests.vm.guest.services import wait_for
from tests.vm.guest.test_escape_sharing import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from enforcer.model import Gpu

PROCESSES: Final = 16
"""Of a container on a GPU: in an open file of its own, each is found sooner."""
ENOUGH: Final = 1 << 40
"""Bytes of a slice that is not what ends it."""
MEMORY: Final = 32 * MIB
"""That going through a million buffers may cost a daemon which is limited itself."""

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture
def node(gpus: list[Gpu]) -> Iterator[Node]:
    with loaded_parts(), fresh_node(gpus) as made:
        yield made


def fill(node: Node, box: Path, gpu: Gpu, binary: Path, stack: ExitStack) -> int:
    """How many buffers a crowd in that container made before all of it was refused."""
    clients = [stack.enter_context(client_in(box, binary, gpu)) for _ in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        answers = list(pool.map(lambda one: one.ask(f"fill gem {PAGE}"), clients))
    assert {one["errno"] for one in answers} == {"ENOMEM"}
    return sum(int(one["count"]) for one in answers)


def peak() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_million_buffers_are_followed_and_no_more_are_made(
    node: Node, client_binary: Path
) -> None:
    boxes = [node.cgroup(name, ENOUGH) for name in ("one", "two", "three")]
    for box in boxes:
        node.maps.set_limit(box.stat().st_ino, node.keys[1], ENOUGH)
    made = 0
    with ExitStack() as stack:
        started = time.monotonic()
        for at, (box, gpu) in enumerate((box, gpu) for box in boxes[:2] for gpu in node.gpus):
            refused = node.counted("refused_buffers_full")
            made += fill(node, box, gpu, client_binary, stack)
            assert node.counted("refused_buffers_full") == refused + PROCESSES
            followed, room = node.maps.fill()["buffers"]
            # The last of them meets the end of the map's part for tenants.
            assert followed == min((at + 1) * MOST["tenant"], MOST["node"])
            assert followed < room
        print(f"{made} buffers in {time.monotonic() - started:.0f} s")
        for gpu in node.gpus:
            client = stack.enter_context(client_in(boxes[2], client_binary, gpu))
            assert client.refused("gem-create 1 vram") == "ENOMEM"
        assert sum(truth.buffers(gpu.bdf) for gpu in node.gpus) == made * PAGE
        before, started = peak(), time.monotonic()
        chains = {one.cgroups for _, one in node.maps.buffers()}
        print(f"gone through in {time.monotonic() - started:.0f} s, {peak() - before} bytes more")
        assert {chain[-1] for chain in chains} == {box.stat().st_ino for box in boxes[:2]}
        assert peak() - before < MEMORY

    def all_given_back() -> bool:
        return all(one.empty for one in node.maps.usage().values())

    wait_for("all given back", all_given_back, 600)
    assert node.maps.fill()["buffers"][0] == 0
    assert not any(truth.buffers(gpu.bdf) for gpu in node.gpus)
    with client_in(boxes[2], client_binary, node.gpus[0]) as client:
        client.gem_create(MIB)
