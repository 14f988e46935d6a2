# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.tools import vramsnoop
from bpf.tools.vramsnoop import Cgroups, Event

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (SCOPE, "0123456789ab"),
        (SCOPE + "/init.scope", "0123456789ab"),
        (f"kubepods/burstable/pod1/{ID}", "0123456789ab"),
        (f"docker/{'f' * 64}/kubepods/pod1/{ID}", "0123456789ab"),
        ("system.slice/ssh.service", "ssh.service"),
        ("user.slice/a-name-longer-than-the-column", "han-the-column"),
        ("id:4711", "id:4711"),
    ],
)
def test_a_cgroup_is_named_by_its_innermost_container(path: str, name: str) -> None:
    assert vramsnoop.container_of(path) == name


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_size_loses_nothing(size: int) -> None:
    text = vramsnoop.size_text(size)
    units = {"G": 30, "M": 20, "K": 10}
    shift = units.get(text[-1], 0)
    assert int(text.rstrip("GMK")) << shift == size


def test_a_line_stays_below_80_columns_at_its_longest() -> None:
    longest = event(pid=4194304, comm="c" * 15, size=-(192 << 30), via="dumb")
    assert len(vramsnoop.line(longest, "23:59:59")) < 80
    assert len(vramsnoop.HEADER) < 80


def test_columns_stand_below_their_names() -> None:
    row = vramsnoop.line(event(), "12:00:00")
    assert row == ("12:00:00    1234 python3         0123456789ab   0000:c1:00.0      +256M kfd")
    assert vramsnoop.HEADER.index("GPU") == row.index("0000:c1")
    assert vramsnoop.HEADER.index("VIA") == row.index("kfd")


@pytest.mark.parametrize(
    ("argv", "through"),
    [
        ([], True),
        (["--pid", "1234"], True),
        (["--pid", "1"], False),
        (["--gpu", "0000:c1:00.0"], True),
        (["--gpu", "0000:c2:00.0"], False),
        (["--container", ID], True),
        (["--container", ID[:12]], True),
        (["--container", "/" + POD + "/"], True),
        (["--container", POD[:-1]], False),
        (["--container", "f" * 12], False),
        (["--pid", "1234", "--gpu", "0000:c2:00.0"], False),
    ],
)
def test_every_filter_given_must_match(argv: list[str], through: bool) -> None:
    assert vramsnoop.wanted(event(), vramsnoop.parser().parse_args(argv)) is through


def test_cgroups_are_found_by_inode_and_remembered_after_they_are_gone(tmp_path: Path) -> None:
    scope = tmp_path / SCOPE
    scope.mkdir(parents=True)
    number = scope.stat().st_ino
    cgroups = Cgroups(tmp_path)
    assert cgroups.path(number) == SCOPE
    scope.rmdir()
    assert cgroups.path(number) == SCOPE


def test_a_cgroup_made_after_the_first_look_is_found(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    assert cgroups.path(1) == "id:1"
    (tmp_path / "late").mkdir()
    assert cgroups.path((tmp_path / "late").stat().st_ino) == "late"


def test_without_bcc_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bcc", None)
    assert vramsnoop.main([]) == 1
    message = capsys.readouterr().err
    assert message.startswith("vramsnoop: BCC's Python module is missing")
    assert "python3-bpfcc" in message
    assert message.count("\n") == 1


def test_importing_it_changes_no_environment() -> None:
    assert "BCC_KERNEL_SOURCE" not in os.environ
