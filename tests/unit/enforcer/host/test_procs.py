# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from enforcer.host import procs
from enforcer.host.files import FileError, FileVanished


def test_processes_of_child_cgroups_belong_to_the_container(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("10\n11\n")
    (tmp_path / "own/deep").mkdir(parents=True)
    (tmp_path / "own/cgroup.procs").write_text("")
    (tmp_path / "own/deep/cgroup.procs").write_text("12\n0\n")
    assert procs.pids(tmp_path) == ({10, 11, 12}, [])


def test_a_cgroup_that_is_gone_has_no_processes(tmp_path: Path) -> None:
    assert procs.pids(tmp_path / "gone") == (set(), [])


def test_a_cgroup_that_cannot_be_read_is_reported_and_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("10\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/cgroup.procs").write_text("many\n")
    found, problems = procs.pids(tmp_path)
    assert found == {10}
    assert len(problems) == 1


def _write(proc: Path, text: str) -> None:
    (proc / "7").mkdir()
    (proc / "7/cgroup").write_text(text)


def test_the_unified_line_is_the_cgroup(tmp_path: Path) -> None:
    _write(tmp_path, "4:memory:/old\n0::/kubepods.slice/a.scope\n")
    assert procs.cgroup_path(tmp_path, 7) == "kubepods.slice/a.scope"


def test_a_process_in_the_root_has_an_empty_path(tmp_path: Path) -> None:
    _write(tmp_path, "0::/\n")
    assert procs.cgroup_path(tmp_path, 7) == ""


def test_a_removed_cgroup_keeps_its_path(tmp_path: Path) -> None:
    _write(tmp_path, "0::/kubepods.slice/a.scope (deleted)\n")
    assert procs.cgroup_path(tmp_path, 7) == "kubepods.slice/a.scope"


def test_a_pure_cgroup1_process_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path, "4:memory:/old\n")
    with pytest.raises(FileError, match="no cgroup2 hierarchy"):
        procs.cgroup_path(tmp_path, 7)


def test_an_exited_process_is_vanished(tmp_path: Path) -> None:
    with pytest.raises(FileVanished):
        procs.cgroup_path(tmp_path, 7)
