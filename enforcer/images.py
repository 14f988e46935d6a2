# SPDX-License-Identifier: Apache-2.0
"""What the C library in a container's root file system means for the hook.

The files are the image's: they are read by a process apart, with a bound on its memory.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.host import procs, runtime
from enforcer.model import ImageLibc

if TYPE_CHECKING:
    from enforcer.host.apart import Apart
    from enforcer.host.roots import Roots
    from enforcer.model import Container

IMAGE = "image"
"""The kind of question that ``look_into`` answers."""

_MOST_BYTES = 512 << 20
_MOST_KNOWN = 256


class ImageError(Exception):
    """Nothing can be said of the image; the message says why, in one line."""


def look_into(root: str) -> str:
    """What ``audit_hook.check`` finds in an unpacked image, as JSON. For a process of its own."""
    # Here alone: its ELF reader is nothing the daemon should carry.
    from audit_hook.check import inspect_image  # noqa: PLC0415

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
            known = self._look(self._root(container, cgroup, record.rootfs), seconds)
            while len(self._known) >= _MOST_KNOWN:
                self._known.pop(next(iter(self._known)), None)
            self._known[key] = known
        return known

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

    def _look(self, root: Path, seconds: float) -> ImageLibc:
        if self._apart is None:
            raise ImageError("images cannot be looked into: no process for it")
        (answer,) = self._apart.ask(IMAGE, [str(root)], seconds)
        if answer.silent:
            raise ImageError(f"{root}: {answer.text}")
        found = json.loads(answer.text)
        if "error" in found:
            raise ImageError(found["error"])
        return ImageLibc(**{**found, "notes": tuple(found["notes"])})


def _has_entries(directory: Path) -> bool:
    try:
        return next(directory.iterdir(), None) is not None
    except OSError:
        return False
