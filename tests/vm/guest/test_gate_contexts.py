# SPDX-License-Identifier: Apache-2.0
"""Further KFD contexts of one process, and buffers imported by amdgpu-dkms's own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bpf.decode import Counter, Policy
from enforcer.model import MIB
from tests.vm.guest.gatenode import Node, client_in, settled

if TYPE_CHECKING:
    from pathlib import Path


IPC_IMPORT: Final = 0xC0304B80


@pytest.mark.dmem  # the call came with the same kernels
def test_what_a_further_context_takes_is_its_containers(node: Node, client_binary: Path) -> None:
    gpu = node.gpus[0]
    box = node.cgroup("box", 8 * MIB)
    with client_in(box, client_binary, gpu) as client:
        client.kfd_alloc(gpu, 4 * MIB)
        client.ask("open kfd")
        client.ask("create-process")
        client.ask(f"open render {gpu.render}")
        client.ask(f"acquire {gpu.kfd_id}")
        client.kfd_alloc(gpu, 4 * MIB)
        assert node.usage(box).requested == 8 * MIB
        assert client.refused(f"kfd-alloc {gpu.kfd_id} 4096") == "ENOMEM"
    assert settled(lambda: node.usage(box).empty), node.usage(box)


def test_an_import_by_name_is_counted_and_refused_where_imports_are(node: Node) -> None:
    box = node.cgroup("box", 8 * MIB)
    caller, free = node.caller(box), node.caller(node.cgroup("other"))
    before = node.counted("imported_by_name")
    # The driver of the kernel's own tree does not know the call.
    for one in (caller, free):
        assert one.refused("call", "/dev/kfd", IPC_IMPORT, bytes(48)) == "ENOTTY"
    assert node.counted("imported_by_name") == before + 1
    node.maps.set_policy(Policy(refuse_imports=True))
    assert caller.refused("call", "/dev/kfd", IPC_IMPORT, bytes(48)) == "ENOMEM"
    assert free.refused("call", "/dev/kfd", IPC_IMPORT, bytes(48)) == "ENOTTY"
    (event,) = node.maps.events()
    assert (event.reason, event.cgroup) == (Counter.REFUSED_IMPORT, box.stat().st_ino)
    assert node.counted("imported_by_name") == before + 1
