# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

from bpf.tools import vramsnoop
from bpf.tools.vramsnoop import Event

ID = "0123456789ab" + "c" * 52
POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
SCOPE = f"{POD}/cri-containerd-{ID}.scope"


def event(**changes: object) -> Event:
    fields = {
        "pid": 1234,
        "comm": "python3",
        "cgroup": SCOPE,
        "gpu": "0000:c1:00.0",
        "size": 256 << 20,
        "via": "kfd",
    }
    return Event(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_line_stays_below_80_columns_at_its_longest() -> None:
    longest = event(pid=4194304, comm="c" * 15, size=-(192 << 30), via="dumb")
    assert len(vramsnoop.line(longest, "23:59:59")) < 80
    assert len(vramsnoop.HEADER) < 80


def test_columns_stand_below_their_names() -> None:
    row = vramsnoop.line(event(), "12:00:00")
    assert row == ("12:00:00    1234 python3         0123456789ab   0000:c1:00.0      +256M kfd")
    assert vramsnoop.HEADER.index("GPU") == row.index("0000:c1")
    assert vramsnoop.HEADER.index("VIA") == row.index("kfd")


def test_importing_it_changes_no_environment() -> None:
    assert "BCC_KERNEL_SOURCE" not in os.environ
