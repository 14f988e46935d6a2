# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run inside the virtual node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.host import dmem
from enforcer.host.roots import Roots
from enforcer.inventory import read_inventory
from tests.vm.guest import gatenode, hostile, node
from tests.vm.guest.services import CGROUP, Enforcer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bpf.loader import Gate
    from enforcer.model import Gpu

_HERE = Path(__file__).parent
_GUEST = Path("/run/testbed/run.conf")
_HAS_DMEM = any(name.startswith("drm/") for name in dmem.capacity(CGROUP))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Nothing here can run outside the virtual node; `make test` brings it up.

    What needs the image, or minutes for one test, is for the tier that sets its variable.
    """
    if not _GUEST.exists():
        return True
    asked_for = {"installed": "RINGFENCE_INSTALLED", "full": "RINGFENCE_FULL"}
    own = asked_for.get(collection_path.name, "") if collection_path.parent == _HERE else ""
    return True if own and own not in os.environ else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the booted kernel line or the distribution has not; another runs it."""
    types = Path("/sys/kernel/btf/amdgpu").exists()
    has = {
        "dmem": _HAS_DMEM,
        "hook": "RINGFENCE_HOOK" in os.environ,
        "probes": not types,
        "types": types,
    }
    missing = [
        item
        for item in items
        if any(item.get_closest_marker(name) and not there for name, there in has.items())
    ]
    if missing:
        config.hook.pytest_deselected(items=missing)
        items[:] = [item for item in items if item not in missing]


@pytest.fixture(scope="session")
def gpus() -> list[Gpu]:
    """The GPUs of the node, by PCI address."""
    found, problems = read_inventory(Roots())
    assert not problems
    return sorted(found, key=lambda gpu: gpu.bdf)


@pytest.fixture(scope="session")
def gpu(gpus: list[Gpu]) -> Gpu:
    return gpus[0]


@pytest.fixture(scope="session")
def client_binary() -> Path:
    """The static client, built on the host."""
    return Path(os.environ["RINGFENCE_CLIENT"])


@pytest.fixture(scope="session")
def built() -> Path:
    """The hook, the stand-in thunk and programs, built on the host."""
    return Path(os.environ["RINGFENCE_HOOK"])


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the daemons' logs go: out of the guest, if it has a way out."""
    out = os.environ.get("RINGFENCE_OUT")
    return Path(out) if out else tmp_path_factory.mktemp("logs")


@pytest.fixture
def pods(client_binary: Path) -> Iterator[node.Pods]:
    with node.pods(client_binary) as made:
        yield made


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    """The gate, with the ledger beside it and no enforcer."""
    with gatenode.loaded_parts() as loaded:
        yield loaded


@pytest.fixture(name="node")
def gated_node(gate: Gate, gpus: list[Gpu]) -> Iterator[gatenode.Node]:
    with gatenode.fresh_node(gpus) as made:
        yield made


@pytest.fixture
def share(node: gatenode.Node) -> hostile.Share:
    """A container with a share, which a test tries to get beyond."""
    return hostile.Share(node, node.cgroup("box", hostile.SHARE))


class Switch:
    """One enforcer at a time, restarted when a test wants other layers."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, logs: Path) -> None:
        self._folders = tmp_path_factory
        self._logs = logs
        self._running: Enforcer | None = None

    def run(self, layers: str) -> Enforcer:
        running = self._running
        if running is None or running.layers != layers or not running.alive():
            self.end()
            running = Enforcer(self._folders.mktemp("state"), self._logs, layers)
            running.give([])
            running.start()
            self._running = running
        return running

    def end(self) -> None:
        """Stop it and leave nothing of it in the kernel."""
        if self._running is None:
            return
        if self._running.alive():
            assert self._running.stop() == 0
        self._running.unload()
        self._running = None


@pytest.fixture(scope="session")
def switch(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Iterator[Switch]:
    made = Switch(tmp_path_factory, logs)
    yield made
    made.end()


@pytest.fixture
def enforcer(switch: Switch, pods: node.Pods) -> Enforcer:
    """A running enforcer with every layer the node has. It outlives the pods of the test."""
    return switch.run("auto")


@pytest.fixture(scope="session", params=["gate", "auto"])
def gated_layers(request: pytest.FixtureRequest) -> str:
    """Of session scope, so that tests are grouped by it and the enforcer is seldom restarted."""
    layers: str = request.param
    return layers


@pytest.fixture
def gated(switch: Switch, gated_layers: str) -> Enforcer:
    """A running enforcer with the gate alone, and with everything."""
    return switch.run(gated_layers)


@pytest.fixture
def dmem_alone(switch: Switch) -> Enforcer:
    """A running enforcer that uses dmem only."""
    return switch.run("dmem")
