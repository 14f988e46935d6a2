# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from enforcer.host.files import FileError
from enforcer.host.runtime import ContainerRecord, container_record
from tests.testbed.trees import ContainerSpec, write_bundle

ID = "a" * 64
K8S = f"io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"


def _write(path: Path, config: object) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))


def test_containerd_names_a_container(tmp_path: Path) -> None:
    write_bundle(tmp_path, ContainerSpec(ID, "train"))
    assert container_record(tmp_path, tmp_path / "docker", ID) == ContainerRecord(
        "train", sandbox=False
    )


def test_containerd_marks_a_sandbox(tmp_path: Path) -> None:
    write_bundle(tmp_path, ContainerSpec(ID, sandbox=True))
    assert container_record(tmp_path, tmp_path / "docker", ID) == ContainerRecord(
        None, sandbox=True
    )


def test_the_containerd_of_k3s_is_asked_too(tmp_path: Path) -> None:
    annotations = {"io.kubernetes.cri.container-name": "infer"}
    _write(tmp_path / "k3s/containerd" / K8S, {"annotations": annotations})
    assert container_record(tmp_path, tmp_path / "docker", ID) == ContainerRecord(
        "infer", sandbox=False
    )


def test_crio_names_a_container(tmp_path: Path) -> None:
    annotations = {
        "io.kubernetes.container.name": "train",
        "io.kubernetes.cri-o.ContainerType": "container",
    }
    path = tmp_path / f"containers/storage/overlay-containers/{ID}/userdata/config.json"
    _write(path, {"annotations": annotations})
    assert container_record(tmp_path, tmp_path / "docker", ID) == ContainerRecord(
        "train", sandbox=False
    )


def test_crio_calls_a_sandbox_pod_and_it_is_not_taken_for_a_name(tmp_path: Path) -> None:
    annotations = {
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
    }
    path = tmp_path / f"containers/storage/overlay-containers/{ID}/userdata/config.json"
    _write(path, {"annotations": annotations})
    assert container_record(tmp_path, tmp_path / "docker", ID) == ContainerRecord(
        None, sandbox=True
    )


@pytest.mark.parametrize(
    ("labels", "record"),
    [
        (
            {
                "io.kubernetes.container.name": "train",
                "io.kubernetes.docker.type": "container",
            },
            ContainerRecord("train", sandbox=False),
        ),
        (
            {
                "io.kubernetes.container.name": "POD",
                "io.kubernetes.docker.type": "podsandbox",
            },
            ContainerRecord(None, sandbox=True),
        ),
        ({"maintainer": "somebody"}, None),
        (None, None),
    ],
)
def test_docker_keeps_what_cri_dockerd_says(
    tmp_path: Path, labels: object, record: ContainerRecord | None
) -> None:
    _write(tmp_path / "docker" / ID / "config.v2.json", {"Config": {"Labels": labels}})
    assert container_record(tmp_path, tmp_path / "docker", ID) == record


def test_the_labels_of_an_image_name_no_container_and_make_no_sandbox(tmp_path: Path) -> None:
    image = {
        "io.kubernetes.cri.container-name": "other",
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
    }
    own = {"io.kubernetes.container.name": "train", "io.kubernetes.docker.type": "container"}
    labels = {**image, **own}
    _write(tmp_path / "docker" / ID / "config.v2.json", {"Config": {"Labels": labels}})
    assert container_record(tmp_path, tmp_path / "docker", ID) == ContainerRecord(
        "train", sandbox=False
    )


@pytest.mark.parametrize("config", ["{", '{"Config": {"Labels": 7}}'])
def test_a_record_of_docker_that_is_none_is_named(tmp_path: Path, config: str) -> None:
    _write(tmp_path / "docker" / ID / "config.v2.json", config)
    with pytest.raises(FileError, match=r"config\.v2\.json: expected Docker's own record"):
        container_record(tmp_path, tmp_path / "docker", ID)


@pytest.mark.parametrize("config", ["[]", "{}", '{"Config": []}'])
def test_a_record_of_docker_without_labels_names_nobody(tmp_path: Path, config: str) -> None:
    _write(tmp_path / "docker" / ID / "config.v2.json", config)
    assert container_record(tmp_path, tmp_path / "docker", ID) is None


def test_without_a_record_nothing_is_known(tmp_path: Path) -> None:
    assert container_record(tmp_path, tmp_path / "docker", ID) is None


@pytest.mark.parametrize("config", [{}, [], {"annotations": {}}, {"annotations": None}])
def test_a_bundle_without_kubernetes_annotations_says_nothing(
    tmp_path: Path, config: object
) -> None:
    _write(tmp_path / "containerd" / K8S, config)
    assert container_record(tmp_path, tmp_path / "docker", ID) is None


@pytest.mark.parametrize("text", ["", '{"annotations": {"io.kub', '{"annotations": []}'])
def test_a_half_written_bundle_is_an_error_naming_it(tmp_path: Path, text: str) -> None:
    _write(tmp_path / "containerd" / K8S, text)
    with pytest.raises(FileError, match=ID):
        container_record(tmp_path, tmp_path / "docker", ID)


@pytest.mark.parametrize("name", ["", 3, None, {}, "a\nb", "\ud800", "a/b", "-", "a" * 64])
def test_what_kubernetes_calls_no_container_is_no_name(tmp_path: Path, name: object) -> None:
    annotations = {"io.kubernetes.cri.container-name": name}
    _write(tmp_path / "containerd" / K8S, {"annotations": annotations})
    assert container_record(tmp_path, tmp_path / "docker", ID) is None
