# SPDX-License-Identifier: Apache-2.0
"""The GPUs as the enforcer follows them: looked at when something changed, and now and then."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from enforcer.api.errors import UntoldError
from enforcer.apply import probe_dmem
from enforcer.host import cgroups, dmem, driver, drm
from enforcer.host.files import FileError
from enforcer.inventory import read_inventory
from enforcer.model import DeviceTest, GpuLoad, Layer, LayerState, Why, pci_bdf, pci_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from enforcer.host.apart import Apart
    from enforcer.host.roots import Roots
    from enforcer.layers import KernelLayers
    from enforcer.model import Gpu

_log = logging.getLogger(__name__)

DEVICE = "device"
"""The kind of question that ``enforcer.host.nodes.test_device`` answers."""

_INVENTORY_SECONDS = 30.0
_UNSETTLED_SECONDS = 1.0
"""Until the next look where this one may have come in the middle of a change."""
_UNSETTLED_MOST_SECONDS = 60.0
"""A driver that comes for longer hangs."""
_SENSOR_SECONDS = 5.0
_LEAST_TEST_SECONDS = 1.0
"""A device that has less to answer in is not to blame."""


class Devices:
    """What the node's GPUs are, which of them dmem can limit, and how busy they are."""

    def __init__(
        self, roots: Roots, kernel: KernelLayers, *, use_dmem: bool, apart: Apart | None = None
    ) -> None:
        """``apart`` is for ``test``."""
        self._roots = roots
        self._apart = apart
        self._kernel = kernel
        self._use_dmem = use_dmem
        self._dmem: dict[str, Why | None] = {}
        self._unread = False
        """True while there may be dmem regions beside those that were found."""
        self._inventory_due = 0.0
        self._sensors_due = 0.0
        self._attach_due = False
        self._doubted_since = math.inf
        """When a look first missed a GPU that the driver has."""
        self._settled_at = math.inf
        """When the driver last neither came nor went; infinite before the first look."""
        self._problems: list[str] = []
        self.gpus: tuple[Gpu, ...] = ()
        self.instances: Mapping[str, int] = {}
        """By BDF a number that changes when the driver binds the GPU anew."""
        self.loads: tuple[GpuLoad, ...] = ()
        self.regions: Mapping[str, str] = {}
        """dmem region by BDF, of the GPUs whose region was seen to take a limit."""

    @property
    def settled(self) -> bool:
        """False while the driver comes or goes."""
        return driver.settled(self._roots.sys)

    @property
    def dmem_off(self) -> Why | None:
        """Why a GPU without an entry in ``regions`` has none; None: it has no region at all."""
        if not self._use_dmem:
            return Why.SWITCHED_OFF
        if self._unread:
            return Why.UNREAD
        return next((why for why in self._dmem.values() if why is not None), None)

    @property
    def dmem(self) -> LayerState:
        """On if dmem can limit at least one GPU."""
        return LayerState(Layer.DMEM, None if self.regions else self.dmem_off or Why.NO_REGION)

    @property
    def system_memory(self) -> frozenset[str]:
        """The GPUs whose memory no layer of the kernel can hold."""
        return frozenset(gpu.bdf for gpu in self.gpus if gpu.system_memory)

    @property
    def problems(self) -> list[str]:
        """What is wrong with devices and layers since they were last looked at."""
        return [*self._problems, *self._kernel.problems.values()]

    def changed(self) -> None:
        """Look again on the next ``look``, whatever the time. From any thread."""
        self._inventory_due = 0.0

    def vram_used(self, gpu: int) -> int | None:
        """Bytes in use in a GPU's VRAM now, whoever has them; None where it is not told."""
        return drm.vram_used(_device(self._roots, pci_bdf(gpu)))

    def test(self, bdfs: Sequence[str], wait: float, *, nodes: bool = True) -> list[DeviceTest]:
        """Open ``/dev/kfd``, and with ``nodes`` the render nodes of these GPUs, or of all.

        From any thread. Raises UntoldError where that says nothing of the devices.
        """
        if self._apart is None:
            raise UntoldError("devices cannot be tested: no process for it")
        if wait < _LEAST_TEST_SECONDS:
            raise UntoldError(f"devices cannot be tested in {wait:.1f} s: the call waited too long")
        minors = [gpu.render for gpu in self.gpus if nodes and (not bdfs or gpu.bdf in bdfs)]
        dev = self._roots.dev
        paths = [str(dev / "kfd"), *(str(dev / f"dri/renderD{minor}") for minor in minors)]
        answers = self._apart.ask(DEVICE, paths, wait)
        for path, one in zip(paths, answers, strict=True):
            if one.failed:
                raise UntoldError(f"{path} cannot be tested: {one.text}")
        return [DeviceTest(path, one.text) for path, one in zip(paths, answers, strict=True)]

    def look(self, now: float) -> None:
        """Bring everything up to date that is due at ``now`` (monotonic seconds)."""
        if now >= self._inventory_due:
            self._inventory_due = now + _INVENTORY_SECONDS
            self._sensors_due = now
            if not self._take_inventory(now):
                self._inventory_due = now + _UNSETTLED_SECONDS
            if self._use_dmem:
                self._probe_dmem()
        if now >= self._sensors_due:
            self._sensors_due = now + _SENSOR_SECONDS
            self.loads = _loads(self._roots, self.gpus)
            self._kernel.count_entries()

    def attach(self) -> None:
        """Let the programs follow what the last inventory found; that can take minutes.

        Apart from ``look``, so that what is told of the GPUs meanwhile finds them known.
        """
        if not self._attach_due:
            return
        self._attach_due = False
        self._kernel.retry_gate()
        # A gate that came just now knows none yet.
        self._kernel.set_gpus(*_gpu_keys(self.gpus))
        if not self.settled:
            # Nothing can follow it yet, which is no reason to go without.
            return
        if driver.idle(self._roots.sys):
            self._kernel.let_go()
        else:
            self._kernel.attach()

    def _take_inventory(self, now: float) -> bool:
        """False if it came in the middle of a change, of which more is to be seen soon."""
        settled = self.settled
        self._settled_at = now if settled else min(self._settled_at, now)
        gpus, problems = read_inventory(self._roots)
        # KFD's tree is built anew, all of it, when any GPU comes or goes.
        bound = driver.devices(self._roots.sys) or frozenset()
        missed = {one.kfd_id for one in self.gpus if one.bdf in bound}
        missed -= {one.kfd_id for one in gpus}
        if missed:
            self._doubted_since = min(self._doubted_since, now)
            if now - self._doubted_since < _UNSETTLED_SECONDS:
                return False
        self._doubted_since = math.inf
        if now - self._settled_at >= _UNSETTLED_MOST_SECONDS:
            settled = True
            problems.append(
                "the driver's module has been coming or going for a minute: nothing can follow it, "
                "and who has a slice is refused VRAM; see dmesg"
            )
        self._problems = problems
        if tuple(gpus) != self.gpus:
            _log.info("%d GPUs: %s", len(gpus), ", ".join(gpu.bdf for gpu in gpus) or "none")
        self.gpus = tuple(gpus)
        found = {bdf: drm.instance(_device(self._roots, bdf)) for bdf in {one.bdf for one in gpus}}
        self.instances = {bdf: number for bdf, number in found.items() if number is not None}
        self._attach_due = True
        return settled

    def _probe_dmem(self) -> None:
        """Try every region that is new or took no limit so far."""
        try:
            root = cgroups.cgroup2_root(self._roots.cgroup)
            capacity = dmem.capacity(root)
        except cgroups.NoCgroup2Error:
            capacity = {}  # said by every pass
        except FileError as error:
            # That says nothing of the regions: those that are known stay in use.
            self._problems.append(f"{error}; which GPUs dmem can limit is not known anew")
            self._unread = True
            return
        bdfs = {gpu.bdf for gpu in self.gpus}
        found = dmem.regions(capacity, bdfs)
        # amdgpu has a region for each of its GPUs or for none, so one of the others cannot be read.
        self._unread = dmem.unmatched(capacity, bdfs)
        untried = {
            bdf: region
            for bdf, region in found.items()
            if self._dmem.get(bdf, Why.NO_REGION) is not None
        }
        tried = {**self._dmem, **(probe_dmem(root, untried) if untried else {})}
        # The kernel tells of the region, so there is one, whatever became of the limit.
        self._dmem = {
            bdf: Why.REFUSED if tried[bdf] is Why.NO_REGION else tried[bdf] for bdf in found
        }
        self.regions = {bdf: region for bdf, region in found.items() if tried[bdf] is None}


def _device(roots: Roots, bdf: str) -> Path:
    return roots.sys / "bus/pci/devices" / bdf


def _gpu_keys(gpus: Sequence[Gpu]) -> tuple[dict[int, int], dict[int, int]]:
    by_minor = {gpu.render: pci_key(gpu.bdf) for gpu in gpus}
    by_minor.update((gpu.card, pci_key(gpu.bdf)) for gpu in gpus if gpu.card is not None)
    return {gpu.kfd_id: pci_key(gpu.bdf) for gpu in gpus}, by_minor


def _loads(roots: Roots, gpus: Sequence[Gpu]) -> tuple[GpuLoad, ...]:
    found = []
    for bdf in sorted({gpu.bdf for gpu in gpus}):
        load = drm.load(_device(roots, bdf))
        found.append(GpuLoad(bdf, load.vram_used, load.busy_percent, load.temperature, load.power))
    return tuple(found)
