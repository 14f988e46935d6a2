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


class Cdi:
    """The spec in a directory of the host, kept as the devices are."""

    def __init__(self, directory: Path, spec: Callable[[], str]) -> None:
        self._path = directory / FILE
        self._spec = spec
        self._written = ""
        self._trouble = ""
        self._writing = threading.Lock()

    def ready(self) -> bool:
        """True if the spec on disk is the right one; it is written if it is not.

        False where that fails: then the device nodes themselves are the answer.
        """
        with self._writing:
            try:
                wanted = self._spec()
                if wanted != self._written or not self._path.exists():
                    _replace(self._path, wanted)
                    self._written = wanted
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
