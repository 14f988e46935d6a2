# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from enforcer import observation
from enforcer.accounting import Observed, observe
from enforcer.host.roots import Roots
from enforcer.model import Gpu, about
from enforcer.observation import read_processes
from tests.testbed.trees import write_process

A = Gpu("0000:03:00.0", 5, 1, 128, "gpu", 1 << 37, 304, 90402)
PARTITIONS = (Gpu("0000:83:00.0", 7, 2, 129, "gpu", 1 << 37, 38, 90402, partition=0),
              Gpu("0000:83:00.0", 8, 3, 130, "gpu", 1 << 37, 38, 90402, partition=1))  # fmt: skip
MIB = 1 << 20


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(sys=tmp_path / "sys", proc=tmp_path / "proc", cgroup=tmp_path / "cgroup")


def _processes(roots: Roots, path: str, *pids: int) -> None:
    directory = roots.cgroup / path
    directory.mkdir(parents=True, exist_ok=True)
    for above in (directory, *directory.parents):
        if above == roots.cgroup.parent:
            break
        above.joinpath("cgroup.procs").touch()
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def _descriptor(roots: Roots, pid: int, number: int, text: str) -> None:
    path = roots.proc / str(pid) / "fdinfo" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _drm(client: int, kib: int) -> str:
    return (
        f"drm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{A.bdf}\n"
        f"drm-total-vram:\t{kib} KiB\ndrm-shared-vram:\t0\ndrm-resident-vram:\t{kib} KiB\n"
    )


def test_a_container_has_the_processes_of_its_own_cgroups_too(roots: Roots) -> None:
    _processes(roots, "pod/c", 11)
    _processes(roots, "pod/c/inner/deeper", 12)
    _processes(roots, "pod/d", 13)
    for pid in (11, 12, 13, 99):
        write_process(roots.sys, pid, {A.kfd_id: MIB})
    _descriptor(roots, 12, 3, "pos:\t0\nflags:\t02\n")
    _descriptor(roots, 12, 4, _drm(7, 3072))
    found, problems = read_processes(roots, roots.cgroup, ["pod", "pod/c", "pod/d"], [A])
    assert problems == []
    assert observe(found, "pod/c", A.bdf) == Observed(2 * MIB, 3 * MIB, 4 * MIB, 4 * MIB)
    assert observe(found, "pod", A.bdf) == Observed(3 * MIB, 3 * MIB, 5 * MIB, 5 * MIB)


def test_partitions_of_one_gpu_add_up(roots: Roots) -> None:
    _processes(roots, "pod", 11)
    write_process(roots.sys, 11, {7: MIB, 8: MIB, 4242: MIB})
    found, _ = read_processes(roots, roots.cgroup, ["pod"], PARTITIONS)
    assert found.kfd == {11: {"0000:83:00.0": 2 * MIB}}


def test_what_is_gone_holds_nothing(roots: Roots) -> None:
    _processes(roots, "pod", 11)
    found, problems = read_processes(roots, roots.cgroup, ["pod", "gone"], [A])
    assert problems == []
    assert observe(found, "pod", A.bdf) == observe(found, "gone", A.bdf) == Observed()


@pytest.mark.parametrize("broken", [11, 12, 13])
def test_a_garbled_count_costs_only_its_process(roots: Roots, broken: int) -> None:
    _processes(roots, "pod", 11, 12, 13)
    for pid in (11, 12, 13):
        write_process(roots.sys, pid, {A.kfd_id: MIB})
    (roots.sys / f"class/kfd/kfd/proc/{broken}/vram_{A.kfd_id}").write_text("?")
    found, (problem,) = read_processes(roots, roots.cgroup, ["pod"], [A])
    assert f"{broken}/vram_{A.kfd_id}" in problem
    assert observe(found, "pod", A.bdf).kfd == 2 * MIB


def test_a_pod_with_too_much_to_look_at_is_cut_short(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "_MOST_SECONDS", -1.0)
    pids = range(101, 101 + 65)
    for pid in pids:
        write_process(roots.sys, pid, {A.kfd_id: MIB})
    _processes(roots, "pod", *pids[:64])
    found, problems = read_processes(roots, roots.cgroup, ["pod"], [A])
    assert problems == []
    _processes(roots, "pod", *pids)
    found, (problem,) = read_processes(roots, roots.cgroup, ["pod"], [A])
    assert "/pod: usage seen in 64 of 65 processes only" in problem
    assert observe(found, "pod", A.bdf).kfd == 64 * MIB
    _processes(roots, "pod", *pids, 999)
    (again,) = read_processes(roots, roots.cgroup, ["pod"], [A])[1]
    assert again != problem
    assert about(again) == about(problem), "one more process is no news"


def test_a_garbled_descriptor_costs_only_itself(roots: Roots) -> None:
    _processes(roots, "pod", 11)
    _descriptor(roots, 11, 3, "drm-driver:\tamdgpu\n")
    _descriptor(roots, 11, 4, _drm(7, 1024))
    found, (problem,) = read_processes(roots, roots.cgroup, ["pod"], [A])
    assert str(roots.proc / "11/fdinfo/3") in problem
    assert "fdinfo" not in about(problem), "the next process has another"
    assert observe(found, "pod", A.bdf).drm == MIB
