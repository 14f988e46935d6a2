# SPDX-License-Identifier: Apache-2.0
"""Server and client over a real socket."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from enforcer.api import enforcer_pb2 as pb
from enforcer.api.client import Client, EnforcerError
from enforcer.api.enforcer_pb2_grpc import EnforcerStub
from enforcer.api.errors import NotFoundError, UntoldError
from enforcer.api.server import Server
from enforcer.model import (
    DeviceTest,
    HostSupport,
    ImageLibc,
    Layer,
    LayerState,
    Protection,
    Snapshot,
)

SNAPSHOT = Snapshot(
    1.0, HostSupport(LayerState(Layer.GATE), LayerState(Layer.DMEM, "no"), "bo"), (), ()
)
MUSL = ImageLibc("musl", "", tool_loads=False, auditor_loads=False, notes=("only a kernel layer",))
HELD = [(Protection("kubepods/poda", "0000:03:00.0", (LayerState(Layer.GATE),)), False)]


class Node:
    """A daemon that answers at once with what it was made with."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = SNAPSHOT
        self.answer: Callable[[], list[tuple[Protection, bool]]] = lambda: HELD
        self.asked: list[tuple[str, str, float]] = []

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        self.asked.append((pod_uid, container, wait))
        return self.answer()

    def snapshot(self) -> Snapshot | None:
        return self.latest

    def test_devices(self, bdfs: Sequence[str], wait: float) -> list[DeviceTest]:
        if "0000:99:00.0" in bdfs:
            raise NotFoundError("no GPU 0000:99:00.0 on this node")
        if "0000:98:00.0" in bdfs:
            raise UntoldError("no process for it")
        return [DeviceTest("/dev/kfd"), DeviceTest("/dev/dri/renderD128", f"in {wait:.0f} s")]

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        if image.startswith("unread"):
            raise UntoldError(f"{image}: a file that is too large")
        if image:
            return replace(MUSL, notes=(image,))
        if container != "train":
            raise NotFoundError(f"no container {container!r} of pod {pod_uid} is there")
        return MUSL


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "run" / "enforcer.sock"


@pytest.fixture
def node(path: Path) -> Iterator[Node]:
    node = Node()
    server = Server(node, path)
    server.start()
    yield node
    server.stop()


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    with Client(path) as client:
        yield client


def test_a_prepared_slice_comes_back_with_its_layers(node: Node, client: Client) -> None:
    assert client.prepare("uid", "train", timeout=5) == HELD
    ((uid, container, wait),) = node.asked
    assert (uid, container) == ("uid", "train")
    assert 0 < wait < 5


def test_support_and_snapshot_are_the_last_passs(node: Node, client: Client) -> None:
    assert client.host_support(5) == SNAPSHOT.support
    assert client.snapshot(5) == SNAPSHOT
    assert node.asked == []


@pytest.mark.usefixtures("node")
def test_devices_are_tested_within_the_callers_deadline(client: Client) -> None:
    kfd, render = client.test_devices(timeout=5)
    assert (kfd.path, kfd.usable) == ("/dev/kfd", True)
    assert (render.usable, render.error) == (False, "in 5 s")
    with pytest.raises(EnforcerError, match="no GPU 0000:99:00") as caught:
        client.test_devices(["0000:99:00.0"], timeout=5)
    assert caught.value.not_found


@pytest.mark.usefixtures("node")
def test_an_images_libc_is_told_of_a_container_that_is_there(client: Client) -> None:
    assert client.image_libc("uid", "train", timeout=5) == MUSL
    with pytest.raises(EnforcerError, match="no container 'infer' of pod uid") as caught:
        client.image_libc("uid", "infer", timeout=5)
    assert caught.value.not_found


@pytest.mark.usefixtures("node")
def test_an_images_libc_is_told_by_its_name_in_the_pod(client: Client) -> None:
    found = client.image_libc("uid", "infer", "alpine:3", timeout=5)
    assert found == replace(MUSL, notes=("alpine:3",))


@pytest.mark.usefixtures("node")
def test_what_could_not_be_looked_at_is_not_called_missing(client: Client) -> None:
    with pytest.raises(EnforcerError, match="failed_precondition: no process for it") as tested:
        client.test_devices(["0000:98:00.0"], timeout=5)
    with pytest.raises(EnforcerError, match="failed_precondition: unread: a file") as looked:
        client.image_libc("uid", "train", "unread", timeout=5)
    assert not tested.value.not_found
    assert not looked.value.not_found


