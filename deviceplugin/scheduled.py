# SPDX-License-Identifier: Apache-2.0
"""Giving out what a scheduler booked: Allocate where one writes annotations on the pods."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from deviceplugin.allocate import answer, decide, given_again, idle_xccs, still_booked
from deviceplugin.apiserver import ApiServerError
from deviceplugin.devices import find_device, share_key
from deviceplugin.events import IDLE_DIES, Event
from deviceplugin.hold import slices_to_hold
from deviceplugin.pending import choose, owners, strangers, turns
from deviceplugin.refusal import RefusalError
from enforcer.model import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from deviceplugin.allocate import Answer
    from deviceplugin.checkpoint import Checkpoint
    from deviceplugin.codec import NodeLock
    from deviceplugin.health import Offer
    from deviceplugin.hook import Hook, Installed
    from deviceplugin.pending import Turn
    from deviceplugin.pod import Pod
    from deviceplugin.pods import PodCache
    from enforcer.model import Slice

_PREFER_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Binding(Protocol):
    """What becomes of a pod's binding."""

    @property
    def refused(self) -> Collection[str]:
        """The UIDs of the pods of which an Allocate was refused."""

    def fail(self, pod: Pod) -> None:
        """An Allocate of this pod was refused."""


class Scheduled:
    """The slices a scheduler booked, from the pods' annotations into the checkpoint."""

    def __init__(  # noqa: PLR0913 - each is another part of the node
        self,
        offer: Offer,
        cache: PodCache,
        checkpoint: Checkpoint,
        binding: Binding,
        tell: Callable[[Event], None],
        reap: Callable[[float], None],
        *,
        node: str,
        hook: Installed,
        run_dir: Path,
    ) -> None:
        """``reap`` takes back until a deadline what pods hold that are over."""
        self._offer = offer
        self._cache = cache
        self._checkpoint = checkpoint
        self._binding = binding
        self._tell = tell
        self._reap = reap
        self._node = node
        self._hook = hook
        self._run_dir = run_dir

    def allocate(self, resource: str, device_ids: Sequence[str], deadline: float) -> Answer:
        """What the container gets that kubelet asks for. Raises RefusalError."""
        if not self._checkpoint.giving.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RefusalError("another Allocate takes too long, see the log of ringfence")
        try:
            # Once: what is recorded is what is given.
            hook = self._hook.look()
            item = self._give(resource, device_ids, deadline, hooked=hook is not None)
            given = self._answer(item, hook)
        except RefusalError as error:
            if error.pod is not None:
                self._take_back(error.pod, _left(deadline))
            raise
        finally:
            self._checkpoint.giving.release()
        self._cache.wake()
        return given

    def _answer(self, item: Slice, hook: Hook | None) -> Answer:
        try:
            return answer(item, self._offer.devices, hook, self._run_dir)
        except KeyError as error:
            raise RefusalError(
                f"pod {item.namespace}/{item.pod}: GPU {error} of its slice is not on this node "
                "any more: see `ringfence doctor`, or delete the pod"
            ) from error

    def _give(
        self, resource: str, device_ids: Sequence[str], deadline: float, *, hooked: bool
    ) -> Slice:
        """The slice kubelet asks for, in the checkpoint. Raises RefusalError."""
        left = deadline - time.monotonic()
        lock, candidates, unanswered = self._candidates(resource, len(device_ids), left * 0.8)
        self._refuse_strangers(resource, len(device_ids))
        try:
            turn = choose(candidates, lock, device_ids, self._offer.devices)
        except RefusalError as error:
            same = [] if unanswered else self._given_before(device_ids)
            if not same:
                raise RefusalError(f"{error}{unanswered}", error.pod) from error
            return self._give_again(same, deadline, hooked=hooked)
        item = self._decide(turn, device_ids, deadline, hooked=hooked)
        try:
            self._checkpoint.add(item, _left(deadline))
        except OSError as error:
            raise turn.refuse(f"the checkpoint cannot be written: {error}") from error
        _log.info("pod %s, container %s: %s", turn.pod.title, item.container, _describe(item))
        for line in idle_xccs(item, self._offer.devices):
            _log.warning("pod %s, container %s: %s", turn.pod.title, item.container, line)
            pod = item.namespace, item.pod, item.pod_uid
            self._tell(Event(IDLE_DIES, f"container {item.container}: {line}", pod=pod))
        return item

    def _decide(
        self, turn: Turn, device_ids: Sequence[str], deadline: float, *, hooked: bool
    ) -> Slice:
        """The slice of a container, if need be of what those left that are over."""
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        initialized = {pod.uid for pod in self._cache.pods() if pod.initialized}

        def of(slices: Sequence[Slice]) -> Slice:
            booked = still_booked(slices, initialized)
            return decide(turn, device_ids, self._offer.devices, booked, created, hooked=hooked)

        slices = self._checkpoint.slices
        try:
            return of(slices)
        except RefusalError:
            left = deadline - time.monotonic()
            self._reap(time.monotonic() + left * 0.8)
            if self._checkpoint.slices is slices:
                raise
        return of(self._checkpoint.slices)

    def _give_again(self, same: Sequence[Slice], deadline: float, *, hooked: bool) -> Slice:
        """The last of the slices that kubelet may mean, recorded as it is given this time."""
        again = given_again(same, hooked=hooked)
        item = again[-1]
        try:
            self._checkpoint.amend(again, _left(deadline))
        except OSError as error:
            raise RefusalError(
                f"pod {item.namespace}/{item.pod}: the checkpoint cannot be written: {error}"
            ) from error
        _log.info("pod %s/%s: kubelet asks again, same answer", item.namespace, item.pod)
        return item

    def _refuse_strangers(self, resource: str, count: int) -> None:
        others = strangers(self._cache.pods(), self._node, resource, count)
        if others:
            raise RefusalError(
                f"{', '.join(pod.title for pod in others)} asks for {count} GPUs and was not "
                "placed by the scheduler that books them: nothing is given while kubelet may mean "
                "this pod: delete it, and give it that scheduler's schedulerName"
            )

    def _candidates(
        self, resource: str, count: int, timeout: float
    ) -> tuple[NodeLock | None, list[Turn], str]:
        """The lock, who may ask for ``count`` GPUs, and why that may be old news.

        The cache is believed where its lock names one of them; everything else is a guess, and
        for that the API server is asked once, within ``timeout`` seconds.
        """
        lock, candidates = self._known_candidates(resource)
        if owners(candidates, lock, count):
            return lock, candidates, ""
        unanswered = ""
        try:
            self._cache.refresh(max(0.05, timeout))
        except ApiServerError as error:
            unanswered = f" ({error})"
        return *self._known_candidates(resource), unanswered

    def _known_candidates(self, resource: str) -> tuple[NodeLock | None, list[Turn]]:
        node = self._cache.node()
        lock = node.lock() if node is not None else None
        waiting = turns(
            self._cache.pods(), self._node, self._checkpoint.slices, self._binding.refused
        )
        return lock, [turn for turn in waiting if turn.claim.resource == resource]

    def _given_before(self, device_ids: Sequence[str]) -> list[Slice]:
        """The slices of a pod with exactly these ids, of which kubelet lost its record.

        None of them if any other pod may be meant: the limits would be the wrong pod's.
        """
        pods = [pod for pod in self._cache.pods() if not (pod.ended or pod.deleted)]
        served = {item.key for item in self._checkpoint.slices}
        for pod in pods:
            for claim in pod.claims:
                if (pod.uid, claim.container) not in served and not pod.acknowledged:
                    return []
        alive = {pod.uid for pod in pods}
        same = [
            item
            for item in slices_to_hold(self._checkpoint.slices, device_ids)
            if item.pod_uid in alive
        ]
        shares = {item.shares for item in same}
        return same if len(shares) == 1 else []

    def booked(self, resource: str, size: int) -> list[str]:
        """The keys of the devices that kubelet is about to ask for; empty if unknown."""
        lock, candidates, _ = self._candidates(resource, size, _PREFER_SECONDS)
        fitting = [turn for turn in candidates if turn.claim.count == size]
        likely = owners(candidates, lock, size) or fitting
        if len(likely) != 1:
            return []
        try:
            entry = likely[0].entry()
        except RefusalError:
            return []
        booked = [find_device(self._offer.devices, share.id) for share in entry]
        return [device.key for device in booked if device is not None]

    def _take_back(self, pod: Pod, seconds: float) -> None:
        """A refused pod never starts: what its other containers got is free again."""
        try:
            self._checkpoint.remove_pod(pod.uid, seconds)
        except OSError as error:
            _log.warning("pod %s: its slices stay for now: %s", pod.title, error)
        self._binding.fail(pod)


def _left(deadline: float) -> float:
    """Seconds, and a moment where none are left: what is quick is done all the same."""
    return max(0.05, deadline - time.monotonic())


def _describe(item: Slice) -> str:
    return "; ".join(
        f"GPU {share_key(share)} whole"
        if share.vram_bytes is None
        else f"GPU {share_key(share)} {share.vram_bytes // MIB} MiB, CUs {share.cus or 'all'}"
        for share in item.shares
    )
