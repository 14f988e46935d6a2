# SPDX-License-Identifier: Apache-2.0
"""A container that tries to have more than its share, and what must be true of it afterwards."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from enforcer.host.cgroups import populated
from enforcer.model import MIB
from tests.vm.guest import truth
from tests.vm.guest.caller import ALLOC_VRAM, ALLOC_WRITABLE, DOMAIN_VRAM, KFD_ALLOC
from tests.vm.guest.gatenode import SECONDS
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.vm.guest.gatenode import Node
    from tests.vm.guest.node import Client

SHARE: Final = 16 * MIB
_SHORTER: Final = 39
KFD_ALLOC_SHORTER: Final = KFD_ALLOC & ~(0x3FFF << 16) | _SHORTER << 16


@dataclass(frozen=True, slots=True)
class Share:
    """``SHARE`` bytes of the first GPU, held to by the gate alone. Nobody else uses any GPU."""

    node: Node
    box: Path

    def wrong(self) -> str:
        """What ledger and driver have against each other or the limit; "" if nothing."""
        row = self.node.maps.usage().get((self.box.stat().st_ino, self.node.gpu))
        placed, *others = (truth.buffers(gpu.bdf) for gpu in self.node.gpus)
        if any(others):
            return f"on other GPUs: {others}"
        if row is None:
            return f"no entry, driver {placed}" if placed else ""
        lost = self.lost()
        agree = row.reserved == 0 and row.requested - lost == row.resident
        # Each of what was not followed may still be there, or not any more.
        agree = agree and row.resident <= placed <= row.resident + lost
        held = agree and row.requested <= SHARE
        return "" if held else f"{row}, {lost} not followed, driver {placed}"

    def lost(self) -> int:
        """Bytes that stay charged until the container is empty: the kernel passed over the ledger.

        It may do so to any call, so what a crowd of callers is left with is counted without it.
        """
        return sum(one.size for one in dict(self.node.maps.buffers()).values() if not one.followed)

    def forget(self) -> None:
        """As the enforcer does when nobody is left: what came of failed calls is not known."""
        wait_for("the last process", lambda: not populated(self.box), SECONDS)
        self.node.maps.forget(self.box.stat().st_ino, self.node.gpu)

    def hold(self, requested: int | None = None) -> None:
        """The ledger says what the driver says, and both no more than the share.

        They agree as well while a process that has ended is being cleared away, which a kernel
        thread does: the number is waited for, too.
        """
        end = time.monotonic() + SECONDS
        while wrong := self.wrong() or self._other_than(requested):
            assert time.monotonic() < end, wrong
            time.sleep(0.05)

    def _other_than(self, requested: int | None) -> str:
        row = self.node.maps.usage().get((self.box.stat().st_ino, self.node.gpu))
        found, lost = row.requested if row else 0, self.lost()
        if requested is None or 0 <= found - requested <= lost:
            return ""
        return f"{found} requested, {lost} of it not followed; expected {requested}"


def dies(client: Client, command: str) -> bool:
    """Whether the client is killed over a command; what it answers does not matter."""
    try:
        client.refused(command)
    except (AssertionError, BrokenPipeError):
        return True
    return False


def kfd_arguments(kfd_id: int, size: int, flags: int = ALLOC_VRAM | ALLOC_WRITABLE) -> bytes:
    """``struct kfd_ioctl_alloc_memory_of_gpu_args``."""
    return struct.pack("=QQQQII", 1 << 41, size, 0, 0, kfd_id, flags)


def kfd_arguments_shorter(kfd_id: int, size: int) -> bytes:
    """Without their last byte, for KFD_ALLOC_SHORTER: the driver puts a zero there.

    The GPU's number lies in one word with the flags, and the kernel copies word by word: but byte
    by byte what is no whole word.
    """
    return kfd_arguments(kfd_id, size, ALLOC_VRAM)[:_SHORTER]


def gem_arguments(size: int, domains: int = DOMAIN_VRAM) -> bytes:
    """``struct drm_amdgpu_gem_create_in``."""
    return struct.pack("=QQQQ", size, 4096, domains, 0)
