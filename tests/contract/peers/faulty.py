# SPDX-License-Identifier: Apache-2.0
"""The device plugin that dies, as by ``kill -9``, before a chosen one of its side effects.

They are counted from the first Allocate on: each file opened for writing, flushed or renamed, and
each request that changes something at the API server. So nobody has to know them by name.

``python -m tests.contract.peers.faulty NUMBER OPTION...``
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from deviceplugin.apiserver import ApiServer
from deviceplugin.main import main
from deviceplugin.server import DevicePlugin

if TYPE_CHECKING:
    from collections.abc import Callable

STATUS = 9
_ANSWER_SECONDS = 0.5
"""What follows an Allocate is done beside its answer: time for that to get to kubelet."""
_WRITING = os.O_WRONLY | os.O_RDWR


class Fuse:
    """Ends the process before the side effect of this number; the first is 1."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._armed = False
        self._count = 0
        self._counting = threading.Lock()

    def arm(self) -> None:
        self._armed = True

    def burn(self, what: str) -> None:
        """A side effect is about to be; none is any more once the process shall die."""
        if not self._armed:
            return
        with self._counting:
            self._count += 1
            if self._count < self._number:
                return
            if not threading.current_thread().name.startswith("kubelet"):
                time.sleep(_ANSWER_SECONDS)
            os.write(2, f"dies before side effect {self._count}: {what}\n".encode())
            os._exit(STATUS)


def install(fuse: Fuse) -> None:
    """Let every side effect pass through the fuse."""

    def counted(
        call: Callable[..., Any], name: str, counts: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        def through(*args: Any, **more: Any) -> Any:
            if counts(*args, **more):
                fuse.burn(f"{name} {args[-2:]}")
            return call(*args, **more)

        return through

    def arming(call: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any) -> Any:
            fuse.arm()
            return call(*args)

        return allocate

    for name, counts in (
        ("open", lambda _path, flags=0, *_, **__: bool(flags & _WRITING)),
        ("fsync", lambda *_: True),
        ("replace", lambda *_, **__: True),
        ("rename", lambda *_, **__: True),
        ("unlink", lambda *_, **__: True),
        ("link", lambda *_, **__: True),
    ):
        setattr(os, name, counted(getattr(os, name), name, counts))
    setattr(  # noqa: B010 - a method, which mypy would not let be replaced
        ApiServer,
        "_call",
        counted(ApiServer._call, "request", lambda _, method, *__: method != "GET"),
    )
    setattr(DevicePlugin, "Allocate", arming(DevicePlugin.Allocate))  # noqa: B010


if __name__ == "__main__":
    install(Fuse(int(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
