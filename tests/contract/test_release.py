# SPDX-License-Identifier: Apache-2.0
"""Whose node lock is released, against an API server."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from deviceplugin import release
from deviceplugin.apiserver import connect
from deviceplugin.checkpoint import Checkpoint
from deviceplugin.pods import PodCache
from deviceplugin.release import Release
from tests.contract.conftest import LOCK, NODE
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
    monkeypatch.setattr(release, "_STRAY_SECONDS", (0.0, 0.0))


@pytest.fixture
def release_thread(api: ApiServer, tmp_path: Path) -> Iterator[Release]:
    server = connect(NODE, api.kubeconfig(tmp_path / "kubeconfig"))
    cache = PodCache(server)
    cache.start()
    assert cache.wait_synced(5)
    yield Release(server, cache, Checkpoint(tmp_path / "slices.json"), tuple)
    cache.stop()


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


def test_it_is_looked_into_after_a_while_and_then_now_and_then(
    api: ApiServer, release_thread: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(api, "")
    asked = len(api.store.requests)
    assert 9 < work(release_thread) <= 10
    assert len(api.store.requests) == asked
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 11)
    monkeypatch.setattr("deviceplugin.release.time", later)
    assert 14 < work(release_thread) <= 15
    assert [one for one in api.store.requests[asked:] if "watch" not in one] == [
        f"GET /api/v1/nodes/{NODE}",
        "GET /api/v1/namespaces/default/pods/web-0",
    ]
