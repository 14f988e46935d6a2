# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.host import dmem
from enforcer.host.cgroups import Directory
from enforcer.host.files import FileError, FileVanished

REGION = "drm/0000:03:00.0/vram"
OTHER = "drm/0000:43:00.0/vram"


def test_capacity_is_bytes_by_region(tmp_path: Path) -> None:
    (tmp_path / "dmem.capacity").write_text(f"{REGION} 17095983104\n{OTHER} 8589934592\n")
    assert dmem.capacity(tmp_path) == {REGION: 17095983104, OTHER: 8589934592}


def test_without_the_controller_there_is_no_capacity(tmp_path: Path) -> None:
    assert dmem.capacity(tmp_path) == {}


def test_an_empty_file_has_no_regions(tmp_path: Path) -> None:
    (tmp_path / "dmem.current").write_text("")
    assert dmem.current(tmp_path) == {}


def test_max_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "dmem.max").write_text(f"{REGION} max\n{OTHER} 4096\n")
    assert dmem.maximum(tmp_path) == {REGION: None, OTHER: 4096}


@pytest.mark.parametrize("text", [REGION, f"{REGION} 1 2", f"{REGION} lots", f"{REGION} 1\nx\n"])
def test_a_malformed_line_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "dmem.max").write_text(text)
    with pytest.raises(FileError, match=str(tmp_path / "dmem.max")) as caught:
        dmem.maximum(tmp_path)
    assert not isinstance(caught.value, FileVanished)


@pytest.mark.parametrize("read", [dmem.current, dmem.maximum, dmem.peak])
def test_a_missing_file_is_vanished(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(FileVanished):
        read(tmp_path / "gone")


@pytest.mark.parametrize("read", [dmem.capacity, dmem.current, dmem.maximum, dmem.peak])
def test_a_file_that_cannot_be_read_is_not_vanished(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / f"dmem.{read.__name__.replace('maximum', 'max')}"
    path.symlink_to(path)
    with pytest.raises(FileError, match=f"{path}: cannot read: Too many levels") as caught:
        read(tmp_path)
    assert not isinstance(caught.value, FileVanished)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "dmem.max").write_bytes(b"\xff 1\n")
    with pytest.raises(FileError):
        dmem.maximum(tmp_path)


def test_a_region_is_found_in_any_case_and_spelled_as_the_kernel_does() -> None:
    names = ["drm/0000:0C:00.0/vram", "drm/0000:43:00.0/gtt", "drm/0000:44:00.0/vram0"]
    bdfs = ["0000:0c:00.0", "0000:43:00.0", "0000:44:00.0"]
    assert dmem.regions(names, bdfs) == {"0000:0c:00.0": "drm/0000:0C:00.0/vram"}


def test_an_assignment_is_one_line_of_one_region(tmp_path: Path) -> None:
    files = dmem.DmemFiles(Directory(tmp_path))
    files.max = dmem.RegionBytes(REGION, 4096)
    assert (tmp_path / "dmem.max").read_text() == f"{REGION} 4096"
    files.max = dmem.RegionBytes(REGION, None)
    assert (tmp_path / "dmem.max").read_text() == f"{REGION} max"


def test_an_assignment_to_a_vanished_cgroup_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dmem.DmemFiles(Directory(tmp_path / "gone")).max = dmem.RegionBytes(REGION, 4096)


@given(st.from_regex(r"[!-~]+", fullmatch=True), st.none() | st.integers(min_value=0))
def test_every_line_comes_back(region: str, size: int | None) -> None:
    line = dmem.RegionBytes.from_string(str(dmem.RegionBytes(region, size)))
    assert (line.region, line.size) == (region, size)


@given(st.text())
def test_any_text_is_a_line_or_a_file_error(text: str) -> None:
    with suppress(FileError):
        dmem.RegionBytes.from_string(text)
