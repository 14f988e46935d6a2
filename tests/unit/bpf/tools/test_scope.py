# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.tools import scope
from bpf.tools.scope import Cgroups

if TYPE_CHECKING:
    from pathlib import Path

ID = "0123456789ab" + "c" * 52
POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
SCOPE = f"{POD}/cri-containerd-{ID}.scope"


@dataclass(frozen=True)
class Subject:
    pid: int = 1234
    cgroup: str = SCOPE
    gpu: str = "0000:c1:00.0"


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scope.add_filters(parser)
    return parser.parse_args(argv)


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
    assert scope.container_of(path) == name


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_size_loses_nothing(size: int) -> None:
    text = scope.size_text(size)
    units = {"G": 30, "M": 20, "K": 10}
    shift = units.get(text[-1], 0)
    assert int(text.rstrip("GMK")) << shift == size


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
    assert scope.wanted(Subject(), options(*argv)) is through


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


def test_without_gpus_there_is_no_filter_for_them() -> None:
    parser = argparse.ArgumentParser()
    scope.add_filters(parser, gpu=False)
    assert scope.wanted(Subject(), parser.parse_args([]))
    with pytest.raises(SystemExit):
        parser.parse_args(["--gpu", "0000:c1:00.0"])


def test_an_address_is_unpacked_as_the_kernel_packs_it() -> None:
    assert scope.bdf(0x1 << 16 | 0xC1 << 8 | 3 << 3 | 7) == "0001:c1:03.7"
