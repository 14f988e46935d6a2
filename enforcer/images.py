# SPDX-License-Identifier: Apache-2.0
"""What the C library in a container's root file system means for the hook.

The files are the image's: they are read by a process apart, with a bound on its memory.
"""

from __future__ import annotations

import json
import resource
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from audit_hook.image import inspect_image
from enforcer.host import overlay, procs, runtime
from enforcer.model import ImageLibc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.host.apart import Apart
    from enforcer.host.roots import Roots
    from enforcer.model import Container

IMAGE = "image"
"""The kind of question that ``look_into`` answers."""
LAYERS = "layers"
"""The kind that ``look_into_layers`` does."""

_MOST_BYTES = 64 << 20
"""Beside what the process has when it begins, which is a copy of its parent's."""
_MOST_SECONDS = 10
"""As long as anybody waits for an answer."""
_MOST_KNOWN = 256
_MOST_AT_ONCE = 2
_MOST_ASKING = 6
"""Less than the API's threads: there is one left for what is not about images."""


class ImageError(Exception):
    """Nothing can be said of the image; the message says why, in one line."""


class NoImageError(ImageError):
    """No runtime of this node has the image."""


def look_into(root: str) -> str:
    """What ``audit_hook.image`` finds in an unpacked image, as JSON. For a process of its own."""
    _bound()
    return _look_into(root)


def _look_into(root: str) -> str:
    try:
        found = inspect_image(Path(root))
    except (OSError, MemoryError) as error:
        return _error(root, error)
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
    _bound()
    asked = json.loads(about)
    layers = [PurePosixPath(layer) for layer in asked["layers"]]
    try:
        overlay.enter_mounts(Path(asked["proc"]))
        root = overlay.mount_layers(layers)
    except OSError as error:
        return _error(f"{layers[0]} and what is below it", error)
    return _look_into(str(root))


def _bound() -> None:
    """Let the kernel end this process, or refuse it: whatever it reads, it is an image's."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 1))
    # proc(5): the sixth field is data and stack, in pages.
    has = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (has + _MOST_BYTES, has + _MOST_BYTES))


def _error(what: str, error: OSError | MemoryError) -> str:
    """Fit to be shown, whatever the image calls its files."""
    text = f"{what}: {str(error) or 'a file that is too large'}"
    return json.dumps({"error": ascii(text)[1:-1]})


class Images:
    """What was found in the images of the node's containers. Safe to use from many threads."""

    def __init__(self, roots: Roots, apart: Apart | None) -> None:
        self._roots = roots
        self._apart = apart
        self._known: dict[str, ImageLibc] = {}
        """By digest or container; what is there a container may have written."""
        self._stored: dict[str, ImageLibc] = {}
        """By the runtime's id of an image, of those that load the hook."""
        self._asking = threading.Semaphore(_MOST_ASKING)
        self._looking = threading.Semaphore(_MOST_AT_ONCE)

    def libc(self, container: Container, cgroup: Path, seconds: float) -> ImageLibc:
        """The C library of a container that is there; ``cgroup`` is its directory.

        What was found is kept by the image's digest where the runtime tells it, else by container.
        Raises ImageError.
        """
        record = runtime.image(self._roots.run, container.id)
        key = record.digest or container.id
        known = self._known.get(key)
        if known is None:
            deadline = time.monotonic() + seconds
            name = container.name or container.id
            with self._turn(name, deadline):
                root = str(self._root(container, cgroup, record.rootfs))
                known = self._look(IMAGE, root, root, deadline)
            _keep(self._known, key, known)
        return known

    def stored_libc(self, name: str, seconds: float) -> ImageLibc:
        """The C library of an image that the runtime has, by a name as in a pod.

        For a container that is not there yet. Raises ImageError, and NoImageError if no runtime has
        it.
        """
        # gRPC is what it costs, and only a node without a kernel layer asks.
        from enforcer.imagestore.client import (  # noqa: PLC0415
            ImageStore,
            NoSuchImageError,
            StoreError,
        )

        deadline = time.monotonic() + seconds
        store = ImageStore(self._roots.host)
        try:
            with self._turn(name, deadline):
                image = store.find(name, deadline - time.monotonic())
                known = self._stored.get(image.id)
                if known is not None:
                    return known
                with store.layers(image, deadline - time.monotonic()) as layers:
                    about = {"proc": str(self._roots.proc), "layers": list(map(str, layers))}
                    known = self._look(LAYERS, json.dumps(about), name, deadline)
                    # Layers that were removed meanwhile are an image without a C library.
                    if known.tool_loads:
                        _keep(self._stored, image.id, known)
        except NoSuchImageError as error:
            raise NoImageError(str(error)) from error
        except StoreError as error:
            raise ImageError(str(error)) from error
        return known

    @contextmanager
    def _turn(self, name: str, deadline: float) -> Iterator[None]:
        """Few at once: what each reads is memory of this container, and each is a thread."""
        if not self._asking.acquire(blocking=False):
            raise ImageError(f"{name}: too many images are being looked into; try again")
        try:
            if not self._looking.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise ImageError(f"{name}: other images are being looked into; try again")
            try:
                yield
            finally:
                self._looking.release()
        finally:
            self._asking.release()

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

    def _look(self, kind: str, about: str, name: str, deadline: float) -> ImageLibc:
        if self._apart is None:
            raise ImageError("images cannot be looked into: no process for it")
        (answer,) = self._apart.ask(kind, [about], max(0.0, deadline - time.monotonic()))
        if answer.silent:
            raise ImageError(f"{name}: {answer.text}")
        found = json.loads(answer.text)
        if "error" in found:
            raise ImageError(found["error"])
        return ImageLibc(**{**found, "notes": tuple(found["notes"])})


def _keep(known: dict[str, ImageLibc], key: str, found: ImageLibc) -> None:
    while len(known) >= _MOST_KNOWN:
        known.pop(next(iter(known)), None)
    known[key] = found


def _has_entries(directory: Path) -> bool:
    try:
        return next(directory.iterdir(), None) is not None
    except (OSError, ValueError):
        return False
