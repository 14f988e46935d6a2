# SPDX-License-Identifier: Apache-2.0
import errno
import os
import stat
from pathlib import Path

import pytest

from enforcer.host import procs
from enforcer.host.files import FileVanished, unreadable


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


def test_a_threaded_cgroup_is_passed_over_as_its_domain_lists_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.procs").write_text("10\n")
    (tmp_path / "threaded/deep").mkdir(parents=True)
    (tmp_path / "threaded/deep/cgroup.procs").write_text("11\n")
    threaded = tmp_path / "threaded"
    read = procs.read_list

    def read_list(path: Path) -> tuple[str, ...]:
        if path.parent == threaded:
            error = OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            raise unreadable(path, error) from error
        return read(path)

    monkeypatch.setattr(procs, "read_list", read_list)
    assert procs.pids(tmp_path) == ({10, 11}, [])
    found, problems = procs.pids(threaded)
    assert found == {11}
    assert len(problems) == 1


def test_an_environment_is_read_as_the_process_was_started(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/environ").write_bytes(b"A=1\0B=x=y\0A=2\0nonsense\0\xff=z\0")
    assert procs.environment(tmp_path, 7) == {"A": "1", "B": "x=y", "\\xff": "z"}


def test_the_environment_of_nobody_is_vanished(tmp_path: Path) -> None:
    with pytest.raises(FileVanished):
        procs.environment(tmp_path, 7)


def test_devices_are_character_devices_as_the_process_sees_them(tmp_path: Path) -> None:
    dev = tmp_path / "7/root/dev"
    (dev / "dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128"):
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (dev / "dri/by-path").mkdir()
    (dev / "dri/renderD129").symlink_to("/dev/null")
    assert procs.gpu_devices(tmp_path, 7) == ("/dev/kfd", "/dev/dri/renderD128")


def test_a_link_the_process_made_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "7/root/dev").mkdir(parents=True)
    (tmp_path / "7/root/dev/dri").symlink_to("/dev")
    assert procs.gpu_devices(tmp_path, 7) == ()
    assert procs.gpu_devices(tmp_path, 8) == ()
