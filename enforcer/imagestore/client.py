# SPDX-License-Identifier: Apache-2.0
"""Finds the layers of an image that no container has been made of yet.

The Container Runtime Interface resolves the name as it does for kubelet, and tells which store it
keeps images in. containerd's is asked for a view of the image, which is taken back at once; that of
CRI-O (containers/storage) is read from its files.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import grpc

from enforcer.host.files import FileError, FileVanished, read_text
from enforcer.imagestore import cri_pb2, snapshots_pb2
from enforcer.imagestore.cri_pb2_grpc import ImageServiceStub
from enforcer.imagestore.snapshots_pb2_grpc import SnapshotsStub

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SOCKETS = (
    "run/containerd/containerd.sock",
    "run/k3s/containerd/containerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
    "run/crio/crio.sock",
)
_NAMESPACE = (("containerd-namespace", "k8s.io"),)
_SNAPSHOTTER = "io.containerd.snapshotter.v1."
_STORAGE = "overlay-images"
_LEAST_SECONDS = 0.1
_REMOVE_SECONDS = 0.5, 2.0
"""The former where the time is up by then: containerd collects a view that stays."""
_MOST_MESSAGE_BYTES = 1 << 20
# What containerd tells of an image begins with it; the rest is the image's, and not parsed here.
_CHAIN = re.compile(r'\{\s*"chainID"\s*:\s*"(sha256:[0-9a-f]{64})"')


class StoreError(Exception):
    """The image's files cannot be found; the message says why, in one line."""


class NoSuchImageError(StoreError):
    """No runtime that is there has the image."""


class _NoPodsError(StoreError):
    """Not a runtime that kubelet could use."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as the runtime has it."""

    name: str
    id: str
    """Its digest: another content has another."""
    socket: Path
    """Where its runtime listens."""
    store: PurePosixPath
    """Where the runtime keeps the layers of images, on the host."""
    chain: str
    """What containerd calls all its layers together; "" elsewhere."""


class ImageStore:
    """The image stores of the runtimes on a node whose root is ``host``, by default sockets."""

    def __init__(self, host: Path) -> None:
        self._host = host

    def find(self, name: str, seconds: float) -> StoredImage:
        """The image of a name as a pod has it. Raises StoreError, also where two have another.

        NoSuchImageError is the answer of every runtime that is there.
        """
        deadline = time.monotonic() + seconds
        sockets, problems = self._sockets()
        found: list[StoredImage] = []
        missing: list[str] = []
        strangers: list[str] = []
        for number, socket in enumerate(sockets):
            # One that hangs leaves the others, and the look itself, a share of the time.
            share = (deadline - time.monotonic()) / (len(sockets) - number + 1)
            try:
                found.append(_find(socket, name, time.monotonic() + share))
            except NoSuchImageError as error:
                missing.append(str(error))
            except _NoPodsError as error:
                strangers.append(str(error))
            except StoreError as error:
                problems.append(str(error))
        if len({one.id for one in found}) > 1:
            having = ", ".join(f"{one.id} at {one.socket}" for one in found)
            raise StoreError(f"{name} is not one image: {having}")
        if found:
            return found[0]
        if missing and not problems:
            raise NoSuchImageError("; ".join(missing))
        raise StoreError(
            "; ".join([*problems, *missing, *strangers])
            or f"no container runtime: expected one of {', '.join(_SOCKETS)} below {self._host}"
        )

    def _sockets(self) -> tuple[list[Path], list[str]]:
        """Of the runtimes that are there; and what kept from seeing whether one is."""
        found, problems = [], []
        for socket in (self._host / path for path in _SOCKETS):
            try:
                if socket.is_socket():
                    found.append(socket)
            except OSError as error:
                problems.append(f"{socket}: {error.strerror}")
        return found, problems

    @contextmanager
    def layers(self, image: StoredImage, seconds: float) -> Iterator[list[PurePosixPath]]:
        """The directories of its layers on the host, the uppermost first. Raises StoreError."""
        if image.chain:
            with _view(image, time.monotonic() + seconds) as layers:
                yield layers
        else:
            yield self._storage_layers(image)

    def _storage_layers(self, image: StoredImage) -> list[PurePosixPath]:
        """As containers/storage describes them: each layer has a list of those below it."""
        index = self._host / image.store.relative_to("/") / "images.json"
        top = _top_layer(index, image.id)
        overlay = image.store.with_name("overlay")
        try:
            lower = read_text(self._host / overlay.relative_to("/") / top / "lower").strip()
        except FileVanished:
            lower = ""
        except FileError as error:
            raise StoreError(str(error)) from error
        return [overlay / top / "diff", *(overlay / one for one in lower.split(":") if one)]


