# SPDX-License-Identifier: Apache-2.0
"""Against runtimes that speak the real protocols; the virtual node has a real containerd."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import grpc
import pytest

from enforcer.imagestore import client, snapshots_pb2
from enforcer.imagestore.client import ImageStore, NoSuchImageError, StoreError
from tests.unit.enforcer.imagestore.runtime import (
    CHAIN,
    CONTAINERD,
    IMAGE,
    Runtime,
    containerd,
    serving,
)

SNAPSHOTS = f"{CONTAINERD}/snapshots"
CRIO = "/var/lib/containers/storage/overlay-images"


def overlay(*names: str) -> snapshots_pb2.Mount:
    lower = ":".join(f"{SNAPSHOTS}/{name}/fs" for name in names)
    return snapshots_pb2.Mount(
        type="overlay", source="overlay", options=["index=off", f"lowerdir={lower}"]
    )


def looked(host: Path, runtime: Runtime, name: str = "debian:12") -> list[str]:
    """The layers of an image, as text."""
    with serving(runtime, host / "run/containerd/containerd.sock"):
        store = ImageStore(host)
        with store.layers(store.find(name, 5), 5) as layers:
            assert not runtime.viewed or list(runtime.views.values()) == [("overlayfs", CHAIN)]
            return list(map(str, layers))


def test_containerd_is_asked_for_a_view_and_it_is_taken_back(short_path: Path) -> None:
    runtime = containerd(overlay("7", "3"))
    assert looked(short_path, runtime) == [f"{SNAPSHOTS}/7/fs", f"{SNAPSHOTS}/3/fs"]
    assert (runtime.viewed, runtime.views) == (1, {})


def test_a_view_is_taken_back_whatever_happens_in_between(short_path: Path) -> None:
    runtime = containerd(overlay("7", "3"))
    with serving(runtime, short_path / "run/containerd/containerd.sock"):
        store = ImageStore(short_path)
        image = store.find("debian:12", 5)
        with pytest.raises(KeyError), store.layers(image, 5):
            raise KeyError
    assert (runtime.viewed, runtime.views) == (1, {})


def test_one_layer_is_a_directory_by_itself(short_path: Path) -> None:
    mount = snapshots_pb2.Mount(type="bind", source=f"{SNAPSHOTS}/7/fs", options=["ro", "rbind"])
    assert looked(short_path, containerd(mount)) == [f"{SNAPSHOTS}/7/fs"]


def test_what_is_no_directory_is_told_and_the_view_taken_back(short_path: Path) -> None:
    runtime = containerd(snapshots_pb2.Mount(type="ext4", source="/dev/dm-7"))
    with pytest.raises(StoreError, match="expected an overlay of directories, found ext4"):
        looked(short_path, runtime)
    assert (runtime.viewed, runtime.views) == (1, {})
    with pytest.raises(StoreError, match="found 2 mounts"):
        looked(short_path, containerd(overlay("7", "3"), overlay("2", "1")))


def test_an_image_that_is_not_unpacked_is_told(short_path: Path) -> None:
    with pytest.raises(StoreError, match=f"a view of debian:12: not_found: snapshot {CHAIN}"):
        looked(short_path, containerd())


def test_an_image_that_is_not_there_is_told(short_path: Path) -> None:
    with pytest.raises(NoSuchImageError, match="there is no image alpine:3"):
        looked(short_path, containerd(overlay("7")), "alpine:3")


@pytest.mark.parametrize(
    ("store", "found"), [("/var/lib/docker", "/var/lib/docker"), ("", "none"), (CONTAINERD, "v1")]
)
def test_another_store_is_told(short_path: Path, store: str, found: str) -> None:
    with pytest.raises(StoreError, match=f"expected the store of containerd or CRI-O.*{found}"):
        looked(short_path, Runtime(store, {"info": "no json"}, []))


def write_storage(host: Path, lower: str | None, layer: str = "top") -> None:
    """What containers/storage keeps of an image."""
    index = host / CRIO.lstrip("/") / "images.json"
    index.parent.mkdir(parents=True)
    images = [{"id": "2" * 64, "layer": "other"}, {"id": "1" * 64, "layer": layer, "names": []}]
    index.write_text(json.dumps(images))
    top = index.parent.with_name("overlay") / "top"
    top.mkdir(parents=True)
    if lower is not None:
        (top / "lower").write_text(lower)


@pytest.mark.parametrize(
    ("lower", "below"),
    [("l/AB:l/CD", ["l/AB", "l/CD"]), (None, []), ("", [])],
)
def test_crio_s_layers_are_those_of_its_own_description(
    short_path: Path, lower: str | None, below: list[str]
) -> None:
    write_storage(short_path, lower)
    with serving(Runtime(CRIO, {}, []), short_path / "run/crio/crio.sock"):
        store = ImageStore(short_path)
        with store.layers(store.find("debian:12", 5), 5) as layers:
            overlay_dir = PurePosixPath(CRIO).with_name("overlay")
            assert layers == [overlay_dir / one for one in ("top/diff", *below)]


def test_a_name_in_crio_s_description_leads_nowhere_else(short_path: Path) -> None:
    write_storage(short_path, None, layer="../../../../root/top")
    assert looked(short_path, Runtime(CRIO, {}, [])) == [
        "/var/lib/containers/storage/overlay/top/diff"
    ]


@pytest.mark.parametrize("text", ["", "[", "{}", "[{}]", '[{"id": 1}]', "[" * 9999, None])
def test_a_description_of_another_form_is_told(short_path: Path, text: str | None) -> None:
    write_storage(short_path, None)
    index = short_path / CRIO.lstrip("/") / "images.json"
    if text is None:
        index.unlink()
    else:
        index.write_text(text)
    with pytest.raises(StoreError, match=r"images\.json: (expected|there is no image)"):
        looked(short_path, Runtime(CRIO, {}, []))


def test_a_node_without_a_runtime_is_told(short_path: Path) -> None:
    with pytest.raises(StoreError, match="no container runtime: expected one of run/containerd"):
        ImageStore(short_path).find("debian:12", 5)


def test_a_root_that_cannot_be_looked_at_is_told(short_path: Path) -> None:
    with pytest.raises(StoreError, match=r"containerd\.sock: File name too long"):
        ImageStore(short_path / ("x" * 300)).find("debian:12", 5)


def test_a_socket_that_cannot_be_looked_at_hides_no_other(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where it is not looked at it may be the one that has the image.
    monkeypatch.setattr(client, "_SOCKETS", ("x" * 300, "run/crio/crio.sock"))
    with serving(Runtime(CRIO, {}, []), short_path / "run/crio/crio.sock"):
        assert ImageStore(short_path).find("debian:12", 5).id == IMAGE
        with pytest.raises(StoreError, match=r"(?i)name too long; .*no image alpine:3") as caught:
            ImageStore(short_path).find("alpine:3", 5)
    assert not isinstance(caught.value, NoSuchImageError)


def test_a_name_that_is_two_images_is_none(short_path: Path) -> None:
    first, second = containerd(), Runtime(CRIO, {}, [], "sha256:" + "2" * 64)
    with (
        serving(first, short_path / "run/containerd/containerd.sock"),
        serving(second, short_path / "run/crio/crio.sock"),
    ):
        with pytest.raises(StoreError, match=r"debian:12 is not one image: .*11 at .*, .*22 at "):
            ImageStore(short_path).find("debian:12", 5)
        second.image = IMAGE
        assert ImageStore(short_path).find("debian:12", 5).socket.name == "containerd.sock"
        with pytest.raises(NoSuchImageError, match=r"no image alpine:3; .*no image alpine:3"):
            ImageStore(short_path).find("alpine:3", 5)


def test_a_runtime_that_hangs_leaves_another_its_time(short_path: Path) -> None:
    hanging = containerd()
    hanging.ImageStatus = lambda *_: time.sleep(5)  # type: ignore[method-assign,assignment]
    with (
        serving(hanging, short_path / "run/containerd/containerd.sock"),
        serving(Runtime(CRIO, {}, []), short_path / "run/crio/crio.sock"),
    ):
        assert ImageStore(short_path).find("debian:12", 3).socket.name == "crio.sock"
        with pytest.raises(StoreError, match="deadline_exceeded") as caught:
            ImageStore(short_path).find("alpine:3", 2)
    assert not isinstance(caught.value, NoSuchImageError)


@pytest.mark.parametrize(
    ("info", "error"),
    [
        (json.dumps({"chainID": CHAIN, "imageSpec": "x" * (2 << 20)}), "resource_exhausted"),
        (json.dumps({"imageSpec": {"chainID": CHAIN}}), "expected the store"),
        (json.dumps({"chainID": "sha256:../../x"}), "expected the store"),
    ],
)
def test_no_more_is_read_of_an_images_description_than_its_beginning(
    short_path: Path, info: str, error: str
) -> None:
    with pytest.raises(StoreError, match=error):
        looked(short_path, Runtime(CONTAINERD, {"info": info}, []))


def test_what_follows_the_chain_in_a_description_is_not_parsed(short_path: Path) -> None:
    info = f'{{"chainID":"{CHAIN}","imageSpec":{"[" * 9999}'
    assert looked(short_path, Runtime(CONTAINERD, {"info": info}, [overlay("7")]))


def test_a_runtime_without_kubernetes_is_passed_over(short_path: Path) -> None:
    socket = short_path / "run/containerd/containerd.sock"
    socket.parent.mkdir(parents=True)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        with pytest.raises(StoreError, match="unimplemented"):
            ImageStore(short_path).find("debian:12", 5)
        with serving(containerd(), short_path / "run/k3s/containerd/containerd.sock"):
            assert ImageStore(short_path).find("debian:12", 5).id == IMAGE
            with pytest.raises(NoSuchImageError, match="no image alpine:3"):
                ImageStore(short_path).find("alpine:3", 5)
    finally:
        server.stop(grace=None).wait()


def test_a_runtime_that_does_not_answer_costs_no_more_than_its_time(short_path: Path) -> None:
    socket = short_path / "run/containerd/containerd.sock"
    runtime = containerd()
    runtime.ImageStatus = lambda *_: time.sleep(5)  # type: ignore[method-assign,assignment]
    started = time.monotonic()
    with serving(runtime, socket), pytest.raises(StoreError, match="deadline_exceeded"):
        ImageStore(short_path).find("debian:12", 0.5)
    assert time.monotonic() - started < 4
