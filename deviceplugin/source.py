# SPDX-License-Identifier: Apache-2.0
"""Where the GPUs are read, and whether they can be used: here, and by the enforcer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from deviceplugin.devices import gpu_key
from enforcer.api.client import EnforcerError
from enforcer.inventory import read_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from enforcer.api.client import Client
    from enforcer.host.roots import Roots
    from enforcer.model import Gpu, Snapshot

_SNAPSHOT_SECONDS = 2.0
_TEST_SECONDS = 5.0
_LOOKS_A_TEST = 6
"""Opening its render node wakes a GPU that sleeps, so not at every look, unless one failed."""
_KFD = "kfd"


class GpuSource:
    """This process opens no device, and KFD shows it no GPU.

    KFD does so only where the device cgroup allows the GPU's render node, which an unprivileged
    container's does not. So the enforcer is asked for both. While it is away its last answers stay:
    its absence is no news of the GPUs.
    """

    def __init__(self, roots: Roots, client: Client, show: Callable[[Snapshot], None]) -> None:
        """``show`` is shown what the enforcer says, for what else is in it."""
        self._roots = roots
        self._client = client
        self._show = show
        self._found: tuple[Gpu, ...] = ()
        self._told: tuple[Gpu, ...] = ()
        self._ill: Mapping[str, str] = {}
        self._shut: Mapping[str, str] = {}
        self._looks_left = 0
        self._in_the_dark = False

    @property
    def in_the_dark(self) -> bool:
        """No GPU in sight here, and no enforcer that would say whether there is one."""
        return self._in_the_dark

    def read(self) -> tuple[list[Gpu], list[str]]:
        """The GPUs, and one line for each problem."""
        here: list[Gpu] = []
        problems: list[str] = []
        silence = ""
        try:
            self._show(self._ask())
        except EnforcerError as error:
            silence = f"the enforcer says nothing of the GPUs: {error}"
        # Where it sees GPUs it sees all there are: they need not be read twice.
        if silence or not self._told:
            here, problems = read_inventory(self._roots)
        self._in_the_dark = bool(silence) and not (here or self._told)
        if silence:
            seen = "no GPU in sight here, and " if self._in_the_dark else ""
            problems.append(f"{seen}{silence}")
        found = {(gpu.bdf, gpu.render): gpu for gpu in (*here, *self._told)}
        self._found = tuple(found.values())
        return list(found.values()), problems

    def learn(self) -> None:
        """Ask the enforcer, and show nobody: for a plugin that is not at work yet.

        An update ends plugin and enforcer at once. The next plugin is at work in a moment, the next
        enforcer tells of GPUs only when all is in the kernel, and until then those here are known.
        """
        with suppress(EnforcerError):
            self._ask()

    def ailing(self) -> Mapping[str, str]:
        """Why a GPU is not fit to be used, by its key or its PCI address; as of the last ``read``.

        By what the kernel tells of it, and by opening ``/dev/kfd`` and its render node.
        """
        ailing = dict(self._ill)
        for gpu in self._found:
            for name in (_KFD, f"renderD{gpu.render}"):
                if name in self._shut:
                    ailing[gpu_key(gpu)] = self._shut[name]
        return ailing

    def _ask(self) -> Snapshot:
        """Take in what the enforcer says. Raises EnforcerError."""
        snapshot = self._client.snapshot(_SNAPSHOT_SECONDS)
        self._told = snapshot.gpus
        self._ill = {one.bdf: one.reason for one in snapshot.health if not one.healthy}
        self._test()
        return snapshot

    def _test(self) -> None:
        if self._looks_left and not self._shut:
            self._looks_left -= 1
            return
        self._looks_left = _LOOKS_A_TEST
        try:
            tests = self._client.test_devices(timeout=_TEST_SECONDS)
        except EnforcerError:
            # An enforcer that does not know the question yet, or that is ending.
            return
        self._shut = {
            PurePosixPath(one.path).name: f"{one.path} cannot be used: {one.error}"
            for one in tests
            if not one.usable
        }
