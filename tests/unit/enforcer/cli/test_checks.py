# SPDX-License-Identifier: Apache-2.0
"""A healthy node's tree, and each fault by itself: the doctor names it and its cure."""

from __future__ import annotations

import json
import os
import shutil
import socket
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from enforcer.cli.checks import Finding, Node, State, examine
from enforcer.cli.node import Place
from enforcer.health import GONE
from enforcer.host.roots import Roots
from enforcer.model import Layer, LayerState, Why
from enforcer.slices import FILE, write_checkpoint
from tests.testbed.trees import (
    ContainerSpec,
    GpuSpec,
    NodeSpec,
    write_bundle,
    write_cgroup,
    write_pod,
    write_sys,
)
from tests.unit.enforcer.sample import ILL, SNAPSHOT, TIME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GPU = GpuSpec("0000:03:00.0", 5, 1, 128, product_name="GPU")
POD = "kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice"
CONTAINER = ContainerSpec("c" * 64, "main")
TASKS = "run/containerd/io.containerd.runtime.v2.task"
FILES = {
    "proc/sys/kernel/osrelease": "6.18.1-1-amd64\n",
    "proc/sys/net/core/bpf_jit_enable": "1\n",
    "proc/1/mounts": "sysfs /sys sysfs rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n",
    "sys/kernel/btf/vmlinux": "",
    "sys/kernel/btf/amdgpu": "",
    "sys/kernel/security/lsm": "capability,landlock,apparmor,bpf",
    "sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
    "sys/module/amdgpu/initstate": "live\n",
    "sys/module/amdgpu/version": "6.16.13\n",
    "dev/kfd": "",
    "dev/dri/renderD128": "",
    "hook/libringfence-audit.so": "",
    "hook/libringfence-hsa.so": "",
}


def make_socket(path: Path) -> None:
    """A socket's file; the path may be longer than a socket's address can be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def standing(state: str) -> dict[str, str]:
    """How a resource stands, as the device plugin writes it."""
    return {"state": state, "why": "plugin of AMD", "since": "2026-01-02T03:04:05Z"}


class Healthy:
    """The tree at ``path`` and what is known besides it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_sys(path / "sys", NodeSpec((GPU,)))
        for name, text in FILES.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        write_cgroup(path / "cgroup")
        write_cgroup(path / "cgroup", "kubepods.slice")
        write_pod(path / "cgroup", POD, [CONTAINER])
        write_bundle(path / "run", CONTAINER)
        (path / "cgroup/dmem.capacity").write_text(f"drm/{GPU.bdf}/vram 1\n")
        make_socket(path / "run/containerd/containerd.sock")
        # As where the kubelet has another --root-dir.
        for name in (
            "device-plugins/kubelet.sock",
            "device-plugins/ringfence-amd.com-gpu.sock",
            "kubelet/pod-resources/kubelet.sock",
        ):
            make_socket(path / name)
        (path / "state").mkdir()
        self.write("state/registration.json", json.dumps({"amd.com/gpu": standing("registered")}))
        write_checkpoint(path / "state" / FILE, [])
        names = ("sys", "proc", "run", "dev", "cgroup", "share", "docker")
        roots = Roots(*(path / name for name in names))
        where = Place(roots, path / "socket", path / "state", path / "bpf")
        self.node = Node(
            where,
            path / "device-plugins",
            path / "kubelet",
            path / "hook",
            0,
            SNAPSHOT,
            now=TIME + 1,
        )

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def remove(self, name: str) -> None:
        target = self.path / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    def set(self, **changes: object) -> None:
        self.node = replace(self.node, **changes)  # type: ignore[arg-type]


@pytest.fixture
def healthy(tmp_path: Path) -> Healthy:
    return Healthy(tmp_path)


def test_a_healthy_node_has_no_problem_and_no_note(healthy: Healthy) -> None:
    assert [one for one in examine(healthy.node) if one.state is not State.OK] == []


def _gate_off(why: Why, dmem: Why | None = None) -> Callable[[Healthy], None]:
    support = replace(
        SNAPSHOT.support, gate=LayerState(Layer.GATE, why), dmem=LayerState(Layer.DMEM, dmem)
    )
    return lambda h: h.set(snapshot=replace(SNAPSHOT, support=support))


