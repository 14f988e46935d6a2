# SPDX-License-Identifier: Apache-2.0
"""vramsnoop prints each buffer once when it is made and once when it is freed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bpf.tools.vramsnoop import HEADER
from enforcer.model import MIB
from tests.vm.guest.caller import DOMAIN_GTT, Caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu

ID = "0123456789ab" + "c" * 52


@pytest.fixture
def container() -> Iterator[Path]:
    pod = Path("/sys/fs/cgroup/snoop-pod.slice")
    scope = pod / f"cri-containerd-{ID}.scope"
    scope.mkdir(parents=True)
    yield scope
    scope.rmdir()
    pod.rmdir()


def rows(text: str) -> list[tuple[str, ...]]:
    """(COMM, CONTAINER, GPU, SIZE, VIA) of each line."""
    return [tuple(line.split()[2:]) for line in text.splitlines()]


def test_a_known_number_of_buffers_of_one_container(container: Path, gpu: Gpu) -> None:
    render = f"/dev/dri/renderD{gpu.render}"
    snoop = subprocess.Popen(
        [sys.executable, "-m", "bpf.tools.vramsnoop", "--container", ID[:12], "--count", "8"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert snoop.stdout is not None
    assert snoop.stdout.readline().rstrip("\n") == HEADER
    with Caller(container.parent.parent) as other, Caller(container) as caller:
        for each in (other, caller):
            each.do("open", render)
            each.do("open", "/dev/kfd")
            each.do("acquire", render, gpu.kfd_id)
        other.do("gem_create", render, MIB)
        handle = caller.do("kfd_alloc", gpu.kfd_id, 16 * MIB)
        caller.do("gem_create", render, 4096)
        caller.do("gem_create", render, MIB, DOMAIN_GTT)
        caller.do("kfd_free", handle)
        card = f"/dev/dri/card{gpu.card}"
        caller.do("open", card)
        caller.do("dumb_create", card, 65, 100, 32)
        caller.do("kfd_alloc", gpu.kfd_id, 2 * MIB)
    text, _ = snoop.communicate(timeout=60)
    assert snoop.returncode == 0
    assert all(len(line) < 80 for line in text.splitlines())
    comm = Path("/proc/self/comm").read_text().strip()
    assert sorted(rows(text)) == sorted(
        (comm, ID[:12], gpu.bdf, sign + size, via)
        for sign in "+-"
        for size, via in (("16M", "kfd"), ("4K", "gem"), ("52K", "dumb"), ("2M", "kfd"))
    )


def test_it_ends_by_itself_when_nothing_happens() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bpf.tools.vramsnoop", "--duration", "0.5"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == HEADER + "\n"
