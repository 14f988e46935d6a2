# SPDX-License-Identifier: Apache-2.0
"""What a container's image means for the hook, asked of the enforcer as the device plugin does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.api.client import Client, EnforcerError
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer

_SOCKET = Path("/run/ringfence/enforcer.sock")


def test_a_container_with_a_static_program_alone_loads_no_hook(
    enforcer: Enforcer, pods: Pods, gpu: Gpu
) -> None:
    one = tenant(pods, enforcer, gpu, 64)
    with Client(_SOCKET) as client:
        client.prepare(one.pod.uid, "main", 30)  # so that a pass has seen it
        found = client.image_libc(one.pod.uid, "main", timeout=30)
        assert (found.libc, found.tool_loads, found.auditor_loads) == ("none", False, False)
        with pytest.raises(EnforcerError, match="no container 'other'"):
            client.image_libc(one.pod.uid, "other", timeout=30)
