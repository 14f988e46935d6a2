# SPDX-License-Identifier: Apache-2.0
"""Slices of pods that are gone are taken back: when kubelet let go of them, not when a phase says.

An evicted pod is ``Failed`` while its processes still run, so an end is believed of the API server
only when the pod's object is gone, or when kubelet's record agrees.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deviceplugin.apiserver import ApiServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.checkpoint import Checkpoint
    from deviceplugin.pod import Pod
    from deviceplugin.pods import PodCache
    from enforcer.model import Slice

PodDevices = dict[tuple[str, str], frozenset[str]]

_EVERY_SECONDS = 5.0
_YOUNG_SECONDS = 5.0
"""A slice this young may be ahead of kubelet's own record."""
_CALL_SECONDS = 5.0

_log = logging.getLogger(__name__)


def gone_pods(
    slices: Sequence[Slice],
    pods: Mapping[str, Pod],
    held: PodDevices | None,
    now: datetime,
) -> list[tuple[str, str, str]]:
    """(uid, namespace, name) of the pods whose slices nobody holds any more. Pure.

    ``pods`` is by UID, as the API server has them; ``held`` is kubelet's record, None if it cannot
    be read.
    """
    gone = []
    for uid in dict.fromkeys(item.pod_uid for item in slices):
        own = [item for item in slices if item.pod_uid == uid]
        first = own[0]
        device_ids = {device_id for item in own for device_id in item.device_ids}
        if any((now - _time(item.created)).total_seconds() < _YOUNG_SECONDS for item in own):
            continue
        if held is not None and device_ids & _held(first, slices, held):
            continue
        pod = pods.get(uid)
        if pod is None or (pod.ended and held is not None):
            gone.append((uid, first.namespace, first.pod))
    return gone


def _held(item: Slice, slices: Sequence[Slice], held: PodDevices) -> frozenset[str]:
    """What kubelet's record holds for a pod; it knows names, so not what a later namesake got."""
    uids = list(dict.fromkeys(one.pod_uid for one in slices))
    later = uids[uids.index(item.pod_uid) + 1 :]
    return held.get((item.namespace, item.pod), frozenset()) - {
        device_id
        for one in slices
        if one.pod_uid in later and (one.namespace, one.pod) == (item.namespace, item.pod)
        for device_id in one.device_ids
    }


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Reaper:
    """One thread that takes slices back."""

    def __init__(
        self,
        api: ApiServer,
        cache: PodCache,
        checkpoint: Checkpoint,
        held: Callable[[], PodDevices | None],
    ) -> None:
        self._api = api
        self._cache = cache
        self._checkpoint = checkpoint
        self._held = held
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reap", daemon=True)

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the slices stay."""
        self._stopping.set()
        self._cache.wake()
        self._thread.join(timeout=10)

    def reap(self) -> None:
        """Look once. Raises ApiServerError or OSError, and then takes nothing back."""
        slices = self._checkpoint.slices
        if not slices or not self._cache.synced:
            return
        pods = {pod.uid: pod for pod in self._cache.pods()}
        if not gone_pods(slices, pods, None, datetime.now(UTC)) and not any(
            item.pod_uid in pods and pods[item.pod_uid].ended for item in slices
        ):
            return
        for uid, namespace, name in gone_pods(slices, pods, self._held(), datetime.now(UTC)):
            # The cache may be behind; a slice too many costs less than one too few.
            answer = self._api.get_pod(namespace, name, _CALL_SECONDS)
            if answer is not None:
                pod = self._cache.absorb_pod(answer)
                if pod.uid == uid and not pod.ended:
                    continue
            for item in self._checkpoint.remove_pod(uid):
                _log.info(
                    "pod %s/%s, container %s: slice of %s taken back",
                    item.namespace,
                    item.pod,
                    item.container,
                    ", ".join(share.bdf for share in item.shares),
                )

    def _run(self) -> None:
        looked = float("-inf")
        while not self._stopping.is_set():
            seen = self._cache.version
            if time.monotonic() - looked >= 1:
                looked = time.monotonic()
                try:
                    self.reap()
                except (ApiServerError, OSError) as error:
                    _log.warning("slices of pods that are gone stay for now: %s", error)
            self._cache.wait_change(seen, _EVERY_SECONDS)
            self._stopping.wait(1)
