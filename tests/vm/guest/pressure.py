# SPDX-License-Identifier: Apache-2.0
"""Somebody else who needs the GPU's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.vm.guest.node import PlainClient
from tests.vm.guest.services import dmem_current

if TYPE_CHECKING:
    from pathlib import Path

    from enforcer.model import Gpu
    from tests.vm.guest.node import Tenant

_CHUNK: Final = 1 << 30


def evict(one: Tenant, gpu: Gpu, binary: Path) -> None:
    """Fill the GPU from outside until a container's buffers have left it, and free all of that.

    The driver brings them back by itself, and dmem charges them to the root from then on.
    """
    outside = PlainClient(binary)
    outside.ask(f"open render {gpu.render}")
    assert gpu.vram_bytes is not None
    for _ in range(gpu.vram_bytes // _CHUNK + 1):
        outside.gem_create(_CHUNK)
        left = dmem_current(one.container.path, gpu.bdf)
        assert left is not None
        if left < 1 << 20:
            break
    else:
        raise AssertionError(f"{left} bytes are still charged to {one.container.path}")
    outside.finish()
