# SPDX-License-Identifier: Apache-2.0
"""What follows an Allocate on the API server: entries blanked, phase set, node lock released.

Nothing of it is queued: what a pod's annotations should be follows from the checkpoint, so a
thread compares and patches until they are, also after a restart in the middle.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deviceplugin.allocate import held_cus, layout_of
from deviceplugin.apiserver import CONFLICT, NOT_FOUND, ApiServerError
from deviceplugin.codec import (
    BIND_PHASE,
    CU_ALLOCATED,
    NODE_LOCK,
    PHASE_ALLOCATING,
    PHASE_FAILED,
    PHASE_SUCCESS,
    TO_ALLOCATE,
    VGPU_NODE,
    AnnotationError,
    blank_entries,
    decode_devices,
    encode_cu_allocated,
    encode_cus,
)
from deviceplugin.cu import to_ids
from deviceplugin.devices import share_key
from deviceplugin.follower import Follower
from deviceplugin.pending import blanked
from deviceplugin.pod import parse_node

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from deviceplugin.apiserver import ApiServer
    from deviceplugin.checkpoint import Checkpoint
    from deviceplugin.codec import NodeLock
    from deviceplugin.devices import Device
    from deviceplugin.pod import Node, Pod
    from deviceplugin.pods import PodCache
    from enforcer.model import Slice

_CALL_SECONDS = 5.0
_RETRY_SECONDS = (0.1, 15.0)
_IDLE_SECONDS = 30.0
_LATER = frozenset({401, NOT_FOUND, 408, CONFLICT, 429})
"""What says that this is not the time, or that the pod is another one by now."""
_SILENT = frozenset({0, 502, 503, 504})
"""What comes of an API server that is away, or of a webhook of its that is."""
_STRAY_SECONDS = 10.0
"""How long a lock may name no pod of this node before it is looked into, and then ever longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Retry:
    """A pod that could not be settled."""

    due: float
    delay: float
    told: object = None
    """Of what error the log has."""


@dataclass(frozen=True, slots=True)
class _Stray:
    """A node lock that names no pod of this node."""

    lock: NodeLock
    due: float
    pause: float
    told: str = ""
    """Of what error the log has."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a pod and the node lock are still owed."""

    annotations: Mapping[str, str]
    unlock: bool
    """The binding of this pod is over: a lock that names it has no purpose left."""


def settle(
    pod: Pod, slices: Sequence[Slice], failed: bool, devices: Mapping[str, Device]
) -> Settlement:
    """What is owed to a pod with these slices. Pure.

    ``failed``: an Allocate of it was refused. ``devices`` is by key.
    """
    if not pod.claims:
        return Settlement({}, unlock=False)
    given = {item.container for item in slices}
    served = sum(claim.container in given for claim in pod.claims)
    owed: dict[str, str] = {}
    text = pod.annotations.get(TO_ALLOCATE)
    if text is not None and served:
        blank = served - blanked(pod, _remaining(text))
        if blank > 0:
            owed[TO_ALLOCATE] = blank_entries(text, blank)
    cus = _cu_allocated(slices, devices)
    if cus is not None and pod.annotations.get(CU_ALLOCATED) != cus:
        owed[CU_ALLOCATED] = cus
    phase = pod.annotations.get(BIND_PHASE)
    if phase == PHASE_ALLOCATING:
        if failed or pod.ended:
            owed[BIND_PHASE] = PHASE_FAILED
        elif served == len(pod.claims):
            owed[BIND_PHASE] = PHASE_SUCCESS
    final = owed.get(BIND_PHASE, phase) in {PHASE_SUCCESS, PHASE_FAILED}
    return Settlement(owed, unlock=final or failed or pod.ended)


def _remaining(text: str) -> int:
    try:
        return sum(bool(entry) for entry in decode_devices(text))
    except AnnotationError:
        return 0


