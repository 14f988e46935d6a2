# SPDX-License-Identifier: Apache-2.0
"""From the slices given out to the limits on the cgroups that are there."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from enforcer.model import ContainerKind, Limit, pci_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from enforcer.model import Container, PodCgroup, Slice


def limits(
    slices: Iterable[Slice], pods: Iterable[PodCgroup], containers: Iterable[Container]
) -> list[Limit]:
    """Every limit that has to be in place, pods before containers.

    A pod without slices has no limits. In a pod with slices, a container that the runtime's record
    does not name yet gets the pod's smallest slice on each GPU: it could be any of them. A sandbox,
    and a container that asked for no GPU, are held by the pod's limit alone.
    """
    by_pod: defaultdict[str, list[Slice]] = defaultdict(list)
    for one in slices:
        by_pod[one.pod_uid].append(one)
    wanted = [
        Limit(pod.path, pod.cgroup_id, bdf, size, count)
        for pod in pods
        for bdf, (size, count) in pod_limits(by_pod.get(pod.uid, ())).items()
    ]
    for container in containers:
        shares = _container_limits(container, by_pod.get(container.pod.uid, ()))
        wanted.extend(
            Limit(container.path, container.cgroup_id, bdf, size) for bdf, size in shares.items()
        )
    return wanted


def pods_by_cgroup(pods: Iterable[PodCgroup], containers: Iterable[Container]) -> dict[int, int]:
    """Id of each pod's and container's cgroup -> that of its pod's."""
    found = {pod.cgroup_id: pod.cgroup_id for pod in pods}
    found.update((one.cgroup_id, one.pod.cgroup_id) for one in containers)
    return found


def pending_limits(slices: Iterable[Slice], pods: Iterable[PodCgroup]) -> list[Limit]:
    """What a cgroup made below each pod may hold until it is known which container it is.

    The gate enters it in the kernel, before the container's first instruction. ``path`` and
    ``cgroup_id`` are the pod's.
    """
    by_pod: defaultdict[str, list[Slice]] = defaultdict(list)
    for one in slices:
        by_pod[one.pod_uid].append(one)
    return [
        Limit(pod.path, pod.cgroup_id, bdf, size)
        for pod in pods
        for bdf, size in _smallest(by_pod.get(pod.uid, ())).items()
    ]


def pod_limits(slices: Sequence[Slice]) -> dict[str, tuple[int | None, int]]:
    """What one pod may hold of each GPU, and how many slices that covers at once.

    As the scheduler books it: the greater of the largest init container and the sum of sidecars and
    app containers. None, accounted only, if any of the pod's shares is the whole GPU.
    """
    limits: dict[str, tuple[int | None, int]] = {}
    sizes = [(one.kind, gpu_shares(one)) for one in slices]
    for bdf in sorted({bdf for _, shares in sizes for bdf in shares}):
        here = [(kind, shares[bdf]) for kind, shares in sizes if bdf in shares]
        count = max(1, sum(kind is not ContainerKind.INIT for kind, _ in here))
        if any(size is None for _, size in here):
            limits[bdf] = None, count
            continue
        init = [size for kind, size in here if kind is ContainerKind.INIT and size is not None]
        running = [size for kind, size in here if kind is not ContainerKind.INIT and size]
        limits[bdf] = max(max(init, default=0), sum(running)), count
    return limits


def gpu_shares(one: Slice) -> dict[str, int | None]:
    """Bytes a slice holds of each GPU; the shares of several partitions of one GPU add up."""
    sizes: dict[str, int | None] = {}
    for share in one.shares:
        before = sizes.get(share.bdf, 0)
        whole = before is None or share.vram_bytes is None
        sizes[share.bdf] = None if whole else (before or 0) + (share.vram_bytes or 0)
    return sizes


def cu_masks(
    slices: Iterable[Slice], containers: Iterable[Container]
) -> dict[tuple[int, int], int]:
    """(cgroup id, GPU's key) -> the CUs of the container's share, bit n for CU n.

    Only for containers the runtime's record names: of another nobody knows which slice it has. A
    share without a list of CUs, or of a whole partition, may use them all and has no entry.
    """
    by_container = {(one.pod_uid, one.container): one for one in slices}
    masks: defaultdict[tuple[int, int], int] = defaultdict(int)
    for container in containers:
        one = by_container.get((container.pod.uid, container.name or ""))
        for share in () if one is None else one.shares:
            if share.cus is not None and share.partition is None:
                masks[container.cgroup_id, pci_key(share.bdf)] |= cu_bits(share.cus)
    return dict(masks)


def cu_bits(ids: str) -> int:
    """The bits of an id list as in ``Share.cus``: ``0-3,8`` is 0x10f. Raises ValueError."""
    bits = 0
    for part in ids.split(","):
        first, dash, last = part.partition("-")
        start, end = int(first), int(last if dash else first) + 1
        if start < end:
            bits |= (1 << end) - (1 << start)
    return bits


def _container_limits(container: Container, slices: Sequence[Slice]) -> Mapping[str, int | None]:
    if container.sandbox:
        return {}
    if container.name is not None:
        own = [gpu_shares(one) for one in slices if one.container == container.name]
        return own[0] if own else {}
    return _smallest(slices)


def _smallest(slices: Iterable[Slice]) -> dict[str, int | None]:
    """The pod's smallest share of each GPU."""
    smallest: dict[str, int | None] = {}
    for one in slices:
        for bdf, size in gpu_shares(one).items():
            known = [known for known in (smallest.get(bdf), size) if known is not None]
            smallest[bdf] = min(known, default=None)
    return smallest
