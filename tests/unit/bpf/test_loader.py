# SPDX-License-Identifier: Apache-2.0
"""What of the loader needs no kernel that takes our programs; the rest is in tests/vm."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from bpf import loader
from bpf.libbpf import BpfError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_object_leaves_no_link_and_no_map(tmp_path: Path) -> None:
    root = tmp_path / "ringfence" / "1"
    with pytest.raises(BpfError, match="no such BPF object"):
        loader.load_gate(tmp_path / "gate.bpf.o", root)
    assert list(root.iterdir()) == []


def test_a_broken_object_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "gate.bpf.o"
    broken.write_bytes(b"broken")
    with pytest.raises(BpfError) as error:
        loader.load_gate(broken, tmp_path / "pins")
    assert str(error.value).startswith(f"{broken}: not a BPF object we can open")
    assert "\n" not in str(error.value)


def test_a_place_that_cannot_hold_pins_says_what_to_mount(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BpfError, match="mount -t bpf bpf /sys/fs/bpf"):
        loader.load_gate(tmp_path / "gate.bpf.o", tmp_path / "file" / "1")


def test_two_loaders_at_once_are_told_apart(tmp_path: Path) -> None:
    holder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(BpfError, match="another process is loading"):
            loader.load_gate(tmp_path / "gate.bpf.o", tmp_path)
    finally:
        os.close(holder)


@pytest.mark.parametrize("programs", [0, 3, 30])
def test_a_record_is_a_path_that_leads_nowhere(tmp_path: Path, programs: int) -> None:
    record = {
        "build": "b" * 64,
        "left_out": {f"p{n}": "no /x//y/../z: \u00fc" for n in range(programs)},
    }
    link = tmp_path / "record"
    link.symlink_to(loader._encode(record))
    assert loader._decode(link.readlink().as_posix()) == record
    assert not link.exists()


def test_opening_maps_where_nothing_is_pinned_names_the_first(tmp_path: Path) -> None:
    with pytest.raises(BpfError, match=f"{tmp_path}/active: cannot open the pinned map"):
        loader.open_maps(tmp_path)


def test_unloading_where_nothing_is_loaded_does_nothing(tmp_path: Path) -> None:
    loader.unload(tmp_path / "ringfence" / "1")
    assert list(tmp_path.iterdir()) == []


def test_unloading_removes_links_maps_and_directories_but_not_another_schema(
    tmp_path: Path,
) -> None:
    root = tmp_path / "ringfence" / "1"
    (root / "3").mkdir(parents=True)
    (root / "4").mkdir()
    for pin in ("limits", "3/gate_file_ioctl", "4/ledger_bo_create"):
        (root / pin).touch()
    other = tmp_path / "ringfence" / "2"
    other.mkdir()
    loader.unload(root)
    assert list(tmp_path.rglob("*")) == [tmp_path / "ringfence", other]
    other.rmdir()
    root.mkdir()
    loader.unload(root)
    assert list(tmp_path.iterdir()) == []


def test_the_self_test_call_is_let_through_where_no_gate_is_attached() -> None:
    assert loader._ioctl_errno(1) not in (0, loader._SELF_TEST_ERRNO)


def test_only_functions_the_kernel_has_are_found_among_its_symbols() -> None:
    assert loader._symbols(frozenset({"vfs_read", "vfs_read_no_such"})) == {"vfs_read"}
