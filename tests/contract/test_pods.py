# SPDX-License-Identifier: Apache-2.0
"""The watch cache: what is newer wins, and what is deleted stays deleted."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import pytest

from deviceplugin.apiserver import ApiServerError, connect
from deviceplugin.pods import PodCache
from tests.contract.conftest import NODE, eventually
from tests.contract.peers import hami
from tests.contract.peers.apiserver import ApiServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as one:
        one.put_node(NODE)
        yield one


@pytest.fixture
def cache(api: ApiServer, tmp_path: Path) -> Iterator[PodCache]:
    one = PodCache(connect(NODE, api.kubeconfig(tmp_path / "kubeconfig")))
    yield one
    one.stop()


def put(api: ApiServer, name: str, uid: str | None = None) -> hami.Json:
    pod = hami.pod(name, hami.container("app", 1), uid=uid)
    pod["spec"]["nodeName"] = NODE
    return api.put_pod(pod)


def names(cache: PodCache) -> list[str]:
    return sorted(pod.name for pod in cache.pods())


def test_pods_come_and_go(api: ApiServer, cache: PodCache) -> None:
    put(api, "before")
    cache.start()
    assert cache.wait_synced(5)
    assert names(cache) == ["before"]
    put(api, "after")
    eventually(lambda: names(cache) == ["after", "before"])
    api.store.delete("pods", ("default", "before"))
    eventually(lambda: names(cache) == ["after"])


def test_a_pod_that_makes_no_sense_costs_only_itself(
    api: ApiServer, cache: PodCache, caplog: pytest.LogCaptureFixture
) -> None:
    odd: hami.Json = {"metadata": {"namespace": "default", "name": "odd"}}
    odd["spec"] = {"nodeName": NODE, "containers": "none"}
    api.put_pod(odd)
    put(api, "before")
    cache.start()
    assert cache.wait_synced(5)
    assert names(cache) == ["before"]
    odd["metadata"]["labels"] = {"another": "version"}
    api.put_pod(odd)
    put(api, "after")
    eventually(lambda: names(cache) == ["after", "before"])
    cache.refresh(5)
    assert caplog.text.count("it is left out") == 1


def test_pods_of_other_nodes_are_not_seen(api: ApiServer, cache: PodCache) -> None:
    api.put_pod(hami.pod("elsewhere", hami.container("app", 1)))
    cache.start()
    assert cache.wait_synced(5)
    assert names(cache) == []


def test_an_answer_older_than_the_deletion_does_not_bring_a_pod_back(
    api: ApiServer, cache: PodCache
) -> None:
    cache.start()
    assert cache.wait_synced(5)
    old = put(api, "pod")
    eventually(lambda: names(cache) == ["pod"])
    api.store.delete("pods", ("default", "pod"))
    eventually(lambda: names(cache) == [])
    cache.absorb_pod(old)
    assert names(cache) == []


def test_an_answer_older_than_its_namesake_does_not_replace_it(
    api: ApiServer, cache: PodCache
) -> None:
    old = put(api, "pod")
    api.store.delete("pods", ("default", "pod"))
    new = put(api, "pod")
    cache.absorb_pod(old)
    cache.absorb_pod(new)
    cache.absorb_pod(old)
    assert [pod.uid for pod in cache.pods()] == [new["metadata"]["uid"]]


def test_a_namesake_on_another_node_is_not_taken_in(api: ApiServer, cache: PodCache) -> None:
    cache.start()
    assert cache.wait_synced(5)
    put(api, "pod")
    eventually(lambda: names(cache) == ["pod"])
    api.faults.silent = True
    time.sleep(0.3)
    api.store.delete("pods", ("default", "pod"))
    elsewhere = hami.pod("pod", hami.container("app", 1))
    elsewhere["spec"]["nodeName"] = "elsewhere"
    cache.absorb_pod(api.put_pod(elsewhere))
    assert names(cache) == []


def test_a_list_drops_what_it_should_know_and_keeps_what_is_newer(
    api: ApiServer, cache: PodCache
) -> None:
    deleted = put(api, "deleted")
    api.store.delete("pods", ("default", "deleted"))
    cache.absorb_pod(deleted)
    newer = copy.deepcopy(deleted)
    newer["metadata"] |= {"name": "newer", "uid": "2", "resourceVersion": "99999"}
    cache.absorb_pod(newer)
    cache.refresh(2)
    assert names(cache) == ["newer"]
    cache.absorb_pod(deleted)
    assert names(cache) == ["newer"]


def test_a_pod_that_comes_back_with_its_uid_is_seen(api: ApiServer, cache: PodCache) -> None:
    cache.start()
    assert cache.wait_synced(5)
    for _ in range(2):
        put(api, "pod", uid="same")
        eventually(lambda: names(cache) == ["pod"])
        api.store.delete("pods", ("default", "pod"))
        eventually(lambda: names(cache) == [])


def test_a_refresh_keeps_its_deadline(api: ApiServer, cache: PodCache) -> None:
    api.faults.slow = 5
    started = time.monotonic()
    with pytest.raises(ApiServerError, match="no answer"):
        cache.refresh(0.3)
    assert time.monotonic() - started < 3


def test_stopping_does_not_wait_for_the_watches(api: ApiServer, cache: PodCache) -> None:
    cache.start()
    assert cache.wait_synced(5)
    started = time.monotonic()
    cache.stop()
    assert time.monotonic() - started < 10


def test_the_kubeconfigs_token_is_sent(api: ApiServer, tmp_path: Path) -> None:
    api.faults.token = "secret"  # noqa: S105
    with pytest.raises(ApiServerError, match="refused with 401: Unauthorized"):
        connect(NODE, api.kubeconfig(tmp_path / "none")).get_node(2)
    server = connect(NODE, api.kubeconfig(tmp_path / "some", "secret"))
    assert server.get_node(2)["metadata"]["name"] == NODE


def test_another_status_names_request_and_reason(api: ApiServer, tmp_path: Path) -> None:
    server = connect("no-such-node", api.kubeconfig(tmp_path / "kubeconfig"))
    with pytest.raises(
        ApiServerError, match=r"GET /nodes/no-such-node: refused with 404: .*not found"
    ):
        server.get_node(2)
    assert server.get_pod("default", "nobody", 2) is None


@pytest.mark.parametrize("pod", [{}, {"metadata": {}}, {"metadata": None}, {"metadata": []}])
def test_what_is_no_pod_is_refused(cache: PodCache, pod: hami.Json) -> None:
    with pytest.raises(ApiServerError, match="expected a pod object"):
        cache.absorb_pod(pod)
    with pytest.raises(ApiServerError, match="expected a node object"):
        cache.absorb_node(pod)
