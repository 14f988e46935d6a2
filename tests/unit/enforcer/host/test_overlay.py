# SPDX-License-Identifier: Apache-2.0
"""What is asked of the kernel; what comes of it is in the virtual node's test_image_layers.py."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from enforcer.host import overlay


def test_a_copy_of_the_hosts_mounts_lets_go_of_what_the_host_unmounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []

    def mount(*arguments: object) -> int:
        assert isinstance(arguments[3], ctypes.c_ulong)
        flags.append(arguments[3].value)
        return 0

    libc = SimpleNamespace(setns=lambda *_: 0, unshare=lambda *_: 0, mount=mount)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").touch()
    overlay.enter_mounts(tmp_path)
    recursive, slave = 1 << 14, 1 << 19
    assert flags == [recursive | slave]