FAULTS: dict[str, tuple[Callable[[Healthy], None], str, State, str, str]] = {
    "not root": (lambda h: h.set(uid=1000), "user", State.PROBLEM, "uid 1000", "as root"),
    "old kernel": (
        lambda h: h.write("proc/sys/kernel/osrelease", "5.15.0-1\n"),
        "kernel", State.NOTE, "5.15.0-1", "newer kernel",
    ),
    "no proc": (
        lambda h: h.remove("proc/sys/kernel"), "kernel", State.PROBLEM, "osrelease", "/proc",
    ),
    "odd release": (
        lambda h: h.write("proc/sys/kernel/osrelease", "custom\n"),
        "kernel", State.NOTE, "custom", "",
    ),
    "no kernel BTF": (
        lambda h: h.remove("sys/kernel/btf/vmlinux"),
        "kernel BTF", State.PROBLEM, "no gate", "CONFIG_DEBUG_INFO_BTF",
    ),
    "no JIT": (
        lambda h: h.write("proc/sys/net/core/bpf_jit_enable", "0\n"),
        "BPF JIT", State.PROBLEM, "off", "sysctl",
    ),
    "JIT unknown": (
        lambda h: h.remove("proc/sys/net/core/bpf_jit_enable"),
        "BPF JIT", State.NOTE, "cannot be told", "",
    ),
    "locked down": (
        lambda h: h.write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
        "lockdown", State.PROBLEM, "confidentiality", "lockdown=integrity",
    ),
    "no bpffs": (
        lambda h: h.write("proc/1/mounts", "sysfs /sys sysfs rw 0 0\n"),
        "bpffs", State.PROBLEM, "not mounted", "mount -t bpf",
    ),
    "bpf no active LSM": (
        lambda h: h.write("sys/kernel/security/lsm", "capability,apparmor"),
        "LSM list", State.NOTE, "modified return", "",
    ),
    "no securityfs": (
        lambda h: h.remove("sys/kernel/security/lsm"),
        "LSM list", State.NOTE, "cannot be read", "mount -t securityfs",
    ),
    "driver away": (
        lambda h: h.remove("sys/module/amdgpu"), "amdgpu", State.PROBLEM, "not loaded", "modprobe",
    ),
    "driver without BTF": (
        lambda h: h.remove("sys/kernel/btf/amdgpu"),
        "amdgpu BTF", State.NOTE, "amdgpu-dkms", "pahole",
    ),
    "no kfd": (
        lambda h: h.remove("dev/kfd"), "/dev/kfd", State.PROBLEM, "no HIP", "CONFIG_HSA_AMD",
    ),
    "no GPU": (
        lambda h: h.remove("sys/class/kfd"), "GPUs", State.PROBLEM, "no AMD GPU", "lspci",
    ),
    "broken GPU": (
        lambda h: h.write("sys/class/kfd/kfd/topology/nodes/1/properties", "?\n"),
        "GPUs", State.PROBLEM, "KFD node 1", "dmesg",
    ),
    "no render node": (
        lambda h: h.remove("dev/dri/renderD128"),
        "GPUs", State.PROBLEM, "no /dev/dri/renderD128", "udevadm",
    ),
    "cgroup v1": (
        lambda h: h.remove("cgroup/cgroup.controllers"),
        "cgroup2", State.PROBLEM, "expected a cgroup2 mount", "unified_cgroup_hierarchy",
    ),
    "hybrid": (
        lambda h: (h.path / "cgroup").rename(h.path / "unified")
        and (h.path / "cgroup").mkdir() is None
        and (h.path / "unified").rename(h.path / "cgroup/unified"),
        "cgroup2", State.PROBLEM, "hybrid", "unified_cgroup_hierarchy",
    ),
    "no dmem": (
        lambda h: h.remove("cgroup/dmem.capacity"),
        "dmem", State.NOTE, GPU.bdf, "CONFIG_CGROUP_DMEM",
    ),
    "garbled dmem": (
        lambda h: h.write("cgroup/dmem.capacity", "?\n"),
        "dmem", State.PROBLEM, "expected", "report",
    ),
    "no pods": (
        lambda h: h.remove("cgroup/kubepods.slice"), "cgroup driver", State.NOTE, "no pod", "",
    ),
    "no runtime": (
        lambda h: h.remove("run/containerd"),
        "runtime", State.PROBLEM, "no socket of containerd", "install.md",
    ),
    "records elsewhere, where the chart made the other runtime's directory": (
        lambda h: (
            h.remove(TASKS),
            (h.path / "run/containers/storage/overlay-containers").mkdir(parents=True),
        ),
        "runtime", State.NOTE, "1 of 1 containers (cccc", "containerRuntime",
    ),
    "a record of one container only": (
        lambda h: write_pod(h.path / "cgroup", POD, [ContainerSpec("d" * 64, "new")]),
        "runtime", State.NOTE, "1 of 2 containers (dddd", "containerRuntime",
    ),
    "a garbled record": (
        lambda h: h.write(f"{TASKS}/k8s.io/{CONTAINER.id}/config.json", "{"),
        "runtime", State.NOTE, "1 of 1 containers", "containerRuntime",
    ),
    "no container": (
        lambda h: h.remove(f"cgroup/{POD}"), "runtime", State.NOTE, "no container runs", "",
    ),
    "no directory of plugins": (
        lambda h: h.remove("device-plugins"),
        "kubelet", State.PROBLEM, "No such file", "whatever its --root-dir is",
    ),
    "a file in the place of the directory of plugins": (
        lambda h: (h.remove("device-plugins"), h.write("device-plugins", ""))[1],
        "kubelet", State.PROBLEM, "Not a directory", "whatever its --root-dir is",
    ),
    "another root directory than was looked in": (
        lambda h: h.remove("kubelet"),
        "PodResources", State.NOTE, "no socket", "--kubelet-dir",
    ),
    "no kubelet": (
        lambda h: h.remove("device-plugins/kubelet.sock"),
        "kubelet", State.PROBLEM, "kubelet.sock", "running",
    ),
    "no PodResources": (
        lambda h: h.remove("kubelet/pod-resources"),
        "PodResources", State.NOTE, "no socket", "KubeletPodResources",
    ),
    "a file in the place of PodResources": (
        lambda h: (
            h.remove("kubelet/pod-resources/kubelet.sock"),
            h.write("kubelet/pod-resources/kubelet.sock", ""),
        )[1],
        "PodResources", State.NOTE, "no socket", "KubeletPodResources",
    ),
    "no plugin": (
        lambda h: h.remove("device-plugins/ringfence-amd.com-gpu.sock"),
        "device plugin", State.PROBLEM, "no socket", "DaemonSet",
    ),
    "a plugin that was refused": (
        lambda h: h.write(
            "state/registration.json",
            json.dumps({"a": standing("registered"), "amd.com/gpu": standing("refused")}),
        ),
        "device plugin", State.PROBLEM, "amd.com/gpu is refused: plugin of AMD", "Remove that one",
    ),
    "a plugin that says nothing": (
        lambda h: h.remove("state/registration.json"),
        "device plugin", State.NOTE, "no ", "",
    ),
    "a plugin that says what nobody understands": (
        lambda h: h.write("state/registration.json", "[1]"),
        "device plugin", State.NOTE, "expected how its resources stand", "",
    ),
    "another plugin": (
        lambda h: make_socket(h.path / "device-plugins/amd.com_gpu"),
        "other plugins", State.PROBLEM, "amd.com_gpu", "remove it",
    ),
    "no hook": (lambda h: h.remove("hook"), "hook", State.NOTE, "whole card", ""),
    "half a hook": (
        lambda h: h.remove("hook/libringfence-hsa.so"), "hook", State.PROBLEM, "missing", "install",
    ),
    "hook of others": (
        lambda h: (h.path / "hook/libringfence-hsa.so").chmod(0o777),
        "hook", State.PROBLEM, "written by others", "chown root",
    ),
    "hook for root alone": (
        lambda h: (h.path / "hook/libringfence-hsa.so").chmod(0o700),
        "hook", State.PROBLEM, "cannot be read", "chmod 0755",
    ),
    "torn checkpoint": (
        lambda h: h.write(f"state/{FILE}", "{ torn"),
        "slices", State.PROBLEM, FILE, "sets it aside",
    ),
    "bad slice": (
        lambda h: h.write(f"state/{FILE}", '{"schema": 1, "slices": [{}]}'),
        "slices", State.PROBLEM, "slices[0]", "restart its pod",
    ),
    "checkpoint set aside": (
        lambda h: h.write(f"state/{FILE}.bad-1", ""), "slices", State.NOTE, "bad-1", "remove it",
    ),
    "no enforcer": (
        lambda h: h.set(snapshot=None, silence="no socket at /x"),
        "enforcer", State.PROBLEM, "no socket at /x", "container enforcer",
    ),
    "enforcer hangs": (
        lambda h: h.set(now=TIME + 3600), "enforcer", State.PROBLEM, "3600 s ago", "kill it",
    ),
    "enforcer's problem": (
        lambda h: h.set(snapshot=replace(SNAPSHOT, problems=("bang",))),
        "enforcer", State.PROBLEM, "bang", "log",
    ),
    "GPU ill": (
        lambda h: h.set(snapshot=replace(SNAPSHOT, health=(ILL,))),
        "GPU health", State.PROBLEM, "wedged", "no new pods",
    ),
    "GPU gone": (
        lambda h: h.set(snapshot=replace(SNAPSHOT, health=(replace(ILL, reason=GONE),))),
        "GPU health", State.PROBLEM, GONE, "on purpose",
    ),
    "full map": (
        lambda h: h.set(snapshot=replace(SNAPSHOT, map_fill=(("limits", 95, 100),))),
        "enforcer", State.PROBLEM, "95 of 100", "fewer pods",
    ),
    "gate off, dmem on": (
        _gate_off(Why.NOT_LOADED), "layer gate", State.NOTE, "gate not loaded", "enforcer's log",
    ),
    "no layer at all": (
        _gate_off(Why.NOT_LOADED, Why.NO_REGION),
        "layer dmem", State.PROBLEM, "no dmem region", "gate is on",
    ),
    "a reason of another version": (
        _gate_off("something new"),  # type: ignore[arg-type]
        "layer gate", State.NOTE, "something new", "enforcer's log",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_its_cure(healthy: Healthy, fault: str) -> None:
    inject, name, state, found, cure = FAULTS[fault]
    inject(healthy)
    matching = [
        one
        for one in examine(healthy.node)
        if (one.name, one.state) == (name, state) and found in one.found and cure in one.cure
    ]
    assert len(matching) == 1, examine(healthy.node)
    assert bool(matching[0].cure) == bool(cure) or state is State.NOTE


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_costs_another_check(healthy: Healthy, fault: str) -> None:
    names = {one.name for one in examine(healthy.node)}
    FAULTS[fault][0](healthy)
    missing = names - {one.name for one in examine(healthy.node)}
    assert missing <= {
        "no proc": set[str](),
        "driver away": {"amdgpu BTF", "/dev/kfd"},
        "cgroup v1": {"dmem", "cgroup driver"},
        "no directory of plugins": {"device plugin", "other plugins"},
        "a file in the place of the directory of plugins": {"device plugin", "other plugins"},
        "torn checkpoint": set[str](),
        "no enforcer": {"layer gate", "layer dmem"},
    }.get(fault, set())


def test_a_container_is_found_by_dockers_record_too(healthy: Healthy) -> None:
    healthy.remove("run/containerd")
    make_socket(healthy.path / "run/docker.sock")
    (healthy.path / "docker" / CONTAINER.id).mkdir(parents=True)
    labels = {"io.kubernetes.container.name": "main", "io.kubernetes.docker.type": "container"}
    healthy.write(
        f"docker/{CONTAINER.id}/config.v2.json", json.dumps({"Config": {"Labels": labels}})
    )
    assert [one for one in examine(healthy.node) if one.state is not State.OK] == []


def test_every_problem_says_what_to_do(healthy: Healthy) -> None:
    for inject, *_ in FAULTS.values():
        with suppress(FileNotFoundError, FileExistsError, NotADirectoryError):
            inject(healthy)
    for one in examine(healthy.node):
        assert isinstance(one, Finding)
        assert one.cure or one.state is not State.PROBLEM, one


def test_an_empty_tree_is_examined_to_the_end(tmp_path: Path) -> None:
    roots = Roots(*(tmp_path / name for name in ("sys", "proc", "run", "dev", "cgroup")))
    where = Place(roots, tmp_path / "socket", tmp_path / "state", tmp_path / "bpf")
    names = [one.name for one in examine(Node(where, tmp_path, tmp_path, tmp_path, 0))]
    assert {"kernel", "GPUs", "cgroup2", "kubelet", "enforcer"} <= set(names)
