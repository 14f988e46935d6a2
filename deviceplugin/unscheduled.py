# SPDX-License-Identifier: Apache-2.0
"""Giving out whole GPUs by kubelet's own choice: Allocate where no scheduler of ours decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deviceplugin.allocate import whole_answer
from deviceplugin.devices import key_of_slot
from deviceplugin.refusal import RefusalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deviceplugin.allocate import Answer
    from deviceplugin.health import Offer

_log = logging.getLogger(__name__)


class Unscheduled:
    """The GPUs and partitions that kubelet picked."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    def booked(self, resource: str, size: int) -> list[str]:
        """Nothing is: the best group is preferred."""
        return []

    def allocate(self, resource: str, device_ids: Sequence[str], deadline: float) -> Answer:
        """The devices of these ids. Raises RefusalError for one that is not there or unhealthy."""
        known = {device.key: device for device in self._offer.devices}
        chosen = []
        for device_id in device_ids:
            device = known.get(key_of_slot(device_id))
            if device is None or device_id not in device.slots or device.resource != resource:
                offered = ", ".join(one.key for one in known.values() if one.resource == resource)
                raise RefusalError(
                    f"{resource}: expected a device of this node ({offered or 'none'}), found "
                    f"{device_id!r}"
                )
            if not device.healthy:
                raise RefusalError(f"{resource}: GPU {device.key} is unhealthy: {device.why}")
            chosen.append(device)
        _log.info("%s: GPU %s given whole", resource, ", ".join(one.key for one in chosen))
        return whole_answer(chosen)
