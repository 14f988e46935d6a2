# SPDX-License-Identifier: Apache-2.0
"""Which pod and container an Allocate is for: kubelet names neither. Pure.

A scheduler binds one pod at a time per node, under a lock that names it, and marks the pod as
``allocating``. kubelet then calls Allocate once for each container with a claim, init containers
first, so the containers that have a slice already tell whose turn it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deviceplugin.codec import (
    BIND_PHASE,
    PHASE_ALLOCATING,
    TO_ALLOCATE,
    VGPU_NODE,
    AnnotationError,
    Entry,
    NodeLock,
    decode_devices,
)
from deviceplugin.devices import Device, find_device, key_of_slot
from deviceplugin.refusal import RefusalError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from deviceplugin.pod import Claim, Pod
    from enforcer.model import Slice


@dataclass(frozen=True, slots=True)
class Turn:
    """The container of a pod that kubelet will ask for next."""

    pod: Pod
    served: int
    """How many of the pod's claims have their slice."""

    @property
    def claim(self) -> Claim:
        return self.pod.claims[self.served]

    def entry(self) -> Entry:
        """What the scheduler booked for this container.

        The k-th claim has the k-th entry that was not empty when the scheduler wrote them; as
        entries are blanked once they are served, position counts from the end. Positions of empty
        entries carry no meaning: HAMi v2.10.0 drops leading ones.

        Raises RefusalError for an annotation that is missing, unreadable or of another shape.
        """
        text = self.pod.annotations.get(TO_ALLOCATE)
        if text is None:
            raise self.refuse(f"annotation {TO_ALLOCATE}: expected what to give, found none")
        try:
            entries = [entry for entry in decode_devices(text) if entry]
        except AnnotationError as error:
            raise self.refuse(f"annotation {TO_ALLOCATE}: {error}") from error
        already = blanked(self.pod, len(entries))
        if not 0 <= already <= self.served:
            raise self.refuse(
                f"annotation {TO_ALLOCATE}: expected an entry for each of the "
                f"{len(self.pod.claims)} containers that ask for GPUs ({self.served} served), "
                f"found {len(entries)}"
            )
        return entries[self.served - already]

    def refuse(self, why: str) -> RefusalError:
        """A refusal that names the pod and this container."""
        return RefusalError(
            f"pod {self.pod.title}, container {self.claim.container}: {why}", self.pod
        )


def blanked(pod: Pod, remaining: int) -> int:
    """How many entries of a pod were blanked before, with ``remaining`` left."""
    return len(pod.claims) - remaining


def turns(
    pods: Iterable[Pod], node: str, slices: Sequence[Slice], refused: Collection[str] = ()
) -> list[Turn]:
    """Every container that may be next: one for each pod that is being bound to this node.

    ``refused`` are the UIDs of those whose Allocate failed. They say so themselves only once that
    could be written, and the lock may be another's before.
    """
    found = []
    for pod in pods:
        # Most pods are none of these: whose slices are whose is asked for the others alone.
        if _allocating(pod, node) and pod.uid not in refused:
            given = {item.container for item in slices if item.pod_uid == pod.uid}
            served = sum(claim.container in given for claim in pod.claims)
            if served < len(pod.claims):
                found.append(Turn(pod, served))
    return found


def _allocating(pod: Pod, node: str) -> bool:
    return (
        pod.annotations.get(BIND_PHASE) == PHASE_ALLOCATING
        and pod.node == node
        and pod.annotations.get(VGPU_NODE) == node
        # One that runs has its devices, also where the API server did not let that be written.
        and pod.phase == "Pending"
        and not pod.deleted
    )


def strangers(pods: Iterable[Pod], node: str, resource: str, count: int) -> list[Pod]:
    """Pods kubelet may ask ``count`` of ``resource`` for, though no scheduler of ours gave any.

    Such a pod was bound by somebody else, and its Allocate looks like that of a pod that waits for
    its own: it must not get the other's slice.
    """
    return [
        pod
        for pod in pods
        if not (pod.acknowledged or pod.ended or pod.deleted)
        and pod.node == node
        and pod.annotations.get(VGPU_NODE) != node
        and any((claim.resource, claim.count) == (resource, count) for claim in pod.claims)
    ]


def owners(candidates: Sequence[Turn], lock: NodeLock | None, count: int) -> list[Turn]:
    """The candidate that asks for ``count`` GPUs and that the lock names: one or none."""
    return [
        turn
        for turn in candidates
        if turn.claim.count == count
        and lock is not None
        and lock.names(turn.pod.namespace, turn.pod.name)
    ]


def choose(
    candidates: Sequence[Turn],
    lock: NodeLock | None,
    device_ids: Sequence[str],
    devices: Sequence[Device],
) -> Turn:
    """The container kubelet asks for with ``device_ids``.

    kubelet's count is the container's own, so a pod with another count is not meant. Among the
    rest the lock decides; without it the GPUs kubelet picked do, which GetPreferredAllocation
    steered. Raises RefusalError where that leaves none, or more than one.
    """
    named = owners(candidates, lock, len(device_ids))
    if named:
        return named[0]
    fitting = [turn for turn in candidates if turn.claim.count == len(device_ids)]
    if len(fitting) > 1:
        fitting = [turn for turn in fitting if _booked_gpus(turn, devices) == _gpus(device_ids)]
        if len(fitting) != 1:
            raise RefusalError(
                f"kubelet asks for {len(device_ids)} GPUs, and "
                f"{', '.join(sorted(turn.pod.title for turn in candidates))} wait for theirs: "
                "expected the node lock to name one of them"
            )
    if not fitting:
        raise RefusalError(_nobody(candidates, device_ids))
    return fitting[0]


def _nobody(candidates: Sequence[Turn], device_ids: Sequence[str]) -> str:
    waiting = "; ".join(
        f"{turn.pod.title} waits for {turn.claim.count} for container {turn.claim.container}"
        for turn in candidates
    )
    return (
        f"kubelet asks for {len(device_ids)} GPUs, but no pod that a scheduler bound to this node "
        f"({BIND_PHASE} {PHASE_ALLOCATING}, {VGPU_NODE} this node) waits for as many"
        f"{f' ({waiting})' if waiting else ''}: was it placed by another scheduler?"
    )


def _gpus(device_ids: Sequence[str]) -> list[str]:
    return sorted(map(key_of_slot, device_ids))


def _booked_gpus(turn: Turn, devices: Sequence[Device]) -> list[str] | None:
    try:
        booked = [find_device(devices, share.id) for share in turn.entry()]
    except RefusalError:
        return None
    return sorted(device.key for device in booked if device)
