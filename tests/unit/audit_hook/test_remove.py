# SPDX-License-Identifier: Apache-2.0
"""What was installed goes, whatever else is in the directory stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from audit_hook import remove as remove_module
from audit_hook.install import CURRENT
from audit_hook.remove import main, remove

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def installed(directory: Path) -> None:
    for version in ("0f3a9c1d2b7e", "aaaaaaaaaaaa"):
        (directory / version).mkdir(parents=True)
        (directory / version / "libringfence-hsa.so").write_bytes(b"\x7fELF")
    (directory / CURRENT).symlink_to("0f3a9c1d2b7e")
    (directory / f".{CURRENT}.new").symlink_to("aaaaaaaaaaaa")


def test_every_version_goes_and_so_does_what_points_to_one(tmp_path: Path) -> None:
    installed(tmp_path)
    assert remove(tmp_path) == []
    assert [*tmp_path.iterdir()] == []
    assert remove(tmp_path) == []


def test_what_is_not_of_the_hook_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody may have chosen a directory that holds other things."""
    beside, hook = tmp_path / "beside", tmp_path / "hook"
    beside.mkdir()
    (beside / "file").write_text("")
    installed(hook)
    (hook / "libvgpu.so").write_text("")
    (hook / "bin").mkdir()
    (hook / "0f3a9c1d2b7f").symlink_to(beside)
    (hook / "0f3a9c1d2b70").write_text("a file")
    assert main([str(hook)]) == 0
    left = ["0f3a9c1d2b70", "0f3a9c1d2b7f", "bin", "libvgpu.so"]
    assert sorted(one.name for one in hook.iterdir()) == left
    assert ", ".join(left) in capsys.readouterr().out
    assert (beside / "file").exists()


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert main([str(tmp_path / "gone")]) == 0


def test_what_cannot_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path)

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(remove_module.shutil, "rmtree", refused)
    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path}/0f3a9c1d2b7e: Permission denied" in capsys.readouterr().err
