# SPDX-License-Identifier: Apache-2.0
"""What must be there before a container of a real kubelet starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deviceplugin.allocate import gives_hook
from deviceplugin.hook import AUDITOR, IN_CONTAINER, TOOL, Hook
from deviceplugin.record import recorded
from enforcer.api.client import Client, EnforcerError
from enforcer.model import MIB
from tests.vm.guest.kubelet import image
from tests.vm.guest.kubelet.cluster import container, is_held, leaves_nothing
from tests.vm.guest.kubelet.node import KUBELET_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.kubelet.cluster import Cluster

_SOCKET = Path("/run/ringfence/enforcer.sock")


@pytest.fixture
def hook(cluster: Cluster) -> Iterator[Path]:
    """What looks like the hook's objects, and is loaded by no program."""
    cluster.hook.mkdir()
    for name in (AUDITOR, TOOL):
        (cluster.hook / name).write_bytes(b"\x7fELF")
    yield cluster.hook
    for name in (AUDITOR, TOOL):
        (cluster.hook / name).unlink()
    cluster.hook.rmdir()


@pytest.fixture
def no_enforcer(cluster: Cluster) -> Iterator[None]:
    """Nothing is left in the kernel, and nobody is there to put anything into it."""
    cluster.enforcer.kill()
    cluster.enforcer.unload()
    yield
    if cluster.bare_enforcer.alive():
        cluster.bare_enforcer.kill()
    if not cluster.enforcer.alive():
        cluster.enforcer.start()


@pytest.mark.usefixtures("hook", "no_enforcer")
def test_a_container_starts_only_if_something_will_hold_its_slice(
    cluster: Cluster, gpu: Gpu
) -> None:
    static = cluster.admitted("static", cluster.share(0, 96, 16))
    cluster.start_refused("static", "enforcer")
    assert any("PreStartContainer" in event for event in cluster.api.events("static"))

    # Nothing in the kernel is wanted: the hook may, in an image that loads it.
    cluster.bare_enforcer.start()
    main = container("main", 1) | {"image": image.GLIBC}
    dynamic = cluster.running(cluster.admitted("dynamic", cluster.share(0, 64, 16), main))
    assert dynamic.environment()["LD_AUDIT"] == str(IN_CONTAINER / AUDITOR)
    # The plugin can read in kubelet's own record what it gives the container at every start.
    (given,) = recorded(
        KUBELET_DIR / "device-plugins", str(dynamic.pod["metadata"]["uid"]), dynamic.name
    )
    hook = Hook(cluster.hook)
    (one,) = [one for one in cluster.slices() if one.pod == "dynamic"]
    assert gives_hook(given, one, hook, _SOCKET.parent)
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
    started = cluster.running(static)
    is_held(started, gpu, 96 * MIB)
    is_held(dynamic, gpu, 64 * MIB)
    leaves_nothing(cluster, started, gpu)