def _find(socket: Path, name: str, deadline: float) -> StoredImage:
    try:
        with _channel(socket) as channel:
            images = ImageServiceStub(channel)
            status = images.ImageStatus(
                cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name), verbose=True),
                timeout=_left(deadline),
            )
            if not status.HasField("image"):
                raise NoSuchImageError(f"{socket}: there is no image {name}")
            told = images.ImageFsInfo(cri_pb2.ImageFsInfoRequest(), timeout=_left(deadline))
    except grpc.RpcError as error:
        unknown = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED
        raise (_NoPodsError if unknown else StoreError)(f"{socket}: {_why(error)}") from error
    stores = [PurePosixPath(one.fs_id.mountpoint) for one in told.image_filesystems]
    chain = _chain(status.info)
    for store in stores:
        if (chain and store.name.startswith(_SNAPSHOTTER)) or store.name == _STORAGE:
            return StoredImage(name, status.image.id, socket, store, chain)
    raise StoreError(
        f"{socket}: expected the store of containerd or CRI-O (overlay), found "
        f"{', '.join(map(str, stores)) or 'none'}"
    )


def _chain(info: Mapping[str, str]) -> str:
    """The chain id in containerd's own words about an image; "" where there is none."""
    match = _CHAIN.match(info.get("info", ""))
    return match[1] if match else ""


def _channel(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{socket}", options=[("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES)]
    )


@contextmanager
def _view(image: StoredImage, deadline: float) -> Iterator[list[PurePosixPath]]:
    """Nothing refers to the view: should this process end now, containerd collects it."""
    snapshotter = image.store.name.removeprefix(_SNAPSHOTTER)
    key = f"ringfence-{secrets.token_hex(8)}"
    try:
        with _channel(image.socket) as channel:
            snapshots = SnapshotsStub(channel)
            view = snapshots.View(
                snapshots_pb2.ViewSnapshotRequest(
                    snapshotter=snapshotter, key=key, parent=image.chain
                ),
                metadata=_NAMESPACE,
                timeout=_left(deadline),
            )
            try:
                yield _directories(view.mounts, snapshotter)
            finally:
                with suppress(grpc.RpcError):
                    snapshots.Remove(
                        snapshots_pb2.RemoveSnapshotRequest(snapshotter=snapshotter, key=key),
                        metadata=_NAMESPACE,
                        timeout=sorted([*_REMOVE_SECONDS, _left(deadline)])[1],
                    )
    except grpc.RpcError as error:
        raise StoreError(f"{image.socket}: a view of {image.name}: {_why(error)}") from error


def _directories(mounts: Sequence[snapshots_pb2.Mount], snapshotter: str) -> list[PurePosixPath]:
    """The directories that a view is mounted from."""
    [mount] = mounts if len(mounts) == 1 else [snapshots_pb2.Mount(type=f"{len(mounts)} mounts")]
    if mount.type == "bind":
        return [PurePosixPath(mount.source)]
    for option in mount.options if mount.type == "overlay" else ():
        name, _, value = option.partition("=")
        if name == "lowerdir":
            return [PurePosixPath(one) for one in value.split(":")]
    raise StoreError(
        f"snapshotter {snapshotter}: expected an overlay of directories, found {mount.type}"
    )


def _top_layer(index: Path, identity: str) -> str:
    try:
        for image in json.loads(read_text(index)):
            if image["id"] == identity.removeprefix("sha256:"):
                # A name of one directory, and of none above it.
                return PurePosixPath(image["layer"]).name
    except (FileError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{index}: expected the images of containers/storage: {error}") from error
    raise StoreError(f"{index}: there is no image {identity}")


def _left(deadline: float) -> float:
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def _why(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error)
