# SPDX-License-Identifier: Apache-2.0
"""The pods of this node and the node itself, as the API server last told: a watch cache."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from deviceplugin.apiserver import GONE, ApiServerError
from deviceplugin.pod import MALFORMED, Node, Pod, parse_node, parse_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.pod import Json

_LIST_SECONDS = 10.0
_RETRY_SECONDS = (0.5, 15.0)
"""Shortest and longest pause before the API server is asked again."""
_REMEMBERED = 1000
"""UIDs of deleted pods."""
_NUMBER = re.compile(r"[0-9]{1,20}")

_log = logging.getLogger(__name__)


class PodCache:
    """Pods and node, kept by two threads; every method may be called from any thread."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._changed = threading.Condition()
        self._pods: dict[tuple[str, str], Pod] = {}
        self._deleted: dict[str, None] = {}
        self._node: Node | None = None
        self._version = 0
        self._nonsense = ""
        self._watches = (
            _Watch("watch-pods", api.list_pods, api.watch_pods, self._list_pods, self._pod_event),
            _Watch(
                "watch-node", api.list_nodes, api.watch_nodes, self._list_nodes, self._node_event
            ),
        )

    def start(self) -> None:
        """Start listing and watching."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Stop both threads."""
        for watch in self._watches:
            watch.stop()
        for watch in self._watches:
            watch.join()

    @property
    def synced(self) -> bool:
        """True once both have been listed."""
        return all(watch.listed.is_set() for watch in self._watches)

    def wait_synced(self, timeout: float) -> bool:
        """Wait until both have been listed; False if that took longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        return all(
            watch.listed.wait(max(0.0, deadline - time.monotonic())) for watch in self._watches
        )

    def pods(self) -> tuple[Pod, ...]:
        """The pods bound to this node."""
        with self._changed:
            return tuple(self._pods.values())

    def image(self, pod_uid: str, container: str) -> str:
        """The image of a container that asks for GPUs; "" where it is not known."""
        for pod in self.pods():
            for claim in pod.claims if pod.uid == pod_uid else ():
                if claim.container == container:
                    return claim.image
        return ""

    def node(self) -> Node | None:
        """This node; None before it was listed."""
        with self._changed:
            return self._node

    @property
    def version(self) -> int:
        """Grows with every change."""
        with self._changed:
            return self._version

    def wait_change(self, seen: int, timeout: float) -> int:
        """Wait for a version above ``seen``, at most ``timeout`` seconds; the version then."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > seen, timeout)
            return self._version

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._touch()

    def refresh(self, timeout: float) -> None:
        """Read node and pods now, within ``timeout`` seconds. Raises ApiServerError."""
        deadline = time.monotonic() + timeout
        self.absorb_node(self._api.get_node(timeout))
        left = max(0.05, deadline - time.monotonic())
        self._list_pods(self._api.list_pods(left))

    def absorb_pod(self, pod: Json) -> Pod:
        """Take in a pod read or patched elsewhere, unless the cache knows better.

        One that is not bound to this node only tells that its namesake here is gone.
        """
        parsed = self._parse(pod)
        with self._changed:
            if self._take(parsed):
                self._touch()
        return parsed

    def absorb_node(self, node: Json) -> Node:
        """Take in the node read or patched elsewhere, unless the cache knows a newer one."""
        try:
            parsed = parse_node(node)
        except MALFORMED as error:
            raise ApiServerError("node", f"expected a node object, found {error!r}") from error
        with self._changed:
            if _newer(parsed, self._node):
                self._node = parsed
                self._touch()
        return parsed

    def _parse(self, pod: Json) -> Pod:
        try:
            return parse_pod(pod)
        except MALFORMED as error:
            raise ApiServerError("pod", f"expected a pod object, found {error!r}") from error

    def _parse_or_skip(self, item: Json) -> Pod | None:
        """None for one that makes no sense, which must not keep the others from being known."""
        try:
            return self._parse(item)
        except ApiServerError as error:
            if str(error) != self._nonsense:
                self._nonsense = str(error)
                _log.warning("%s; it is left out", error)
            return None

    def _touch(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _take(self, pod: Pod) -> bool:
        key = pod.namespace, pod.name
        known = self._pods.get(key)
        if pod.uid in self._deleted or not _newer(pod, known):
            return False
        if known is not None and known.uid != pod.uid:
            self._drop(known)
        if pod.node != self._api.node:
            # A later namesake elsewhere, whose end no watch of this node tells.
            return known is not None
        self._pods[key] = pod
        return True

    def _drop(self, pod: Pod) -> None:
        del self._pods[pod.namespace, pod.name]
        # An answer that is older than its deletion may still be on its way here.
        self._deleted[pod.uid] = None
        while len(self._deleted) > _REMEMBERED:
            del self._deleted[next(iter(self._deleted))]

    def _list_pods(self, answer: Json) -> None:
        version = _version(answer)
        parsed = [self._parse_or_skip(item) for item in answer.get("items") or []]
        listed = [pod for pod in parsed if pod is not None]
        uids = {pod.uid for pod in listed}
        with self._changed:
            # A watch may have told more than this list knows: newer pods stay.
            gone = [
                pod
                for pod in self._pods.values()
                if pod.uid not in uids and not _later(pod.resource_version, version)
            ]
            for pod in gone:
                self._drop(pod)
            taken = [self._take(pod) for pod in listed]
            if gone or any(taken):
                self._touch()

    def _list_nodes(self, answer: Json) -> None:
        for item in answer.get("items") or []:
            self.absorb_node(item)

    def _pod_event(self, kind: str, item: Json) -> None:
        pod = self._parse_or_skip(item)
        if pod is None:
            return
        with self._changed:
            known = self._pods.get((pod.namespace, pod.name))
            if kind == "DELETED":
                if known is not None and known.uid == pod.uid:
                    self._drop(known)
                    self._touch()
                return
            if kind == "ADDED":
                self._deleted.pop(pod.uid, None)
            if self._take(pod):
                self._touch()

    def _node_event(self, kind: str, item: Json) -> None:
        if kind != "DELETED":
            self.absorb_node(item)


def _newer(one: Pod | Node, known: Pod | Node | None) -> bool:
    return known is None or _later(one.resource_version, known.resource_version)


def _later(one: str, other: str) -> bool:
    """True if a resource version is later than another; of those that are no numbers, any is."""
    if all(map(_NUMBER.fullmatch, (one, other))):
        return int(one) > int(other)
    return one != other


def _version(item: Json) -> str:
    try:
        return str(item["metadata"]["resourceVersion"])
    except MALFORMED as error:
        raise ApiServerError("answer", f"expected a resource version, found {error!r}") from error


class _Watch:
    """One thread that lists once, then watches, and lists again when the server forgot."""

    def __init__(
        self,
        name: str,
        list_all: Callable[[float], Json],
        watch: Callable[[str, Callable[[Any], None]], Iterator[Json]],
        on_list: Callable[[Json], None],
        on_event: Callable[[str, Json], None],
    ) -> None:
        self._list = list_all
        self._watch = watch
        self._on_list = on_list
        self._on_event = on_event
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._response: Any = None
        self.listed = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        response = self._response
        if response is not None:
            try:
                response.shutdown()
            except (OSError, RuntimeError, ValueError):
                # It ended by itself in between.
                return

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        version: str | None = None
        pause = _RETRY_SECONDS[0]
        trouble = ""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if version is None:
                    answer = self._list(_LIST_SECONDS)
                    self._on_list(answer)
                    version = _version(answer)
                    self.listed.set()
                if trouble:
                    _log.info("%s: the API server answers again", self._thread.name)
                    trouble = ""
                version = self._follow(version)
                pause = _RETRY_SECONDS[0]
                if time.monotonic() - began > 1:
                    continue
            except ApiServerError as error:
                if error.status == GONE:
                    version = None
                    self._stopping.wait(0.1)
                    continue
                if str(error) != trouble and not self._stopping.is_set():
                    trouble = str(error)
                    _log.warning("%s: %s; asking again", self._thread.name, trouble)
                pause = min(pause * 2, _RETRY_SECONDS[1])
            self._stopping.wait(pause)

    def _follow(self, version: str) -> str:
        for event in self._watch(version, self._opened):
            if self._stopping.is_set():
                break
            kind, item = str(event.get("type")), event.get("object") or {}
            if kind == "ERROR":
                raise ApiServerError(
                    self._thread.name, str(item.get("message")), item.get("code") or 0
                )
            if kind != "BOOKMARK":
                self._on_event(kind, item)
            version = _version(item)
        self._response = None
        return version

    def _opened(self, response: Any) -> None:
        self._response = response
        if self._stopping.is_set():
            response.close()
