# SPDX-License-Identifier: Apache-2.0
"""Whose node lock is released, against an API server."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from deviceplugin import release
from deviceplugin.apiserver import ApiServer as Server
from deviceplugin.apiserver import connect
from deviceplugin.checkpoint import Checkpoint
from deviceplugin.pods import PodCache
from deviceplugin.release import Release
from tests.contract.conftest import LOCK, NODE, eventually
from tests.contract.peers import hami
from tests.contract.peers.apiserver import ApiServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUE = "2026-01-02T03:04:05Z,default,web-0"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as one:
        one.put_node(NODE, {LOCK: VALUE})
        yield one


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that names no pod of this node is looked into at the second look."""
    monkeypatch.setattr(release, "_STRAY_SECONDS", 0.0)


@pytest.fixture
def server(api: ApiServer, tmp_path: Path) -> Server:
    return connect(NODE, api.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def cache(server: Server) -> Iterator[PodCache]:
    cache = PodCache(server)
    cache.start()
    assert cache.wait_synced(5)
    yield cache
    cache.stop()


@pytest.fixture
def release_thread(server: Server, cache: PodCache, tmp_path: Path) -> Release:
    return Release(server, cache, Checkpoint(tmp_path / "slices.json"), tuple)


def put(api: ApiServer, node: str) -> None:
    pod = hami.pod("web-0", hami.container("app", 1))
    if node:
        pod["spec"]["nodeName"] = node
    api.put_pod(pod)


def work(one: Release) -> float:
    one.work()
    return one.work()


@pytest.mark.usefixtures("due")
@pytest.mark.parametrize(
    ("node", "released"), [("elsewhere", True), ("", False), (NODE, False), (None, False)]
)
def test_a_lock_is_released_whose_pod_is_on_another_node(
    api: ApiServer, release_thread: Release, node: str | None, released: bool
) -> None:
    api.faults.silent = True
    if node is not None:
        put(api, node)
    work(release_thread)
    assert (LOCK not in api.node_annotations(NODE)) is released


@pytest.mark.usefixtures("due")
def test_a_lock_that_was_taken_anew_meanwhile_stays(
    api: ApiServer, release_thread: Release
) -> None:
    put(api, "elsewhere")
    api.faults.silent = True
    release_thread.work()
    other = VALUE.replace("03:04:05", "03:04:06")
    api.store.patch("nodes", ("", NODE), {"metadata": {"annotations": {LOCK: other}}})
    release_thread.work()
    assert api.node_annotations(NODE)[LOCK] == other


@pytest.mark.usefixtures("due")
def test_a_conflict_or_an_outage_leaves_it_for_the_next_look(
    api: ApiServer, release_thread: Release, caplog: pytest.LogCaptureFixture
) -> None:
    put(api, "elsewhere")
    api.faults.conflicts = 1
    work(release_thread)
    assert LOCK in api.node_annotations(NODE)
    api.faults.away = True
    work(release_thread)
    work(release_thread)
    assert caplog.text.count("the node lock: GET") == 1
    api.faults.away = False
    work(release_thread)
    assert LOCK not in api.node_annotations(NODE)


def test_it_is_looked_into_after_a_while_and_then_ever_more_seldom(
    api: ApiServer, release_thread: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(api, "")
    asked = len(api.store.requests)
    assert 9 < work(release_thread) <= 10
    assert len(api.store.requests) == asked
    began = now = time.monotonic()
    monkeypatch.setattr("deviceplugin.release.time", SimpleNamespace(monotonic=lambda: now))
    looks = []
    while now < began + 24 * 3600:
        now += 5
        seen = len(api.store.requests)
        release_thread.work()
        if any("/pods/web-0" in one for one in api.store.requests[seen:]):
            looks.append(now - began)
    assert looks[:4] == [10, 30, 70, 150]
    assert len(looks) < 15


def test_a_pod_that_nobody_answers_for_is_waited_for_and_then_keeps_no_lock(
    api: ApiServer, cache: PodCache, release_thread: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_RETRY_SECONDS", (0.01, 0.1))
    api.store.patch("nodes", ("", NODE), {"metadata": {"annotations": {LOCK: None}}})
    hami.bind(api, hami.pod("web-1", hami.container("app", 1)), NODE, "A,T,4096,76:;")
    api.faults.hung_pod = "web-1"
    eventually(lambda: [pod.name for pod in cache.pods()] == ["web-1"])
    release_thread.fail(cache.pods()[0])
    release_thread.work()
    assert LOCK in api.node_annotations(NODE)

    def unlocked() -> bool:
        release_thread.work()
        return LOCK not in api.node_annotations(NODE)

    eventually(unlocked, timeout=20)
