# SPDX-License-Identifier: Apache-2.0
"""A container runtime's image store, over the real protocols."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
from google.protobuf.empty_pb2 import Empty

from enforcer.imagestore import cri_pb2, snapshots_pb2
from enforcer.imagestore.cri_pb2_grpc import (
    ImageServiceServicer,
    add_ImageServiceServicer_to_server,
)
from enforcer.imagestore.snapshots_pb2_grpc import (
    SnapshotsServicer,
    add_SnapshotsServicer_to_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHAIN = "sha256:" + "c" * 64
IMAGE = "sha256:" + "1" * 64
CONTAINERD = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"


class Runtime(ImageServiceServicer, SnapshotsServicer):
    """A runtime with one image, ``debian:12``."""

    def __init__(
        self,
        store: str,
        info: dict[str, str],
        mounts: list[snapshots_pb2.Mount],
        image: str = IMAGE,
    ) -> None:
        self.image = image
        self.store = store
        self.info = info
        self.mounts = mounts
        self.views: dict[str, tuple[str, str]] = {}
        self.viewed = 0

    def ImageStatus(  # noqa: N802
        self, request: cri_pb2.ImageStatusRequest, context: grpc.ServicerContext
    ) -> cri_pb2.ImageStatusResponse:
        if request.image.image != "debian:12":
            return cri_pb2.ImageStatusResponse()
        return cri_pb2.ImageStatusResponse(
            image=cri_pb2.Image(id=self.image), info=self.info if request.verbose else {}
        )

    def ImageFsInfo(  # noqa: N802
        self, request: cri_pb2.ImageFsInfoRequest, context: grpc.ServicerContext
    ) -> cri_pb2.ImageFsInfoResponse:
        where = cri_pb2.FilesystemIdentifier(mountpoint=self.store)
        return cri_pb2.ImageFsInfoResponse(
            image_filesystems=[cri_pb2.FilesystemUsage(fs_id=where)] if self.store else []
        )

    def View(  # noqa: N802
        self, request: snapshots_pb2.ViewSnapshotRequest, context: grpc.ServicerContext
    ) -> snapshots_pb2.ViewSnapshotResponse:
        assert dict(context.invocation_metadata())["containerd-namespace"] == "k8s.io"
        if not self.mounts:
            context.abort(grpc.StatusCode.NOT_FOUND, f"snapshot {request.parent} does not exist")
        self.views[request.key] = request.snapshotter, request.parent
        self.viewed += 1
        return snapshots_pb2.ViewSnapshotResponse(mounts=self.mounts)

    def Remove(  # noqa: N802
        self, request: snapshots_pb2.RemoveSnapshotRequest, context: grpc.ServicerContext
    ) -> Empty:
        del self.views[request.key]
        return Empty()


def containerd(*mounts: snapshots_pb2.Mount) -> Runtime:
    info = json.dumps({"chainID": CHAIN, "imageSpec": {"os": "linux"}})
    return Runtime(CONTAINERD, {"info": info}, list(mounts))


@contextmanager
def serving(runtime: Runtime, socket: Path) -> Iterator[None]:
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.server(ThreadPoolExecutor(2))
    add_ImageServiceServicer_to_server(runtime, server)
    add_SnapshotsServicer_to_server(runtime, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()
