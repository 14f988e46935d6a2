# SPDX-License-Identifier: Apache-2.0
"""PreStartContainer: a container starts once its slice is held."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from deviceplugin.allocate import gives_hook, nodes_of
from deviceplugin.cdi import KFD, KIND, cdi_name
from deviceplugin.devices import GONE, gpu_key, share_key
from deviceplugin.record import RecordError
from enforcer.api.client import EnforcerError
from enforcer.model import Why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from deviceplugin.allocate import Answer
    from deviceplugin.devices import Device
    from deviceplugin.hook import Hook
    from deviceplugin.podresources import PodDevices
    from enforcer.api.client import Client
    from enforcer.model import Protection, Slice

_PAUSE_SECONDS = 0.3
_LEAST_SECONDS = 0.1
_SNAPSHOT_SECONDS = 2.0
_GPU_NAME = re.compile(rf"(/dev/dri/|{KIND}=)(card|renderD)[0-9]+")
_REMAKE = "a new pod is given it where it is installed: delete this one"

_log = logging.getLogger(__name__)


def slices_to_hold(slices: Sequence[Slice], device_ids: Sequence[str]) -> list[Slice]:
    """The slices that kubelet means by its device ids. Pure.

    An init container and the containers after it share ids, and all are the pod's. An older pod
    that had them is over for kubelet, so the last pod counts.
    """
    wanted = sorted(device_ids)
    same = [item for item in slices if sorted(item.device_ids) == wanted]
    return [item for item in same if item.pod_uid == same[-1].pod_uid]


def holders_of(device_ids: Sequence[str], held: PodDevices | None) -> list[tuple[str, str]]:
    """The (namespace, name) of the pods that have a container with these devices. Pure.

    ``held`` is kubelet's record, None if it cannot be read.
    """
    ids = set(device_ids)
    return [
        pod
        for pod, containers in (held or {}).items()
        if any(ids <= set(container) for container in containers.values())
    ]


def mistaken(items: Sequence[Slice], holders: Sequence[tuple[str, str]]) -> str | None:
    """Why slices are not those of the pod that kubelet starts; None if they may be. Pure.

    Allocate names no pod. One that was bound past the scheduler a moment ago can be answered with
    the slice of the pod that waits for its own, as long as the watch has not told of it; kubelet's
    record of who holds the devices does.
    """
    mine = items[0].namespace, items[0].pod
    if not holders or mine in holders:
        return None
    return (
        f"kubelet starts pod {' or '.join('/'.join(pod) for pod in holders)} with the devices that "
        f"were given for pod {'/'.join(mine)}: was it placed by another scheduler?"
    )


def renumbered(item: Slice, devices: Iterable[Device], given: Iterable[Answer]) -> str | None:
    """Why what kubelet gives to a container is not of its GPUs any more; None if it may be. Pure.

    The numbers of cards and render nodes are the driver's to give anew, at boot and when it is
    loaded, and kubelet gives at each start what it was once told: ``given``, an answer for each
    resource. A GPU of the slice that is not among ``devices`` may be there all the same.
    """
    wanted = {share_key(share) for share in item.shares}
    there = [device for device in devices if device.why != GONE]
    own = [device for device in there if device.key in wanted]
    names = _names(own)
    others = _names(device for device in there if device.key not in wanted)
    moved: set[str] = set()
    for one in given:
        had = set(filter(_GPU_NAME.fullmatch, (*one.devices, *one.names)))
        wrong = had & others if len(own) < len(wanted) else had - names | had & others
        if had and not wrong:
            return None
        moved |= wrong
    if not moved:
        return None
    now = ", ".join(path for path in nodes_of(own) if path != KFD) or "not there"
    return (
        f"its GPU has another number since: kubelet gives it {', '.join(sorted(moved))}, and GPU "
        f"{', '.join(sorted(wanted))} is {now} now: delete this pod"
    )


def _names(devices: Iterable[Device]) -> set[str]:
    """What kubelet can be told to give for these GPUs alone."""
    one_by_one = [(*nodes_of([device]), cdi_name(device)) for device in devices]
    return {name for names in one_by_one for name in names} - {KFD}


class _NoImageError(Exception):
    """The runtime has no such image; the message says why the slice is not held."""


class Holder:
    """Asks the enforcer, over its local API."""

    def __init__(
        self,
        client: Client,
        image: Callable[[str, str], str],
        installed: Callable[[], Hook | None],
        recorded: Callable[[str, str], Sequence[Answer]],
        run: Path,
    ) -> None:
        """``image`` names that of a container, by UID of the pod and name; "" is not known.

        ``installed`` looks for the hook on the node; ``recorded`` tells what kubelet gives a
        container, or raises RecordError; ``run`` is the enforcer's directory.
        """
        self._client = client
        self._image = image
        self._installed = installed
        self._recorded = recorded
        self._run = run

    def renumbered(self, items: Sequence[Slice], devices: Sequence[Device]) -> str | None:
        """Why kubelet gives a container of these slices what is not of its GPUs; None if none.

        A driver that is loaded anew ends containers, and kubelet starts them at once: by the
        numbers that the enforcer knows now, where it tells.
        """
        now: Sequence[Device] = ()
        for item in items:
            try:
                given = self._recorded(item.pod_uid, item.container)
            except RecordError:
                continue
            # Asked once: an enforcer that hangs takes its time at each question.
            now = now or self._as_now(devices)
            why = renumbered(item, now, given)
            if why is not None:
                return f"pod {item.namespace}/{item.pod}, container {item.container}: {why}"
        return None

    def _as_now(self, devices: Sequence[Device]) -> list[Device]:
        try:
            gpus = self._client.snapshot(_SNAPSHOT_SECONDS).gpus
        except EnforcerError:
            return list(devices)
        now = {gpu_key(gpu): gpu for gpu in gpus}
        return [replace(one, gpu=now.get(one.key, one.gpu)) for one in devices]

    def hold(self, items: Sequence[Slice], timeout: float) -> str | None:
        """None once every slice is held; else why one is not, after at most ``timeout`` seconds.

        ``items`` are those of which kubelet may mean one. It asks when it has pulled the image of
        the container it starts: one whose image is not there is another one, as long as there is
        one with an image that loads the hook.
        """
        deadline = time.monotonic() + timeout
        absent = []
        for item in items:
            title = f"pod {item.namespace}/{item.pod}, container {item.container}"
            try:
                why = self._hold(item, deadline)
            except _NoImageError as error:
                absent.append(f"{title}: {error}")
                continue
            if why is not None:
                return f"{title}: {why}"
        # A whole GPU needs no image: of its container nothing is known.
        return absent[0] if absent and len(absent) == sum(map(_limited, items)) else None

    def _hold(self, item: Slice, deadline: float) -> str | None:
        """None once it is held; else why not. Raises _NoImageError."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "no time was left to ask the enforcer: does it hang? See `ringfence doctor`"
            try:
                answer = self._client.prepare(item.pod_uid, item.container, timeout=left)
            except EnforcerError as error:
                # An enforcer that is being replaced is back in a moment; one that looked for the
                # slice and the pod's cgroup has waited for them already.
                if error.not_found or left < 2 * _PAUSE_SECONDS:
                    return str(error)
                time.sleep(_PAUSE_SECONDS)
            else:
                why = _missing(item, answer)
                return why and self._by_hook(item, why, deadline, never=_never(item, answer))

    def _by_hook(self, item: Slice, why: str, deadline: float, *, never: bool) -> str | None:
        """None if the hook will hold a slice that the kernel does not; else why neither does.

        It is enough only where the kernel can have no layer at all, on this node or (``never``) on
        these GPUs, and then only in an image that loads it: nothing tells later that a container
        went without.
        """
        try:
            if not (never or self._client.host_support(_left(deadline)).kernel_can_hold_nothing):
                return why
        except EnforcerError as error:
            return f"{why}; whether the kernel could hold it is not known: {error}"
        lack = self._lack(item)
        return self._by_image(item, why, deadline) if lack is None else f"{why}; {lack}"

    def _lack(self, item: Slice) -> str | None:
        """Why a container is not given the hook at this start; None if it is."""
        if item.hook is False:
            return f"it was given no hook, as there was none: {_REMAKE}"
        hook = self._installed()
        if hook is None:
            return "the hook is not installed any more: see `ringfence doctor` for what is missing"
        if item.hook is None:
            # The slice of a pod that an older plugin served, or whose checkpoint was lost.
            try:
                given = self._recorded(item.pod_uid, item.container)
            except RecordError as error:
                return f"whether it was given the hook is not known: {error}: {_REMAKE}"
            if not any(gives_hook(one, item, hook, self._run) for one in given):
                return f"kubelet gives it no hook of this installation: {_REMAKE}"
        return None

    def _by_image(self, item: Slice, why: str, deadline: float) -> str | None:
        """None if the container's image loads the hook. Raises _NoImageError."""
        image = self._image(item.pod_uid, item.container)
        if not image:
            return f"{why}; its image is not known, so the hook may not be loaded"
        try:
            found = self._client.image_libc(
                item.pod_uid, item.container, image, timeout=_left(deadline)
            )
        except EnforcerError as error:
            text = f"{why}; whether its image loads the hook is not known: {error}"
            if error.not_found:
                raise _NoImageError(text) from error
            return text
        if not found.tool_loads:
            return f"{why}; image {image} cannot load the hook: {'; '.join(found.notes)}"
        _log.warning(
            "pod %s/%s, container %s: %s; the hook alone holds it, in image %s with %s %s",
            *(item.namespace, item.pod, item.container, why, image, found.libc, found.version),
        )
        return None


def _left(deadline: float) -> float:
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def _limited(item: Slice) -> bool:
    return any(share.vram_bytes is not None for share in item.shares)


def _never(item: Slice, answer: Sequence[tuple[Protection, bool]]) -> bool:
    """True if no layer of the kernel is ever possible for those limits that none holds."""
    reasons = {
        protection.bdf: {state.reason for state in protection.layers}
        for protection, _ in answer
        if not protection.held
    }
    told = {protection.bdf for protection, _ in answer}
    limited = {share.bdf for share in item.shares if share.vram_bytes is not None}
    return limited <= told and all(
        reasons[bdf] == {Why.SYSTEM_MEMORY} for bdf in limited & reasons.keys()
    )


def _missing(item: Slice, answer: Sequence[tuple[Protection, bool]]) -> str | None:
    protections = {protection.bdf: protection for protection, _ in answer}
    for share in item.shares:
        if share.vram_bytes is None:
            continue
        protection = protections.get(share.bdf)
        if protection is None:
            return f"the enforcer said nothing of its limit on GPU {share.bdf}"
        if not protection.held:
            layers = "; ".join(f"{state.layer} {state}" for state in protection.layers)
            return f"nothing holds its limit on GPU {share.bdf} ({layers or 'no layer'})"
    return None
