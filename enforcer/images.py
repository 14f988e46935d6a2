# SPDX-License-Identifier: Apache-2.0
"""What the C library in a container's root file system means for the hook.

The files are the image's: they are read by a process apart, with a bound on its memory.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from audit_hook.image import inspect_image
from enforcer.host import overlay, procs, runtime
from enforcer.model import ImageLibc

if TYPE_CHECKING:
    from enforcer.host.apart import Apart
    from enforcer.host.roots import Roots
    from enforcer.model import Container

IMAGE = "image"
"""The kind of question that ``look_into`` answers."""
LAYERS = "layers"
"""The kind that ``look_into_layers`` does."""

_MOST_BYTES = 512 << 20
_MOST_KNOWN = 256


class ImageError(Exception):
    """Nothing can be said of the image; the message says why, in one line."""


def look_into(root: str) -> str:
    """What ``audit_hook.image`` finds in an unpacked image, as JSON. For a process of its own."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    try:
        found = inspect_image(Path(root))
    except (OSError, MemoryError) as error:
        return json.dumps({"error": f"{root}: {str(error) or 'a file that is too large'}"})
    version = "" if found.version is None else "{}.{}".format(*found.version)
    return json.dumps(
        {
            "libc": found.libc.value,
            "version": version,
            "tool_loads": found.tool_loads,
            "auditor_loads": found.auditor_loads,
            "notes": list(found.notes),
        }
    )


def look_into_layers(about: str) -> str:
    """As ``look_into``, of an image that is mounted nowhere. For a process of its own.

    ``about`` is JSON: ``proc``, the host's, and ``layers``, directories of the host.
    """
    asked = json.loads(about)
    layers = [PurePosixPath(layer) for layer in asked["layers"]]
    try:
        overlay.enter_mounts(Path(asked["proc"]))
        root = overlay.mount_layers(layers)
    except OSError as error:
        return json.dumps({"error": f"{layers[0]} and what is below it: {error}"})
    return look_into(str(root))


class Images:
    """What was found in the images of the node's containers. Safe to use from many threads."""

    def __init__(self, roots: Roots, apart: Apart | None) -> None:
        self._roots = roots
        self._apart = apart
        self._known: dict[str, ImageLibc] = {}

    def libc(self, container: Container, cgroup: Path, seconds: float) -> ImageLibc:
        """The C library of a container that is there; ``cgroup`` is its directory.

        What was found is kept by the image's digest where the runtime tells it, else by container.
        Raises ImageError.
        """
        record = runtime.image(self._roots.run, container.id)
        key = record.digest or container.id
        known = self._known.get(key)
        if known is None:
            root = str(self._root(container, cgroup, record.rootfs))
            known = self._keep(key, self._look(IMAGE, root, root, seconds))
        return known

    def stored_libc(self, name: str, seconds: float) -> ImageLibc:
        """The C library of an image that the runtime has, by a name as in a pod.

        For a container that is not there yet. Raises ImageError.
        """
        # gRPC is what it costs, and only a node without a kernel layer asks.
        from enforcer.imagestore.client import ImageStore, StoreError  # noqa: PLC0415

        deadline = time.monotonic() + seconds
        store = ImageStore(self._roots.host)
        try:
            image = store.find(name, seconds)
            known = self._known.get(image.id)
            if known is None:
                with store.layers(image, deadline - time.monotonic()) as layers:
                    about = {"proc": str(self._roots.proc), "layers": list(map(str, layers))}
                    left = max(0.0, deadline - time.monotonic())
                    known = self._look(LAYERS, json.dumps(about), name, left)
                self._keep(image.id, known)
        except StoreError as error:
            raise ImageError(str(error)) from error
        return known

    def _keep(self, key: str, found: ImageLibc) -> ImageLibc:
        while len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = found
        return found

    def _root(self, container: Container, cgroup: Path, rootfs: Path | None) -> Path:
        """Where the runtime has it mounted, or as the container's own processes see it."""
        if rootfs is not None and _has_entries(rootfs):
            return rootfs
        pids, problems = procs.pids(cgroup)
        if not pids:
            raise ImageError(
                f"container {container.name or container.id} has no process, and its root file "
                f"system is not in sight: {'; '.join(problems) or rootfs or 'no OCI bundle'}"
            )
        return self._roots.proc / str(min(pids)) / "root"

    def _look(self, kind: str, about: str, name: str, seconds: float) -> ImageLibc:
        if self._apart is None:
            raise ImageError("images cannot be looked into: no process for it")
        (answer,) = self._apart.ask(kind, [about], seconds)
        if answer.silent:
            raise ImageError(f"{name}: {answer.text}")
        found = json.loads(answer.text)
        if "error" in found:
            raise ImageError(found["error"])
        return ImageLibc(**{**found, "notes": tuple(found["notes"])})


def _has_entries(directory: Path) -> bool:
    try:
        return next(directory.iterdir(), None) is not None
    except OSError:
        return False
