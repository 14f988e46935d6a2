# SPDX-License-Identifier: Apache-2.0
"""The GPUs by CDI name: a spec that tells the runtime which device nodes a name stands for.

With it the runtime also gives a container that is not root's the groups that own the nodes, which
no other answer to kubelet can.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deviceplugin.allocate import nodes_of
from deviceplugin.devices import GONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deviceplugin.devices import Device

KIND = "amd.com/gpu"
FILE = "amd.com-gpu.json"
KFD = "/dev/kfd"
_GROUPS_SECONDS = 30.0

_log = logging.getLogger(__name__)


def cdi_name(device: Device) -> str:
    """The name of a device, as a container's answer carries it."""
    return f"{KIND}={_own_name(device)}"


def spec_of(devices: Iterable[Device], groups: Sequence[int] = ()) -> str:
    """The text of the spec. Pure.

    ``groups`` own the device nodes; a spec with them needs CDI 0.7, one without is 0.6.
    """
    edits: dict[str, object] = {"deviceNodes": [{"path": KFD}]}
    if groups:
        edits["additionalGids"] = list(groups)
    spec = {
        "cdiVersion": "0.7.0" if groups else "0.6.0",
        "kind": KIND,
        "containerEdits": edits,
        "devices": [
            {
                "name": _own_name(device),
                "containerEdits": {
                    "deviceNodes": [{"path": path} for path in nodes_of([device]) if path != KFD]
                },
            }
            for device in devices
            if device.why != GONE
        ],
    }
    return json.dumps(spec, indent=1) + "\n"


def groups_of(dev: Path, devices: Iterable[Device]) -> tuple[int, ...]:
    """The groups that own the device nodes below the host's ``dev``, root's left out."""
    found = set()
    for path in nodes_of(list(devices)):
        try:
            found.add((dev / Path(path).relative_to("/dev")).stat().st_gid)
        except OSError:
            # Not there, or /dev is not mounted here: then nothing is known of its group.
            continue
    return tuple(sorted(found - {0}))


class Groups:
    """What ``groups_of`` says, read again when the devices change and now and then."""

    def __init__(self, dev: Path, devices: Callable[[], Sequence[Device]]) -> None:
        self._dev = dev
        self._devices = devices
        self._of: Sequence[Device] = ()
        self._groups: tuple[int, ...] = ()
        self._due = 0.0

    def read(self) -> tuple[int, ...]:
        devices = self._devices()
        if devices is not self._of or time.monotonic() >= self._due:
            self._groups = groups_of(self._dev, devices)
            self._of, self._due = devices, time.monotonic() + _GROUPS_SECONDS
        return self._groups


class Cdi:
    """The spec in a directory of the host, kept as the devices are."""

    def __init__(
        self,
        directory: Path,
        devices: Callable[[], Sequence[Device]],
        groups: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """``devices`` gives another object when they are others."""
        self._path = directory / FILE
        self._devices = devices
        self._groups = groups
        self._of: tuple[Sequence[Device], Sequence[int]] | None = None
        self._trouble = ""
        self._writing = threading.Lock()

    def ready(self) -> bool:
        """True if the spec on disk is the right one; it is written if it is not.

        False where that fails: then the device nodes themselves are the answer.
        """
        with self._writing:
            devices, groups = self._devices(), self._groups()
            known = self._of is not None and self._of[0] is devices and self._of[1] == groups
            try:
                if not known or not self._path.exists():
                    _replace(self._path, spec_of(devices, groups))
                    self._of = devices, groups
                    _log.info("CDI spec %s written", self._path)
            except OSError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    _log.warning("CDI spec: %s; device nodes are given instead", error)
                return False
            self._trouble = ""
            return True


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{FILE}-", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _own_name(device: Device) -> str:
    gpu = device.gpu
    return f"renderD{gpu.render}" if gpu.card is None else f"card{gpu.card}"