def test_what_does_not_exist_is_told_apart(node: Node, client: Client) -> None:
    def missing() -> list[tuple[Protection, bool]]:
        raise NotFoundError("no slice for container 'train' of pod uid")

    node.answer = missing
    with pytest.raises(EnforcerError, match="no slice for container 'train'") as caught:
        client.prepare("uid", "train", 5)
    assert caught.value.not_found


def test_a_reason_that_is_no_utf_8_is_told_all_the_same(node: Node, client: Client) -> None:
    def absent() -> list[tuple[Protection, bool]]:
        raise NotFoundError("no slice in " + os.fsdecode(b"a\n\xff"))

    node.answer = absent
    with pytest.raises(EnforcerError, match=r"no slice in a\?\?"):
        client.prepare("uid", "train", timeout=5)
    with pytest.raises(EnforcerError, match=r"unread\?: a file"):
        client.image_libc("uid", "train", timeout=5, image="unread\x1b")
    assert client.image_libc("uid", "train", timeout=5, image="a\x1b[2J").notes == ("a?[2J",)


def test_a_loop_that_stands_is_an_error_not_an_answer(node: Node, client: Client) -> None:
    def stuck() -> list[tuple[Protection, bool]]:
        raise TimeoutError("the loop did not come round")

    node.answer = stuck
    with pytest.raises(EnforcerError, match="did not come round") as caught:
        client.prepare("uid", "train", 5)
    assert not caught.value.not_found


def test_before_the_first_pass_there_is_no_snapshot(node: Node, client: Client) -> None:
    node.latest = None
    for ask in (client.snapshot, client.host_support):
        with pytest.raises(EnforcerError, match="first pass"):
            ask(5)


@pytest.mark.parametrize(("uid", "container"), [("", "train"), ("uid", "")])
def test_an_incomplete_request_is_refused(
    node: Node, client: Client, uid: str, container: str
) -> None:
    with pytest.raises(EnforcerError, match="expected pod_uid and container"):
        client.prepare(uid, container, 5)
    assert node.asked == []


@pytest.mark.usefixtures("node")
def test_the_socket_is_roots(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o660
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert [entry.name for entry in path.parent.iterdir()] == ["enforcer.sock"]


def test_without_an_enforcer_the_client_fails_within_its_deadline(client: Client) -> None:
    start = time.monotonic()
    with pytest.raises(EnforcerError, match="is `ringfence enforcer` running"):
        client.snapshot(2)
    assert time.monotonic() - start < 3


def test_an_answer_that_does_not_come_ends_at_the_deadline(node: Node, client: Client) -> None:
    def slow() -> list[tuple[Protection, bool]]:
        time.sleep(1)
        return HELD

    node.answer = slow
    with pytest.raises(EnforcerError, match="deadline_exceeded"):
        client.prepare("uid", "train", 0.2)


def test_the_socket_of_a_dead_predecessor_is_replaced(path: Path, client: Client) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = Server(Node(), path)
    server.start()
    try:
        assert client.snapshot(5) == SNAPSHOT
    finally:
        server.stop()
    assert not path.exists()


def test_a_client_finds_a_restarted_enforcer_again(path: Path, client: Client) -> None:
    for _ in range(3):
        server = Server(Node(), path)
        server.start()
        try:
            deadline = time.monotonic() + 5
            while True:
                try:
                    assert client.snapshot(2) == SNAPSHOT
                    break
                except EnforcerError:
                    assert time.monotonic() < deadline
        finally:
            server.stop()


def test_a_place_for_the_socket_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(OSError, match="run"):
        Server(Node(), tmp_path / "run" / "enforcer.sock").start()


def test_a_path_too_long_for_a_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        Server(Node(), tmp_path / ("x" * 120)).start()


def test_a_call_without_a_deadline_is_bounded_by_the_server(node: Node, path: Path) -> None:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        EnforcerStub(channel).Prepare(pb.PrepareRequest(pod_uid="u", container="c"))
    assert node.asked == [("u", "c", 10.0)]
