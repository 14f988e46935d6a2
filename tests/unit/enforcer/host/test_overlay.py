# SPDX-License-Identifier: Apache-2.0
"""What is asked of the kernel; what comes of it is in the virtual node's test_image_layers.py."""

import ctypes
import errno
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


@pytest.mark.parametrize(
    ("effective", "said"),
    [
        # Four of the chart's, of none of them, and all.
        ("0000000000a80002", r"takes CAP_SYS_CHROOT: set enforcer\.privileged to true$"),
        ("0", "takes CAP_SYS_CHROOT and CAP_SYS_PTRACE and CAP_SYS_ADMIN: set "),
        ("000001ffffffffff", "which AppArmor, SELinux or seccomp may forbid: see "),
    ],
)
def test_who_may_not_enter_the_hosts_mounts_is_told_what_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effective: str, said: str
) -> None:
    def setns(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(setns=setns))
    for name in ("1/ns", "self"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "1/ns/mnt").touch()
    (tmp_path / "self/status").write_text(f"CapPrm:\t0\nCapEff:\t{effective}\nCapBnd:\t0\n")
    with pytest.raises(PermissionError, match=f"1/ns/mnt: Operation not permitted: .*{said}"):
        overlay.enter_mounts(tmp_path)
