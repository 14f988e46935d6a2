# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING, Any

from image.layer import write_layer
from image.oci import write_archive

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["ringfence"]}}


def written(tmp_path: Path) -> tuple[str, dict[str, bytes]]:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    (root / "file").write_text("content")
    layer = write_layer(root, tmp_path / "layer", 0)
    archive = tmp_path / "image.tar"
    digest = write_archive(archive, [layer], CONFIG, "localhost/ringfence:1.2", {"a": "b"})
    with tarfile.open(archive) as tar:
        return digest, {
            entry.name: content.read()
            for entry in tar
            if (content := tar.extractfile(entry)) is not None
        }


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    """What a descriptor points to, checked as a runtime checks it."""
    data = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert len(data) == descriptor["size"]
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == descriptor["digest"]
    return data


def test_every_descriptor_leads_to_its_blob(tmp_path: Path) -> None:
    digest, files = written(tmp_path)
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == digest
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    (layer,) = manifest["layers"]
    blob(files, layer)
    assert config["config"]["Entrypoint"] == ["ringfence"]
    assert len(config["rootfs"]["diff_ids"]) == 1


def test_containerd_and_docker_find_the_name(tmp_path: Path) -> None:
    _, files = written(tmp_path)
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": "localhost/ringfence:1.2",
        "org.opencontainers.image.ref.name": "1.2",
    }
    (docker,) = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == ["localhost/ringfence:1.2"]
    assert {docker["Config"], *docker["Layers"]} <= set(files)


def test_the_same_image_has_the_same_digest(tmp_path: Path) -> None:
    assert written(tmp_path)[0] == written(tmp_path)[0]
