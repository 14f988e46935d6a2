# SPDX-License-Identifier: Apache-2.0
"""The checkpoint follows what runs: lost slices are found, those of pods that are gone taken back.

They are taken back when kubelet let go of them, not when a phase says so: an evicted pod is
``Failed`` while its processes still run. So an end is believed of the API server only when the
pod's object is gone, or when kubelet's record agrees.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deviceplugin.apiserver import ApiServerError
from deviceplugin.follower import Follower
from deviceplugin.recover import lost_slices, unlisted, whole_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.checkpoint import Checkpoint
    from deviceplugin.devices import Device
    from deviceplugin.pod import Pod
    from deviceplugin.podresources import PodDevices
    from deviceplugin.pods import PodCache
    from enforcer.model import Slice

_EVERY_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
"""Between two looks, however often the cache changes."""
_YOUNG_SECONDS = 5.0
"""A slice this young may be ahead of kubelet's own record."""
_CALL_SECONDS = 5.0
_HELD_SECONDS = 2.0

_log = logging.getLogger(__name__)


def over_pods(slices: Sequence[Slice], pods: Mapping[str, Pod]) -> frozenset[str]:
    """The UIDs of the pods with slices that are over or gone at the API server. Pure."""
    uids = {item.pod_uid for item in slices}
    return frozenset(uid for uid in uids if uid not in pods or pods[uid].ended)


def gone_pods(
    slices: Sequence[Slice],
    pods: Mapping[str, Pod],
    held: PodDevices | None,
    now: datetime,
    young: float = _YOUNG_SECONDS,
) -> list[tuple[str, str, str]]:
    """(uid, namespace, name) of the pods whose slices nobody holds any more. Pure.

    ``pods`` is by UID, as the API server has them; ``held`` is kubelet's record, None if it cannot
    be read. A pod with a slice of less than ``young`` seconds is left alone.
    """
    of_pod: dict[str, list[Slice]] = {}
    for item in slices:
        of_pod.setdefault(item.pod_uid, []).append(item)
    # kubelet's record knows names: what a later pod of the same name got is not the earlier one's.
    later: dict[tuple[str, str], set[str]] = {}
    gone = []
    for uid, own in reversed(of_pod.items()):
        first = own[0]
        name = first.namespace, first.pod
        device_ids = {device_id for item in own for device_id in item.device_ids}
        of_later = later.setdefault(name, set())
        held_ids = {one for ids in (held or {}).get(name, {}).values() for one in ids} - of_later
        of_later |= device_ids
        # One from the future was given before the clock was set back: it would be young for long.
        if any(0 <= (now - _time(item.created)).total_seconds() < young for item in own):
            continue
        if device_ids & held_ids:
            continue
        pod = pods.get(uid)
        if pod is None or (pod.ended and held is not None):
            gone.append((uid, *name))
    return gone[::-1]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Reaper(Follower):
    """Takes slices back."""

    def __init__(
        self,
        api: ApiServer,
        cache: PodCache,
        checkpoint: Checkpoint,
        held: Callable[[float], PodDevices | None],
        devices: Callable[[], Sequence[Device]],
        *,
        whole: bool = False,
    ) -> None:
        """``held`` reads kubelet's record, within so many seconds.

        ``whole``: it alone says who has which GPUs, all of them whole.
        """
        super().__init__("reap", cache)
        self._api = api
        self._checkpoint = checkpoint
        self._held = held
        self._devices = devices
        self._whole = whole
        self._looked = float("-inf")
        self._over: frozenset[str] = frozenset()
        self._recovered = False
        self._problems: list[str] = []
        self._trouble = ""

    def recover(self) -> bool:
        """Find lost slices; False while pods, GPUs or kubelet's record are not all known.

        Raises OSError, and then keeps what it found until then.
        """
        devices = self._devices()
        held = self._held(_HELD_SECONDS) if devices and self._cache.synced else None
        if held is None:
            return False
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        with self._checkpoint.giving:
            pods, slices = self._cache.pods(), self._checkpoint.slices
            problems: list[str] = []
            early = False
            if self._whole:
                found = whole_slices(pods, slices, devices, held, created)
            else:
                found, problems = lost_slices(pods, self._api.node, slices, devices, held, created)
                early = unlisted(pods, self._api.node, slices, held)
            for item in found:
                self._checkpoint.add(item)
                _log.log(
                    logging.INFO if self._whole else logging.WARNING,
                    "pod %s/%s, container %s: runs with GPUs that were not in the checkpoint",
                    item.namespace,
                    item.pod,
                    item.container,
                )
        for problem in problems:
            if problem not in self._problems:
                _log.error("%s", problem)
        self._problems = problems
        # A GPU that was not offered yet is one day.
        return not (problems or early)

    def reap(self) -> None:
        """Look once. Raises ApiServerError or OSError, and then takes no more back."""
        slices, pods = self._checkpoint.slices, self._pods()
        if self._cache.synced and over_pods(slices, pods):
            held = self._held(_HELD_SECONDS)
            for gone in gone_pods(slices, pods, held, datetime.now(UTC)):
                self._take_back(*gone, _CALL_SECONDS)

    def reap_now(self, deadline: float) -> None:
        """Take back what can be until ``deadline``: there is a pod that needs it.

        HAMi books it again as soon as the API server tells of a pod's end, and kubelet asks for the
        next pod a moment later. It asks for one at a time, so that what it was given for another is
        in its record, however young.
        """
        slices, pods = self._checkpoint.slices, self._pods()
        held = self._held(_left(deadline)) if over_pods(slices, pods) else None
        if held is None:
            return
        try:
            for gone in gone_pods(slices, pods, held, datetime.now(UTC), young=0.0):
                if time.monotonic() >= deadline:
                    return
                self._take_back(*gone, _left(deadline))
        except (ApiServerError, OSError) as error:
            _log.warning("the slices of pods that are over stay for now: %s", error)

    def _pods(self) -> dict[str, Pod]:
        return {pod.uid: pod for pod in self._cache.pods()}

    def _take_back(self, uid: str, namespace: str, name: str, seconds: float) -> None:
        # The cache may be behind; a slice too many costs less than one too few.
        answer = self._api.get_pod(namespace, name, seconds)
        if answer is not None:
            pod = self._cache.absorb_pod(answer)
            if pod.uid == uid and not pod.ended:
                return
        for item in self._checkpoint.remove_pod(uid, seconds):
            _log.info(
                "pod %s/%s, container %s: slice of %s taken back",
                item.namespace,
                item.pod,
                item.container,
                ", ".join(share.bdf for share in item.shares),
            )

    def work(self) -> float:
        """Recover, take back, and make what was given outlast a power cut."""
        now = time.monotonic()
        over = over_pods(self._checkpoint.slices, self._pods())
        # A pod that has just ended is not kept waiting; one that kubelet still has is no news.
        if over <= self._over and now - self._looked < _PAUSE_SECONDS:
            return _PAUSE_SECONDS - (now - self._looked)
        self._looked, self._over = now, over
        try:
            self._recovered = (self._recovered and not self._whole) or self.recover()
            self.reap()
            self._checkpoint.flush()
        except (ApiServerError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("the slices stay as they are for now: %s", error)
        else:
            if self._trouble:
                self._trouble = ""
                _log.info("the slices follow what runs again")
        return _EVERY_SECONDS


def _left(deadline: float) -> float:
    """Seconds, and a moment where none are left."""
    return max(0.05, deadline - time.monotonic())
