# SPDX-License-Identifier: Apache-2.0
"""The OCI image layout (image-spec 1.1), as one tar file that ctr, podman and docker load."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from image.layer import Layer

_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def write_archive(
    path: Path,
    layers: Sequence[Layer],
    config: Mapping[str, Any],
    reference: str,
    annotations: Mapping[str, str],
) -> str:
    """Write the archive; the image's digest. ``config`` is the image's, without ``rootfs``."""
    whole = {**config, "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]}}
    config_blob = _json(whole)
    manifest_blob = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config_blob),
            "layers": [
                {"mediaType": _LAYER, "digest": one.digest, "size": one.size} for one in layers
            ],
            "annotations": dict(annotations),
        }
    )
    named = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
    }
    platform = {"architecture": config["architecture"], "os": config["os"]}
    manifest = _descriptor(_MANIFEST, manifest_blob)
    files: dict[str, bytes | Layer] = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(
            {
                "schemaVersion": 2,
                "manifests": [{**manifest, "annotations": named, "platform": platform}],
            }
        ),
        # Docker's own words for the same blobs; older versions of it read nothing else.
        "manifest.json": _json(
            [
                {
                    "Config": _blob(_descriptor(_CONFIG, config_blob)["digest"]),
                    "RepoTags": [reference],
                    "Layers": [_blob(one.digest) for one in layers],
                }
            ]
        ),
        _blob(_descriptor(_CONFIG, config_blob)["digest"]): config_blob,
        _blob(manifest["digest"]): manifest_blob,
        **{_blob(one.digest): one for one in layers},
    }
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in sorted(files):
            _add(archive, name, files[name])
    return str(manifest["digest"])


def _add(archive: tarfile.TarFile, name: str, content: bytes | Layer) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o644
    if isinstance(content, bytes):
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
        return
    entry.size = content.size
    with content.path.open("rb") as blob:
        archive.addfile(entry, blob)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _descriptor(media: str, blob: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    return {"mediaType": media, "digest": digest, "size": len(blob)}


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
