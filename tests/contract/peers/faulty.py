# SPDX-License-Identifier: Apache-2.0
"""The device plugin that dies, as by ``kill -9``, at a chosen point between two side effects.

``python -m tests.contract.peers.faulty POINT OPTION...``
"""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import deviceplugin.checkpoint
from deviceplugin.apiserver import ApiServer
from deviceplugin.main import main
from enforcer.slices import write_document

if TYPE_CHECKING:
    from collections.abc import Callable


class Point(StrEnum):
    """Where it dies."""

    BEFORE_CHECKPOINT = "before-checkpoint"
    AFTER_CHECKPOINT = "after-checkpoint"
    BEFORE_POD_PATCH = "before-pod-patch"
    AFTER_POD_PATCH = "after-pod-patch"
    BEFORE_UNLOCK = "before-unlock"
    AFTER_UNLOCK = "after-unlock"


_ANSWER_SECONDS = 0.5
"""What a pod is owed is patched beside the answer to kubelet: time for that to get there."""


def _dying(
    call: Callable[..., Any], after: bool, when: Callable[..., bool], pause: float = 0
) -> Callable[..., Any]:
    def die(*args: Any, **more: Any) -> Any:
        if not when(*args):
            return call(*args, **more)
        time.sleep(pause)
        if after:
            call(*args, **more)
        os._exit(9)

    return die


def arm(point: Point) -> None:
    """Make the first side effect of this kind the last thing the process does."""
    after = point.value.startswith("after")
    if point in {Point.BEFORE_CHECKPOINT, Point.AFTER_CHECKPOINT}:
        dying = _dying(write_document, after, lambda *_: True)
        setattr(deviceplugin.checkpoint, write_document.__name__, dying)
    elif point in {Point.BEFORE_POD_PATCH, Point.AFTER_POD_PATCH}:
        ApiServer.patch_pod = _dying(ApiServer.patch_pod, after, lambda *_: True, _ANSWER_SECONDS)  # type: ignore[method-assign]
    else:
        ApiServer.patch_node = _dying(  # type: ignore[method-assign]
            ApiServer.patch_node,
            after,
            lambda _, patch, *__: "mutex.lock" in str(patch),
            _ANSWER_SECONDS,
        )


if __name__ == "__main__":
    arm(Point(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
