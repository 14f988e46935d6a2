# SPDX-License-Identifier: Apache-2.0
"""PreStartContainer: the enforcer holds the slice, or the container does not start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from enforcer.api.client import EnforcerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enforcer.api.client import Client
    from enforcer.model import Protection, Slice

_PAUSE_SECONDS = 0.3


def slices_to_hold(slices: Sequence[Slice], device_ids: Sequence[str]) -> list[Slice]:
    """The slices that kubelet means by its device ids. Pure.

    An init container and the containers after it share ids, and all are the pod's. An older pod
    that had them is over for kubelet, so the last pod counts.
    """
    wanted = sorted(device_ids)
    same = [item for item in slices if sorted(item.device_ids) == wanted]
    return [item for item in same if item.pod_uid == same[-1].pod_uid]


class Holder:
    """Asks the enforcer, over its local API."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def hold(self, items: Sequence[Slice], timeout: float) -> str | None:
        """None once every slice is held; else why one is not, after at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for item in items:
            why = self._hold(item, deadline)
            if why is not None:
                return f"pod {item.namespace}/{item.pod}, container {item.container}: {why}"
        return None

    def _hold(self, item: Slice, deadline: float) -> str | None:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "the enforcer was not asked in time"
            try:
                return _missing(
                    item, self._client.prepare(item.pod_uid, item.container, timeout=left)
                )
            except EnforcerError as error:
                # An enforcer that is being replaced is back in a moment; one that looked for the
                # slice and the pod's cgroup has waited for them already.
                if error.not_found or left < 2 * _PAUSE_SECONDS:
                    return str(error)
                time.sleep(_PAUSE_SECONDS)


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
