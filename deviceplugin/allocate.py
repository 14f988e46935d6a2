# SPDX-License-Identifier: Apache-2.0
"""What a container gets: the slice that the scheduler booked, or a refusal. Pure.

There is no third way: an annotation that cannot be used never turns into a whole GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deviceplugin.codec import TO_ALLOCATE, AnnotationError, decode_cus, encode_cus
from deviceplugin.cu import CuLayout, CusExhaustedError, to_bitmap, to_ids
from deviceplugin.devices import Device, find_device, overlaps, share_key
from deviceplugin.hook import IN_CONTAINER
from enforcer.model import MIB, ContainerKind, Share, Slice
from enforcer.slices import hook_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from deviceplugin.codec import DeviceShare
    from deviceplugin.hook import Hook
    from deviceplugin.pending import Turn
    from enforcer.model import Gpu

SLICE_IN_CONTAINER = "/etc/ringfence"
LEDGER = "ledger/usage.v1"
LEDGER_IN_CONTAINER = f"/run/ringfence/{LEDGER}"
_MOST_CUS = 100_000
"""More than any GPU has: a checkpoint may name CUs that the GPU in this place lacks today."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host in the container."""

    host: str
    inside: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What kubelet adds to the container."""

    envs: Mapping[str, str]
    devices: tuple[str, ...]
    """Paths of device nodes, the same inside as outside."""
    gpus: tuple[Device, ...] = ()
    """The devices that the nodes are of."""
    mounts: tuple[Mount, ...] = ()
    names: tuple[str, ...] = ()
    """CDI names that stand for the nodes: kubelet's record has either."""


def decide(
    turn: Turn,
    device_ids: Sequence[str],
    devices: Sequence[Device],
    slices: Sequence[Slice],
    created: str,
    *,
    hooked: bool = False,
) -> Slice:
    """The slice of the container whose turn it is; ``created`` is RFC 3339.

    ``hooked``: the hook is there to be given. ``slices`` are those of this node that count, in
    the order they were given. Raises RefusalError.
    """
    entry = turn.entry()
    if len(entry) != len(device_ids):
        raise turn.refuse(
            f"annotation {TO_ALLOCATE}: expected {len(device_ids)} GPUs as kubelet asks, "
            f"found {len(entry)}"
        )
    chosen = [_device(turn, share, devices) for share in entry]
    for device in chosen:
        if chosen.count(device) > 1:
            raise turn.refuse(f"annotation {TO_ALLOCATE}: names GPU {device.id} more than once")
    pairs = list(zip(entry, chosen, strict=True))
    whole = all(_is_whole(share, device) for share, device in pairs)
    shares = tuple(_share(turn, share, device, slices, whole) for share, device in pairs)
    result = Slice(
        pod_uid=turn.pod.uid,
        namespace=turn.pod.namespace,
        pod=turn.pod.name,
        container=turn.claim.container,
        kind=turn.claim.kind,
        device_ids=tuple(device_ids),
        shares=shares,
        created=created,
        oversubscribe=not whole and any(device.scaling > 1 for device in chosen),
        hook=hooked and not whole,
        priority=turn.claim.priority,
    )
    for device in chosen:
        _check_promises(turn, device, [*slices, result])
    return result


def _device(turn: Turn, share: DeviceShare, devices: Sequence[Device]) -> Device:
    device = find_device(devices, share.id)
    if device is None:
        known = ", ".join(device.id for device in devices) or "none"
        raise turn.refuse(
            f"annotation {TO_ALLOCATE}: expected a GPU of this node ({known}), "
            f"found {share.id[:80]!r}"
        )
    if not device.healthy:
        raise turn.refuse(
            f"annotation {TO_ALLOCATE}: GPU {share.id} ({device.gpu.bdf}) is unhealthy: "
            f"{device.why}"
        )
    if not 0 < share.mib <= device.mib:
        raise turn.refuse(
            f"annotation {TO_ALLOCATE}: memory of GPU {share.id}: expected 1 to {device.mib} MiB, "
            f"found {share.mib}"
        )
    if not 0 <= share.cus <= device.gpu.cu_count:
        raise turn.refuse(
            f"annotation {TO_ALLOCATE}: CUs of GPU {share.id}: expected at most "
            f"{device.gpu.cu_count}, found {share.cus}"
        )
    return device


def _is_whole(share: DeviceShare, device: Device) -> bool:
    # No CUs at all is how an entry for memory alone is spelled: it has the use of every CU.
    return share.mib >= device.mib and share.cus in {0, device.gpu.cu_count}


