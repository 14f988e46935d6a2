# SPDX-License-Identifier: Apache-2.0
"""What a container is called, from what its runtime wrote.

containerd (also k3s') and CRI-O write the container's name and kind as annotations into the OCI
bundle's ``config.json`` before the container's cgroup exists. Docker's bundles do not carry it;
cri-dockerd gives it as labels, which Docker keeps in a file of its own, also from before the start,
together with those of the image: each runtime is believed its own words only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enforcer.host.files import FileError, FileVanished, read_text

if TYPE_CHECKING:
    from pathlib import Path

_TASKS = "io.containerd.runtime.v2.task/k8s.io"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""What Kubernetes lets a container be called: an RFC 1123 label."""
_DIGEST = re.compile(r"(?:^(?:sha256:)?|@sha256:)([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True)
class _Words:
    """The keys under which a runtime writes these."""

    name: str
    kind: str
    image: str = ""


_CONTAINERD = _Words(
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri.image-name",
)
_CRIO = _Words(
    "io.kubernetes.container.name",
    "io.kubernetes.cri-o.ContainerType",
    "io.kubernetes.cri-o.ImageRef",
)
_DOCKER = _Words("io.kubernetes.container.name", "io.kubernetes.docker.type")
_BUNDLES = (
    (f"containerd/{_TASKS}/{{id}}/config.json", _CONTAINERD),
    (f"k3s/containerd/{_TASKS}/{{id}}/config.json", _CONTAINERD),
    ("containers/storage/overlay-containers/{id}/userdata/config.json", _CRIO),
)


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as its runtime knows it; ``name`` is None for a sandbox."""

    name: str | None
    sandbox: bool


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """Where a container's files come from; None is not told."""

    digest: str | None = None
    rootfs: Path | None = None
    """Where the runtime mounts them on the node; it may not be in sight from here."""


def image(run: Path, container_id: str) -> ImageRecord:
    """What a container's OCI bundle tells of its image; nothing where there is no bundle."""
    for template, words in _BUNDLES:
        path = run / template.format(id=container_id)
        try:
            config = json.loads(read_text(path))
            root, annotations = config.get("root") or {}, config.get("annotations") or {}
            where = root.get("path")
            name = annotations.get(words.image)
        except FileError:
            continue
        except (ValueError, RecursionError, AttributeError):
            return ImageRecord()
        digest = next(iter(_DIGEST.findall(str(name or ""))), None)
        rootfs = path.parent / where if isinstance(where, str) and where else None
        return ImageRecord(digest, rootfs)
    return ImageRecord()


def container_record(run: Path, docker: Path, container_id: str) -> ContainerRecord | None:
    """The runtime's record of a container, below the host's ``/run`` or Docker's ``containers``.

    None where no known runtime has one. Raises FileError for a file of another form, which a
    half-written one is too: ask again on the next pass.
    """
    for template, words in _BUNDLES:
        path = run / template.format(id=container_id)
        try:
            config = json.loads(read_text(path))
            return _record(config.get("annotations") if isinstance(config, dict) else None, words)
        except FileVanished:
            continue
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}: expected an OCI bundle, found: {error}") from None
    path = docker / container_id / "config.v2.json"
    try:
        config = json.loads(read_text(path))
        settings = config.get("Config") if isinstance(config, dict) else None
        return _record(settings.get("Labels") if isinstance(settings, dict) else None, _DOCKER)
    except FileVanished:
        return None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: expected Docker's own record, found: {error}") from None


def _record(annotations: object, words: _Words) -> ContainerRecord | None:
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise ValueError("annotations is not an object")
    if annotations.get(words.kind) in ("sandbox", "podsandbox"):
        return ContainerRecord(None, sandbox=True)
    name = annotations.get(words.name)
    named = isinstance(name, str) and _NAME.fullmatch(name) is not None
    return ContainerRecord(name, sandbox=False) if named else None