def _cu_allocated(slices: Sequence[Slice], devices: Mapping[str, Device]) -> str | None:
    """The value of ``hami.io/amd-cu-allocated``; None for a pod that only has whole GPUs."""
    held: dict[str, int] = {}
    sliced = False
    for item in slices:
        for share in item.shares:
            device = devices.get(share_key(share))
            if device is None:
                continue
            held[device.id] = held.get(device.id, 0) | held_cus(share, layout_of(device.gpu))
            sliced |= share.vram_bytes is not None
    if not sliced:
        return None
    return encode_cu_allocated({name: encode_cus(to_ids(cus)) for name, cus in held.items() if cus})


class Release(Follower):
    """Gives pods and node lock what they are owed."""

    def __init__(
        self,
        api: ApiServer,
        cache: PodCache,
        checkpoint: Checkpoint,
        devices: Callable[[], Sequence[Device]],
    ) -> None:
        super().__init__("release", cache)
        self._api = api
        self._checkpoint = checkpoint
        self._devices = devices
        self._failed: set[str] = set()
        self._retries: dict[str, _Retry] = {}
        self._known: dict[str, tuple[tuple[object, ...], Settlement]] = {}
        self._stray: _Stray | None = None

    @property
    def refused(self) -> Collection[str]:
        """The UIDs of the pods of which an Allocate was refused, whatever they say themselves."""
        return self._failed

    def fail(self, pod: Pod) -> None:
        """An Allocate of this pod was refused: its binding is over."""
        self._failed.add(pod.uid)
        self._cache.wake()

    def work(self) -> float:
        """Settle every pod that is owed something."""
        # Before the pods: another may be refused meanwhile, that is not among them yet.
        failed = set(self._failed)
        pods = self._cache.pods()
        node = self._cache.node()
        uids = {pod.uid for pod in pods}
        self._failed -= failed - uids
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}
        self._retries = {uid: retry for uid, retry in self._retries.items() if uid in uids}
        now = time.monotonic()
        pause = _IDLE_SECONDS
        mistake: Exception | None = None
        for pod in pods:
            known = self._retries.get(pod.uid, _Retry(now, _RETRY_SECONDS[0]))
            try:
                if not self._owed(pod, node):
                    self._settled(pod)
                    continue
                if known.due > now:
                    pause = min(pause, known.due - now)
                    continue
                self._settle(pod, patient=known.delay < _RETRY_SECONDS[1])
                self._settled(pod)
            except ApiServerError as error:
                delay, told = known.delay, known.told
                if error.status != CONFLICT:
                    # Who refuses may put anything into the message, the time of day too.
                    about = error.status or str(error)
                    if about != told:
                        told = about
                        _log.warning("pod %s: %s; trying again now and then", pod.title, error)
                    delay = min(delay * 2, _RETRY_SECONDS[1])
                self._retries[pod.uid] = _Retry(time.monotonic() + delay, delay, told)
                pause = min(pause, delay)
            except Exception as error:
                # Told by the follower, after the others.
                mistake = error
        pause = min(pause, self._look_after_stray(pods, node))
        if mistake is not None:
            raise mistake
        return pause

    def _look_after_stray(self, pods: Sequence[Pod], node: Node | None) -> float:
        """Free the node of a lock that nobody else will; the seconds until the next look."""
        lock = node.lock() if node is not None else None
        if lock is None or any(lock.names(pod.namespace, pod.name) for pod in pods):
            self._stray = None
            return _IDLE_SECONDS
        now = time.monotonic()
        stray = self._stray
        if stray is None or stray.lock != lock:
            stray = _Stray(lock, now + _STRAY_SECONDS, _STRAY_SECONDS)
        elif stray.due <= now:
            # A quiet node asks for nothing, also where a lock is left over for good.
            stray = replace(stray, due=now + 2 * stray.pause, pause=2 * stray.pause)
            try:
                self._release_stray(lock)
            except ApiServerError as error:
                if str(error) != stray.told:
                    stray = replace(stray, told=str(error))
                    _log.warning("the node lock: %s; trying again now and then", error)
        self._stray = stray
        return stray.due - now

    def _release_stray(self, lock: NodeLock) -> None:
        """Release a lock whose pod is another node's by now.

        The pod that took it is gone, and one of its name, as a StatefulSet makes it anew, was bound
        elsewhere: HAMi finds the owner and waits for it to let go. A pod that is not bound may be
        about to be bound here, and for one that does not exist HAMi takes the lock over by itself.
        """
        if lock.owner is None:
            return
        # The node before the pod, as in _settle.
        node = self._cache.absorb_node(self._api.get_node(_CALL_SECONDS))
        answer = self._api.get_pod(*lock.owner, _CALL_SECONDS)
        if answer is None or node.lock() != lock:
            return
        pod = self._cache.absorb_pod(answer)
        if pod.node not in {"", self._api.node}:
            self._unlock(node)
            _log.warning("pod %s: is on node %s: node lock released", pod.title, pod.node)

    def _settled(self, pod: Pod) -> None:
        known = self._retries.pop(pod.uid, None)
        if known is not None and known.told is not None:
            _log.info("pod %s: settled after all", pod.title)

    def _owed(self, pod: Pod, node: Node | None) -> bool:
        if pod.node != self._api.node or pod.annotations.get(VGPU_NODE) != self._api.node:
            return False
        settlement = self._settlement(pod)
        return bool(settlement.annotations) or (settlement.unlock and _locked_by(node, pod))

    def _settlement(self, pod: Pod) -> Settlement:
        """What is owed to a pod; worked out anew only when something of it changed."""
        slices, offered = self._checkpoint.of_pod(pod.uid), self._devices()
        facts = (pod, slices, offered, pod.uid in self._failed)
        known = self._known.get(pod.uid)
        if known is None or any(
            one is not other for one, other in zip(known[0], facts, strict=True)
        ):
            devices = {device.key: device for device in offered}
            known = facts, settle(pod, slices, pod.uid in self._failed, devices)
            self._known[pod.uid] = known
        return known[1]

    def _settle(self, known: Pod, *, patient: bool) -> None:
        """``patient``: what does not answer may yet, so the lock waits for the pod to be written.

        Not for ever: an admission webhook that hangs says no more than that.
        """
        # The node is read before the pod: if the pod is replaced by another of its name, which
        # then takes the lock, the node is no longer of this version and the release conflicts.
        node = None
        if _locked_by(self._cache.node(), known):
            node = parse_node(self._api.get_node(_CALL_SECONDS))
        answer = self._api.get_pod(known.namespace, known.name, _CALL_SECONDS)
        if answer is None:
            return
        pod = self._cache.absorb_pod(answer)
        if pod.uid != known.uid:
            return
        settlement = self._settlement(pod)
        refused = None
        try:
            self._annotate(pod, settlement.annotations)
        except ApiServerError as error:
            if error.status in _LATER or (patient and error.status in _SILENT):
                raise
            # The lock is the node's: whoever keeps one pod from being written, as an admission
            # webhook can, must not keep every other pod off the node as well.
            refused = error
        if node is not None and settlement.unlock and _locked_by(node, pod):
            self._unlock(node)
            _log.info("pod %s: node lock released", pod.title)
        elif node is not None:
            # The cache is behind the server; without this the next pass would find the same.
            self._cache.absorb_node(self._api.get_node(_CALL_SECONDS))
        if refused is not None:
            raise refused

    def _unlock(self, node: Node) -> None:
        metadata = {"resourceVersion": node.resource_version, "annotations": {NODE_LOCK: None}}
        self._cache.absorb_node(self._api.patch_node({"metadata": metadata}, _CALL_SECONDS))

    def _annotate(self, pod: Pod, owed: Mapping[str, str]) -> None:
        if owed:
            metadata = {"resourceVersion": pod.resource_version, "annotations": dict(owed)}
            answer = self._api.patch_pod(
                pod.namespace, pod.name, {"metadata": metadata}, _CALL_SECONDS
            )
            self._cache.absorb_pod(answer)


def _locked_by(node: Node | None, pod: Pod) -> bool:
    lock = node.lock() if node is not None else None
    return lock is not None and lock.names(pod.namespace, pod.name)