def _share(
    turn: Turn, share: DeviceShare, device: Device, slices: Sequence[Slice], whole: bool
) -> Share:
    gpu = device.gpu
    layout = layout_of(gpu)
    beside = [item for item in slices if _beside(turn, item)]
    busy = _cus(layout, gpu, beside)
    own = [item for item in slices if item.pod_uid == turn.pod.uid]
    wanted = gpu.cu_count if whole else share.cus
    if wanted == 0:
        return Share(gpu.bdf, share.mib * MIB, partition=gpu.partition)
    try:
        cus = layout.allocate(wanted, busy, prefer=_cus(layout, gpu, own))
    except CusExhaustedError as error:
        holders = sorted(
            {f"{item.namespace}/{item.pod}" for item in beside if _cus(layout, gpu, [item])}
        )
        raise turn.refuse(
            f"GPU {device.id} ({gpu.bdf}) {error}; the others are held by {', '.join(holders)}"
        ) from error
    if whole:
        return Share(gpu.bdf, None, partition=gpu.partition)
    return Share(gpu.bdf, share.mib * MIB, encode_cus(to_ids(cus)), gpu.partition)


def idle_xccs(item: Slice, devices: Iterable[Device]) -> list[str]:
    """A line for each GPU on which a slice has no CU on some XCC, to which its queues send work."""
    by_key = {device.key: device.gpu for device in devices}
    lines = []
    for share in item.shares:
        gpu = by_key.get(share_key(share))
        if gpu is None or share.cus is None or share.vram_bytes is None:
            continue
        layout = layout_of(gpu)
        cus = to_ids(held_cus(share, layout))
        idle = layout.xccs - len({layout.xcc(cu) for cu in cus})
        if idle:
            lines.append(
                f"GPU {share_key(share)}: {len(cus)} CUs are on {layout.xccs - idle} of its "
                f"{layout.xccs} XCCs: expected at least one on each, ask for more amd.com/gpucores"
            )
    return lines


def still_booked(slices: Iterable[Slice], initialized: Collection[str]) -> list[Slice]:
    """The slices that count for the scheduler. Pure.

    It books what an init container had to another pod once the init containers are over, which they
    are in the pods with the UIDs ``initialized``; the slice itself stays until the pod is over.
    """
    return [
        item
        for item in slices
        if item.kind is not ContainerKind.INIT or item.pod_uid not in initialized
    ]


def _beside(turn: Turn, other: Slice) -> bool:
    """True if ``other`` may run at the same time as the container whose turn it is.

    Init containers end before what follows them starts, and the scheduler books their share only
    once; sidecars stay.
    """
    return other.pod_uid != turn.pod.uid or other.kind is not ContainerKind.INIT


def layout_of(gpu: Gpu) -> CuLayout:
    """The CUs of a GPU, and which go together."""
    return CuLayout(gpu.cu_count, gpu.cu_per_wgp, gpu.xcc_count or 1)


def _cus(layout: CuLayout, gpu: Gpu, slices: Iterable[Slice]) -> int:
    held = 0
    for item in slices:
        for share in item.shares:
            if overlaps(share, gpu):
                # Numbers of CUs mean nothing across a change of the partition mode.
                same = share.partition == gpu.partition
                held |= held_cus(share, layout) if same else layout.all
    return held


def held_cus(share: Share, layout: CuLayout) -> int:
    """The CUs that a share keeps from others: all for a whole GPU, none for memory alone.

    A list that cannot be read keeps none: it must not keep every other pod off the GPU.
    """
    if share.vram_bytes is None:
        return layout.all
    if share.cus is None:
        return 0
    try:
        return to_bitmap(decode_cus(share.cus, _MOST_CUS)) & layout.all
    except AnnotationError:
        return 0


def _check_promises(turn: Turn, device: Device, slices: Sequence[Slice]) -> None:
    pods: dict[str, list[Slice]] = {}
    for item in slices:
        if any(overlaps(share, device.gpu) for share in item.shares):
            pods.setdefault(item.pod_uid, []).append(item)
    promised = {uid: promised_bytes(items, device) for uid, items in pods.items()}
    total = sum(promised.values())
    if total > device.mib * MIB:
        others = sorted(
            f"{items[0].namespace}/{items[0].pod}"
            for uid, items in pods.items()
            if promised[uid] and uid != turn.pod.uid
        )
        raise turn.refuse(
            f"GPU {device.id} ({device.gpu.bdf}) has {device.mib} MiB, but "
            f"{-(-total // MIB)} MiB would be promised, with those of {', '.join(others)}"
        )


