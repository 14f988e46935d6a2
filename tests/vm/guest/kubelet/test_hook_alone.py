# SPDX-License-Identifier: Apache-2.0
"""Which pods of a real kubelet start on a kernel that can hold nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deviceplugin.hook import AUDITOR, IN_CONTAINER, TOOL
from enforcer.api.client import Client, EnforcerError
from enforcer.model import MIB
from tests.vm.guest.kubelet import image
from tests.vm.guest.kubelet.cluster import container, is_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.kubelet.cluster import Cluster

_SOCKET = Path("/run/ringfence/enforcer.sock")


@pytest.fixture
def hook(cluster: Cluster) -> Iterator[Path]:
    """Objects in the hook's place, which no static program loads."""
    cluster.hook.mkdir()
    for name in (AUDITOR, TOOL):
        (cluster.hook / name).touch()
    yield cluster.hook
    for name in (AUDITOR, TOOL):
        (cluster.hook / name).unlink()
    cluster.hook.rmdir()


@pytest.fixture
def no_layer(cluster: Cluster) -> Iterator[None]:
    """No layer of the kernel is left to the enforcer."""
    cluster.enforcer.kill()
    cluster.enforcer.unload()
    cluster.bare_enforcer.start()
    yield
    if cluster.bare_enforcer.alive():
        cluster.bare_enforcer.kill()
        cluster.enforcer.start()


@pytest.mark.usefixtures("hook", "no_layer")
def test_without_a_kernel_layer_an_image_starts_only_if_it_loads_the_hook(
    cluster: Cluster, gpu: Gpu
) -> None:
    static = cluster.admitted("static", cluster.share(0, 96, 16))
    main = container("main", 1) | {"image": image.GLIBC}
    dynamic = cluster.running(cluster.admitted("dynamic", cluster.share(0, 64, 16), main))
    assert dynamic.environment()["LD_AUDIT"] == str(IN_CONTAINER / AUDITOR)
    cluster.start_refused("static", f"{image.NAME} cannot load the hook: no C library")
    with Client(_SOCKET) as client:
        found = client.image_libc("", "", image.GLIBC, timeout=60)
        assert (found.libc, found.tool_loads) == ("glibc", True)
        with pytest.raises(EnforcerError, match="there is no image localhost/testbed:other"):
            client.image_libc("", "", "localhost/testbed:other", timeout=60)
    # The runtime keeps nothing of the looks.
    assert not [name for name in cluster.runtime.snapshots() if name.startswith("ringfence")]

    cluster.bare_enforcer.kill()
    cluster.enforcer.start()
    is_held(dynamic, gpu, 64 * MIB)
    is_held(cluster.running(static), gpu, 96 * MIB)
