# SPDX-License-Identifier: Apache-2.0
"""What a container is called, from the OCI bundle its runtime wrote.

containerd (also k3s') and CRI-O write the container's name and kind as annotations into the
bundle's ``config.json`` before the container's cgroup exists. Docker's bundles do not carry it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.host.files import FileError, FileVanished, read_text

if TYPE_CHECKING:
    from pathlib import Path

_TASKS = "io.containerd.runtime.v2.task/k8s.io"
_BUNDLES = (
    f"containerd/{_TASKS}/{{id}}/config.json",
    f"k3s/containerd/{_TASKS}/{{id}}/config.json",
    "containers/storage/overlay-containers/{id}/userdata/config.json",
)
_NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_KINDS = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as its runtime knows it; ``name`` is None for a sandbox."""

    name: str | None
    sandbox: bool


def container_record(run: Path, container_id: str) -> ContainerRecord | None:
    """The runtime's record of a container below ``run`` (the host's ``/run``).

    None where no known runtime has one. Raises FileError for a bundle that is no OCI bundle, which
    a half-written file is too: ask again on the next pass.
    """
    for template in _BUNDLES:
        path = run / template.format(id=container_id)
        try:
            return _record(json.loads(read_text(path)))
        except FileVanished:
            continue
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}: expected an OCI bundle, found: {error}") from None
    return None


def _record(config: object) -> ContainerRecord | None:
    annotations = config.get("annotations") if isinstance(config, dict) else None
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise ValueError("annotations is not an object")
    sandbox = any(annotations.get(key) == "sandbox" for key in _KINDS)
    names = [name for key in _NAMES if isinstance(name := annotations.get(key), str) and name]
    if sandbox:
        return ContainerRecord(None, sandbox=True)
    return ContainerRecord(names[0], sandbox=False) if names else None
