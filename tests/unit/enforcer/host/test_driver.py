# SPDX-License-Identifier: Apache-2.0
"""Whether amdgpu is a module or part of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from enforcer.host.driver import builtin_majors, idle, settled
from enforcer.host.files import FileError

if TYPE_CHECKING:
    from pathlib import Path


def tree(root: Path, *, module: bool, dev: str | None) -> Path:
    (root / "module/amdgpu").mkdir(parents=True)
    if module:
        (root / "module/amdgpu/initstate").write_text("live\n")
    if dev is not None:
        (root / "class/kfd/kfd").mkdir(parents=True)
        (root / "class/kfd/kfd/dev").write_text(dev)
    return root


def test_without_the_driver_there_are_none(tmp_path: Path) -> None:
    assert builtin_majors(tmp_path) == frozenset()


def test_a_module_s_files_are_known_by_their_owner(tmp_path: Path) -> None:
    assert builtin_majors(tree(tmp_path, module=True, dev="234:0\n")) == frozenset()


def test_a_built_in_driver_s_files_are_known_by_their_majors(tmp_path: Path) -> None:
    assert builtin_majors(tree(tmp_path, module=False, dev="234:0\n")) == {226, 234}


@pytest.mark.parametrize("text", ["", "234\n", "kfd:0\n"])
def test_a_malformed_number_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError, match="kfd/dev"):
        builtin_majors(tree(tmp_path, module=False, dev=text))


def test_a_built_in_driver_may_be_without_kfd(tmp_path: Path) -> None:
    assert builtin_majors(tree(tmp_path, module=False, dev=None)) == {226}


@pytest.mark.parametrize(
    ("state", "expected"), [("coming", False), ("going", False), ("live", True), (None, True)]
)
def test_a_driver_is_settled_when_its_module_is_live_or_it_has_none(
    tmp_path: Path, state: str | None, expected: bool
) -> None:
    if state is not None:
        (tmp_path / "module/amdgpu").mkdir(parents=True)
        (tmp_path / "module/amdgpu/initstate").write_text(f"{state}\n")
    assert settled(tmp_path) == expected


def test_a_driver_without_a_device_is_idle(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/drivers/amdgpu"
    assert not idle(tmp_path)
    folder.mkdir(parents=True)
    (folder / "bind").touch()
    assert idle(tmp_path)
    (folder / "0000:03:00.0").symlink_to("../../../../devices/pci0000:00/0000:03:00.0")
    assert not idle(tmp_path)
