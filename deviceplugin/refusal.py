# SPDX-License-Identifier: Apache-2.0
"""What kubelet is told when nothing is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deviceplugin.pod import Pod


class RefusalError(Exception):
    """An Allocate that gets nothing; the text is for the pod's events."""

    def __init__(self, message: str, pod: Pod | None = None) -> None:
        super().__init__(message)
        self.pod = pod
        """The pod whose binding failed by it; None where no pod could be named."""
