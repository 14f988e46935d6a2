# SPDX-License-Identifier: Apache-2.0
"""Slices of running pods that the checkpoint does not know, from what others recorded. Pure.

After a checkpoint was lost, and for pods that another plugin of this protocol served before this
one was installed: without a slice nobody would hold them, and their CUs would be given out again.
They are held to what was booked for them. The scheduler's annotation says what that is, kubelet who
has which device. The first is the pod's author's to change: it is believed as far as the GPU
reaches, where no limit at all would be the choice, and its CUs no further than what was booked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deviceplugin.allocate import held_cus, layout_of
from deviceplugin.codec import (
    ALLOCATED,
    BIND_PHASE,
    CU_ALLOCATED,
    PHASE_SUCCESS,
    VGPU_NODE,
    AnnotationError,
    Entry,
    decode_cus,
    decode_devices,
    encode_cus,
)
from deviceplugin.devices import Device, find_device, key_of_slot
from enforcer.model import MIB, Share, Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deviceplugin.pod import Pod
    from deviceplugin.podresources import PodDevices


def lost_slices(
    pods: Iterable[Pod],
    node: str,
    slices: Sequence[Slice],
    devices: Sequence[Device],
    held: PodDevices,
    created: str,
) -> tuple[list[Slice], list[str]]:
    """The slices that are missing, and a line for each pod whose slices cannot be made out.

    ``held`` is kubelet's record: only what it lists runs. ``created`` is RFC 3339.
    """
    known = {item.pod_uid for item in slices}
    found: list[Slice] = []
    problems: list[str] = []
    for pod in pods:
        containers = held.get((pod.namespace, pod.name), {})
        if pod.uid in known or not _was_served(pod, node) or not any(containers.values()):
            continue
        try:
            found += _slices(pod, devices, containers, created)
        except AnnotationError as error:
            problems.append(
                f"pod {pod.title}: runs with GPUs, but its slice is lost and cannot be made out: "
                f"annotation {ALLOCATED}: {error}"
            )
    return found, problems


def unlisted(pods: Iterable[Pod], node: str, slices: Sequence[Slice], held: PodDevices) -> bool:
    """True if kubelet's record lacks a pod that was served and has no slice. Pure.

    kubelet has just started then, and knows none of its pods yet, or the pod is about to go.
    """
    known = {item.pod_uid for item in slices}
    return any(
        _was_served(pod, node) and pod.uid not in known and (pod.namespace, pod.name) not in held
        for pod in pods
    )


def whole_slices(
    pods: Iterable[Pod],
    slices: Sequence[Slice],
    devices: Sequence[Device],
    held: PodDevices,
    created: str,
) -> list[Slice]:
    """The slices of the running pods to which kubelet gave whole GPUs by itself.

    kubelet's record knows a pod by name, so only one that runs is believed to be the pod it means.
    A container with a device that is not offered is left out.
    """
    known = {item.key for item in slices}
    by_key = {device.key: device for device in devices}
    found = []
    for pod in pods:
        containers = held.get((pod.namespace, pod.name), {})
        for claim in pod.claims if pod.phase == "Running" else ():
            ids = containers.get(claim.container, ())
            chosen = [by_key[key] for key in map(key_of_slot, ids) if key in by_key]
            if (pod.uid, claim.container) in known or not ids or len(chosen) != len(ids):
                continue
            found.append(
                Slice(
                    pod_uid=pod.uid,
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=claim.container,
                    kind=claim.kind,
                    device_ids=ids,
                    shares=tuple(
                        Share(one.gpu.bdf, None, partition=one.gpu.partition) for one in chosen
                    ),
                    created=created,
                )
            )
    return found


def _was_served(pod: Pod, node: str) -> bool:
    return (
        bool(pod.claims)
        and pod.node == node
        and pod.annotations.get(VGPU_NODE) == node
        and pod.annotations.get(BIND_PHASE) == PHASE_SUCCESS
        and not pod.ended
    )


def _slices(
    pod: Pod,
    devices: Sequence[Device],
    containers: dict[str, tuple[str, ...]],
    created: str,
) -> list[Slice]:
    entries = [entry for entry in decode_devices(pod.annotations.get(ALLOCATED, "")) if entry]
    if len(entries) != len(pod.claims):
        raise AnnotationError(
            f"expected an entry for each of {len(pod.claims)} containers, found {len(entries)}"
        )
    booked: dict[str, int] = {}
    for entry in entries:
        for one in entry:
            booked[one.id] = booked.get(one.id, 0) + one.cus
    return [
        Slice(
            pod_uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=claim.container,
            kind=claim.kind,
            device_ids=containers.get(claim.container, ()),
            shares=_shares(pod, entry, devices, booked),
            created=created,
            oversubscribe=any(
                device is not None and device.scaling > 1
                for device in (find_device(devices, one.id) for one in entry)
            ),
            priority=claim.priority,
        )
        for claim, entry in zip(pod.claims, entries, strict=True)
    ]


def _shares(
    pod: Pod, entry: Entry, devices: Sequence[Device], booked: dict[str, int]
) -> tuple[Share, ...]:
    pairs = []
    for one in entry:
        device = find_device(devices, one.id)
        if device is None:
            raise AnnotationError(f"expected a GPU of this node, found {one.id[:80]!r}")
        if one.mib <= 0:
            raise AnnotationError(f"expected memory in MiB, found {one.mib}")
        pairs.append((one, device))
    if all(one.mib >= device.mib and one.cus >= device.gpu.cu_count for one, device in pairs):
        return tuple(
            Share(device.gpu.bdf, None, partition=device.gpu.partition) for _, device in pairs
        )
    return tuple(
        Share(
            device.gpu.bdf,
            min(one.mib, device.mib) * MIB,
            _recorded_cus(pod, device, booked[one.id]),
            device.gpu.partition,
        )
        for one, device in pairs
    )


def _recorded_cus(pod: Pod, device: Device, booked: int) -> str | None:
    """The pod's CUs of one GPU as recorded on it; None if that is more than was booked."""
    try:
        recorded = json.loads(pod.annotations.get(CU_ALLOCATED, "{}"))
        cus = decode_cus(recorded[device.id], device.gpu.cu_count)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    layout = layout_of(device.gpu)
    text = encode_cus(cus)
    held = held_cus(Share(device.gpu.bdf, MIB, text), layout).bit_count()
    return text if held < booked + layout.group * len(pod.claims) else None