def promised_bytes(slices: Iterable[Slice], device: Device) -> int:
    """The most VRAM that the containers of one pod, in order of their start, hold on a GPU."""
    running = peak = 0
    for item in slices:
        size = sum(
            device.mib * MIB if share.vram_bytes is None else share.vram_bytes
            for share in item.shares
            if overlaps(share, device.gpu)
        )
        if item.kind is ContainerKind.INIT:
            peak = max(peak, running + size)
        else:
            running += size
    return max(peak, running)


def given_again(same: Sequence[Slice], *, hooked: bool) -> list[Slice]:
    """Slices of a pod with the same ids, as they are when kubelet asks again for the last. Pure.

    Which container it asks for it does not say: once it is given no hook, none of them counts as
    having it.
    """
    given = hooked and same[-1].hook is not False
    return [replace(one, hook=given and one.hook is not False) for one in same]


def answer(item: Slice, devices: Sequence[Device], hook: Hook | None, run: Path) -> Answer:
    """What kubelet is to add to the container of a slice.

    ``hook`` is None where it is not installed (any more); a slice that was given without it does
    not get it later. Below the host's ``run`` the enforcer keeps the hook's files of each
    container. A GPU of the slice that is gone raises KeyError.
    """
    by_key = {device.key: device for device in devices}
    chosen = [by_key[share_key(share)] for share in item.shares]
    given = whole_answer(chosen)
    if all(share.vram_bytes is None for share in item.shares):
        return given
    envs = dict(given.envs)
    masks = []
    for index, (share, device) in enumerate(zip(item.shares, chosen, strict=True)):
        every = encode_cus(range(device.gpu.cu_count))
        masks.append(f"{index}:{share.cus or every}")
        if share.vram_bytes is not None:
            envs[f"HIP_DEVICE_MEMORY_LIMIT_{index}"] = f"{share.vram_bytes // MIB}m"
    # ROCr reads the sets up to the first it cannot parse and then lets go of the rest.
    envs["HSA_CU_MASK"] = ";".join(masks)
    if item.oversubscribe:
        envs["HIP_OVERSUBSCRIBE"] = "true"
    if hook is None or item.hook is False:
        return replace(given, envs=envs)
    envs |= hook.envs()
    return replace(given, envs=envs, mounts=_hook_mounts(item, hook.directory, run))


def gives_hook(given: Answer, item: Slice, hook: Hook, run: Path) -> bool:
    """Whether what a container is given makes it load this hook with its own slice. Pure."""
    return given.envs.items() >= hook.needed_envs().items() and set(given.mounts) >= set(
        _hook_mounts(item, hook.directory, run)
    )


def whole_answer(chosen: Sequence[Device]) -> Answer:
    """What kubelet is to add to a container that has these GPUs to itself."""
    envs = {
        "ROCR_VISIBLE_DEVICES": ",".join(_visible(chosen)),
        "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(chosen)))),
    }
    return Answer(envs, tuple(nodes_of(chosen)), gpus=tuple(chosen))


def _hook_mounts(item: Slice, objects: Path, run: Path) -> tuple[Mount, ...]:
    own = hook_directory(run, item.pod_uid, item.container)
    return (
        Mount(str(objects), str(IN_CONTAINER)),
        # The directory, as the enforcer replaces the slice file by another of its name.
        Mount(str(own), SLICE_IN_CONTAINER),
        # The file alone: a tenant can neither delete it nor put others beside it on the host.
        Mount(str(own / LEDGER), LEDGER_IN_CONTAINER, read_only=False),
    )


def _visible(chosen: Sequence[Device]) -> list[str]:
    """ROCr's names of the GPUs: the UUID, or the rank by render node where it names several."""
    uuids = [device.rocr_uuid for device in chosen]
    by_render = sorted(chosen, key=lambda device: device.gpu.render)
    return [
        uuid if uuid is not None and uuids.count(uuid) == 1 else str(by_render.index(device))
        for uuid, device in zip(uuids, chosen, strict=True)
    ]


def nodes_of(chosen: Sequence[Device]) -> list[str]:
    """The paths of the device nodes that a container with these GPUs needs."""
    nodes = ["/dev/kfd"]
    for device in chosen:
        if device.gpu.card is not None:
            nodes.append(f"/dev/dri/card{device.gpu.card}")
        nodes.append(f"/dev/dri/renderD{device.gpu.render}")
    return nodes
