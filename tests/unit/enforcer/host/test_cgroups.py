# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.host import cgroups
from enforcer.host.files import FileVanished
from enforcer.host.runtime import ContainerRecord
from tests.testbed.trees import ContainerSpec, write_cgroup, write_pod

UID = "0f3c1d52-6a0b-4e5a-9d0e-2b1a4c7d8e9f"
SYSTEMD_UID = UID.replace("-", "_")
A = ContainerSpec("a" * 64)
B = ContainerSpec("b" * 64)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cgroup(tmp_path, controllers="cpu memory dmem pids", enabled="cpu memory")


@pytest.mark.parametrize(
    ("pod", "scope"),
    [
        (f"kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice", "cri-containerd-{}.scope"),
        (
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice",
            "crio-{}.scope",
        ),
        (
            f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD_UID}.slice",
            "docker-{}.scope",
        ),
        (f"kubepods/pod{UID}", "{}"),
        (f"kubepods/burstable/pod{UID}", "crio-{}"),
        (f"kubepods/burstable/pod{UID}", "{}"),
        (f"kubepods/besteffort/pod{UID}", "cri-dockerd-{}.scope"),
        (
            f"custom.slice/custom-kubepods.slice/custom-kubepods-pod{SYSTEMD_UID}.slice",
            "crio-{}.scope",
        ),
        (
            f"system.slice/docker-{'c' * 64}.scope/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{SYSTEMD_UID}.slice",
            "cri-containerd-{}.scope",
        ),
    ],
)
def test_pods_and_containers_are_found_wherever_the_runtime_puts_them(
    root: Path, pod: str, scope: str
) -> None:
    write_pod(root, pod, (A, B), scope)
    tree = cgroups.walk(root)
    assert tree.problems == ()
    assert [(one.uid, one.path) for one in tree.pods] == [(UID, pod)]
    assert [(one.id, one.path) for one in tree.containers] == [
        (one.id, f"{pod}/{scope.format(one.id)}") for one in (A, B)
    ]
    assert tree.containers[0].pod == tree.pods[0]


def test_a_cgroup_id_is_the_inode_of_its_directory(root: Path) -> None:
    write_pod(root, f"kubepods/pod{UID}", (A,), "{}")
    tree = cgroups.walk(root)
    for one in (*tree.pods, *tree.containers):
        assert one.cgroup_id == (root / one.path).stat().st_ino


def test_a_static_pods_digest_is_a_uid_too(root: Path) -> None:
    write_pod(root, "kubepods/pod0123456789abcdef0123456789abcdef", ())
    assert [pod.uid for pod in cgroups.walk(root).pods] == ["0123456789abcdef0123456789abcdef"]


@pytest.mark.parametrize(
    "name",
    [
        f"crio-conmon-{'a' * 64}.scope",
        f"crio-conmon-{'a' * 64}",
        f"cri-containerd-{'a' * 63}.scope",
        f"cri-containerd-{'a' * 64}",
        f"{'a' * 64}.scope",
        "init",
    ],
)
def test_other_directories_in_a_pod_are_no_containers(root: Path, name: str) -> None:
    write_pod(root, f"kubepods/pod{UID}", (ContainerSpec(name),), "{}")
    assert cgroups.walk(root).containers == ()


def test_a_tenant_cannot_pose_as_another_pod_from_inside_its_container(root: Path) -> None:
    inside = f"kubepods/pod{UID}/{A.id}/kubepods/pod{UID.replace('0', '1')}"
    write_pod(root, inside, (B,), "{}")
    tree = cgroups.walk(root)
    assert [pod.uid for pod in tree.pods] == [UID]
    assert [container.id for container in tree.containers] == [A.id]


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\x1b[2J"])
def test_what_a_user_of_the_node_calls_its_cgroups_is_no_path_of_a_pod(
    root: Path, name: bytes
) -> None:
    write_pod(root, f"user.slice/{os.fsdecode(name)}/pod{UID}", (A,))
    tree = cgroups.walk(root)
    assert (tree.pods, tree.problems) == ((), ())


def test_a_directory_that_cannot_be_listed_is_reported(root: Path) -> None:
    # A name too long to open stands for any error but "gone".
    problems: list[str] = []
    assert cgroups._children(root / ("x" * 300), problems) == []
    assert len(problems) == 1


def test_a_directory_that_vanishes_is_left_out(root: Path) -> None:
    problems: list[str] = []
    assert cgroups._children(root / "gone", problems) == []
    assert problems == []


def test_on_a_hybrid_host_the_tree_is_below(tmp_path: Path) -> None:
    write_cgroup(tmp_path, "unified")
    assert cgroups.cgroup2_root(tmp_path) == tmp_path / "unified"


def test_a_host_is_told_why_a_pod_may_not_be_found(tmp_path: Path) -> None:
    assert "expected a cgroup2 mount" in cgroups.shortcoming(tmp_path)
    write_cgroup(tmp_path, "unified")
    assert "is hybrid" in cgroups.shortcoming(tmp_path)
    write_cgroup(tmp_path)
    assert cgroups.shortcoming(tmp_path) == ""


def test_a_cgroup_is_populated_by_processes_below_it_too(root: Path) -> None:
    (root / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert cgroups.populated(root)
    (root / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not cgroups.populated(root)
    with pytest.raises(FileVanished):
        cgroups.populated(root / "gone")


def test_a_cgroup1_host_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(cgroups.NoCgroup2Error, match="expected a cgroup2 mount"):
        cgroups.cgroup2_root(tmp_path)


def test_controllers_handed_down_are_read(root: Path) -> None:
    assert cgroups.subtree_controllers(root, "") == {"cpu", "memory"}
    assert cgroups.subtree_controllers(root, "gone") is None


def test_controllers_are_written_as_the_kernel_wants_them() -> None:
    assert str(cgroups.ControllerNames(frozenset({"dmem", "cpu"}))) == "+cpu +dmem"
    assert cgroups.ControllerNames.from_string("").names == frozenset()


def test_a_container_gets_what_its_runtime_says(root: Path) -> None:
    write_pod(root, f"kubepods/pod{UID}", (A, B), "{}")
    known = {A.id: ContainerRecord(None, sandbox=True)}
    named = cgroups.attribute(cgroups.walk(root).containers, known.get)
    assert [(one.name, one.sandbox) for one in named] == [(None, True), (None, False)]


@pytest.mark.skipif(not Path("/sys/fs/cgroup").is_dir(), reason="no cgroup mount")
def test_a_real_tree_is_walked_without_problems() -> None:
    try:
        root = cgroups.cgroup2_root(Path("/sys/fs/cgroup"))
    except cgroups.NoCgroup2Error:
        pytest.skip("no cgroup2 mount on this host")
    made = root / f"ringfence-test-{os.getpid()}"
    pod = made / f"pod{UID}"
    container = pod / ("d" * 64)
    try:
        container.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    try:
        tree = cgroups.walk(root)
    finally:
        for directory in (container, pod, made):
            directory.rmdir()
    assert tree.problems == ()
    assert "d" * 64 in [one.id for one in tree.containers]


@given(st.text(alphabet=st.characters(blacklist_characters="/\0"), max_size=120))
def test_any_name_is_a_pod_only_with_a_whole_uid(name: str) -> None:
    match = cgroups._POD.fullmatch(name)
    assert match is None or len(match["uid"].replace("_", "").replace("-", "")) == 32
