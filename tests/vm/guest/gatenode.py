# SPDX-License-Identifier: Apache-2.0
"""The gate and the ledger by themselves, loaded below pins of their own, for the tests of both."""

from __future__ import annotations

import contextlib
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bpf import loader
from bpf.decode import Policy
from enforcer.host.cgroups import populated
from enforcer.model import pci_key
from tests.vm.guest.caller import Caller
from tests.vm.guest.node import PlainClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bpf.decode import LedgerUsage
    from enforcer.model import Gpu

OBJECTS: Final = Path(loader.__file__).parent
PINS: Final = Path("/sys/fs/bpf/gate-test/1")
CGROUPS: Final = Path("/sys/fs/cgroup")
PAGE: Final = 4096
SECONDS: Final = 60
"""For kernel threads to give back what a process had, on a machine that has other things to do."""


def settled(condition: Callable[[], bool]) -> bool:
    """Whether it comes true in time: programs and buffers are freed by the kernel's threads."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@dataclass
class Node:
    """A loaded gate and ledger, and cgroups made for one test."""

    maps: loader.Maps
    gpus: list[Gpu]
    stack: contextlib.ExitStack

    @property
    def gpu(self) -> int:
        return pci_key(self.gpus[0].bdf)

    @property
    def keys(self) -> list[int]:
        """All GPUs."""
        return [pci_key(gpu.bdf) for gpu in self.gpus]

    @property
    def render(self) -> str:
        return f"/dev/dri/renderD{self.gpus[0].render}"

    @property
    def kfd_id(self) -> int:
        return self.gpus[0].kfd_id

    def cgroup(self, name: str, limit: int | None = None, *, whole: bool = False) -> Path:
        """A cgroup, with a limit on the first GPU if one is given."""
        path = CGROUPS / name
        path.mkdir()
        self.stack.callback(self._remove, path)
        if limit is not None or whole:
            self.maps.set_limit(path.stat().st_ino, self.gpu, limit)
        return path

    def box(self, name: str) -> Path:
        """One that was made."""
        return CGROUPS / name

    def _remove(self, path: Path) -> None:
        number = path.stat().st_ino
        assert settled(lambda: not populated(path))
        for key in self.keys:
            self.maps.delete_limit(number, key)
            self.maps.delete_pending(number, key)
            assert settled(partial(self._forgotten, number, key)), self.maps.usage()
        path.rmdir()

    def _forgotten(self, cgroup: int, key: int) -> bool:
        return (cgroup, key) not in self.maps.usage() or self.maps.delete_usage(cgroup, key)

    def caller(self, cgroup: Path) -> Caller:
        """A process there with the first GPU's files open, as ROCr opens them."""
        caller = self.stack.enter_context(Caller(cgroup))
        caller.do("open", self.render)
        caller.do("open", "/dev/kfd")
        caller.do("acquire", self.render, self.kfd_id)
        return caller

    def usage(self, cgroup: Path, gpu: int | None = None) -> LedgerUsage:
        return self.maps.usage()[cgroup.stat().st_ino, self.gpu if gpu is None else gpu]

    def counted(self, name: str) -> int:
        return self.maps.counters()[name]


@contextmanager
def loaded_parts() -> Iterator[loader.Gate]:
    """The gate and the ledger, taken away again with all they left."""
    gate = loader.load_gate(OBJECTS / "gate.bpf.o", PINS)
    ledger = loader.load_ledger(OBJECTS / "ledger.bpf.o", PINS)
    assert ledger.by_probes != Path("/sys/kernel/btf/amdgpu").exists()
    yield gate
    loader.unload(PINS)
    assert not PINS.exists()


@contextmanager
def fresh_node(gpus: list[Gpu]) -> Iterator[Node]:
    """The loaded parts with empty maps, which must be empty again at the end."""
    with loader.open_maps(PINS) as maps, contextlib.ExitStack() as stack:
        by_minor = {gpu.render: pci_key(gpu.bdf) for gpu in gpus}
        by_minor |= {gpu.card: pci_key(gpu.bdf) for gpu in gpus if gpu.card is not None}
        maps.set_gpus({gpu.kfd_id: pci_key(gpu.bdf) for gpu in gpus}, by_minor)
        maps.set_policy(Policy())
        maps.events()
        yield Node(maps, gpus, stack)
    with loader.open_maps(PINS) as maps:
        assert maps.usage() == {}
        assert maps.limits() == {}
        assert maps.pending() == {}
        assert maps.cu_masks() == {}
        for name in ("tenants", "svm", "queues", "compute"):
            assert maps.fill()[name][0] == 0, name
        assert maps.fill()["buffers"][0] == 0
        assert maps.fill()["resources"][0] == 0


@contextmanager
def held_up(gpu: Gpu) -> Iterator[None]:
    """Buffers begin to be made and are not, as where the driver has to make room."""
    knob = Path(f"/sys/kernel/debug/amdgpu/{gpu.bdf}/sim_holds")
    knob.write_text("Y")
    try:
        yield
    finally:
        knob.write_text("N")


@contextmanager
def client_in(cgroup: Path | None, binary: Path, gpu: Gpu) -> Iterator[PlainClient]:
    """The static client there with the GPU's files open; ended, or reaped if it was killed."""
    client = PlainClient(binary)
    if cgroup is not None:
        (cgroup / "cgroup.procs").write_text(str(client.process.pid))
    try:
        client.open(gpu)
        yield client
    finally:
        with contextlib.suppress(BrokenPipeError):
            client.finish()
