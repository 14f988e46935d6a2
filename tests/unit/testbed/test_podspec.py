# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.testbed.podspec import (
    Device,
    Node,
    Placed,
    PodSpecError,
    default_profile,
    probe_command,
    quantity,
    runtime_config,
)

ALL = frozenset({"CAP_SYS_ADMIN", "CAP_BPF", "CAP_CHOWN"} | {
    f"CAP_{name}" for name in ("DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID",
                               "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT",
                               "KILL", "AUDIT_WRITE")
})  # fmt: skip
NODE = Node(
    "n1",
    [Device("/dev/null", "c", 1, 3), Device("/dev/kfd", "c", 240, 0)],
    ALL,
    {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_BPF"]}},
        ],
    },
    {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
)
IMAGE = {"Entrypoint": ["ringfence"], "Env": ["PATH=/usr/bin"], "User": "65532:65532"}


def placed(**spec: Any) -> Placed:
    return Placed(
        {"name": "p", "namespace": "ns"},
        spec,
        "uid",
        "kubepods.slice/pod.slice",
        {"state": Path("/var/lib/state"), "sys": Path("/sys")},
        "/run/netns/p",
    )


def config(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    whole = {"name": "c", "image": "i", **(container or {})}
    return runtime_config(placed(**spec), whole, "id", IMAGE, NODE, Path("/root"))


def test_the_image_says_what_runs_and_as_whom_and_the_pod_has_the_last_word() -> None:
    process = config()["process"]
    assert process["args"] == ["ringfence"]
    assert process["user"] == {"uid": 65532, "gid": 65532}
    process = config(
        {"command": ["a"], "args": ["b"], "securityContext": {"runAsUser": 0, "runAsGroup": 0}}
    )["process"]
    assert process["args"] == ["a", "b"]
    assert process["user"] == {"uid": 0, "gid": 0}
    assert config({"args": ["b"]})["process"]["args"] == ["ringfence", "b"]


def test_variables_come_from_image_node_and_pod() -> None:
    env = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "PATH", "value": "/bin"},
    ]
    found = config({"env": env})["process"]["env"]
    assert set(found) == {
        "PATH=/bin", "HOSTNAME=p", "KUBERNETES_SERVICE_HOST=10.0.0.1", "NODE_NAME=n1",
    }  # fmt: skip


def test_a_privileged_container_has_every_capability_and_device_and_no_filter() -> None:
    found = config({"securityContext": {"privileged": True, "runAsUser": 0}})
    assert set(found["process"]["capabilities"]["effective"]) == ALL
    assert found["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]
    assert [device["path"] for device in found["linux"]["devices"]] == ["/dev/null", "/dev/kfd"]
    assert not {"seccomp", "maskedPaths", "readonlyPaths"} & set(found["linux"])
    assert not found["process"]["noNewPrivileges"]
    assert {"type": "cgroup"} not in found["linux"]["namespaces"]


def allowed(found: dict[str, Any]) -> set[str]:
    return {name for rule in found["linux"]["seccomp"]["syscalls"] for name in rule["names"]}


def test_a_container_that_drops_all_has_nothing_and_no_gpu() -> None:
    security = {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    found = config({"securityContext": security})
    assert found["process"]["capabilities"] == {
        "bounding": [], "effective": [], "permitted": [],
    }  # fmt: skip
    assert found["process"]["noNewPrivileges"]
    assert found["root"] == {"path": "/root", "readonly": True}
    assert allowed(found) == {"read"}
    rules = found["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert [(rule["major"], rule["minor"]) for rule in rules[1:]] == [(1, 3)]


def test_capabilities_are_the_runtimes_defaults_less_and_more() -> None:
    wished = {"drop": ["CHOWN"], "add": ["BPF"]}
    found = config({"securityContext": {"runAsUser": 0, "capabilities": wished}})
    held = set(found["process"]["capabilities"]["effective"])
    assert held == ALL - {"CAP_CHOWN", "CAP_SYS_ADMIN"}
    assert "seccomp" not in found["linux"]
    security = {"capabilities": wished, "seccompProfile": {"type": "RuntimeDefault"}}
    assert allowed(config({"securityContext": security})) == {"read", "bpf"}
    with pytest.raises(PodSpecError, match="CAP_NONSENSE"):
        config({"securityContext": {"capabilities": {"add": ["NONSENSE"]}}})


def test_mounts_are_in_the_order_of_their_paths_with_access_and_propagation() -> None:
    mounts = [
        {"name": "state", "mountPath": "/sys/fs/cgroup", "mountPropagation": "HostToContainer"},
        {"name": "sys", "mountPath": "/sys", "readOnly": True},
    ]
    found = [mount for mount in config({"volumeMounts": mounts})["mounts"]
             if mount["type"] == "bind"]  # fmt: skip
    assert [(mount["destination"], mount["source"]) for mount in found] == [
        ("/sys", "/sys"),
        ("/sys/fs/cgroup", "/var/lib/state"),
    ]
    assert [mount["options"] for mount in found] == [
        ["rbind", "rprivate", "ro"],
        ["rbind", "rslave", "rw"],
    ]


def test_namespaces_are_the_pods() -> None:
    def kinds(**spec: Any) -> set[str]:
        return {entry["type"] for entry in config(**spec)["linux"]["namespaces"]}

    assert kinds() == {"mount", "ipc", "uts", "pid", "cgroup", "network"}
    assert "pid" not in kinds(hostPID=True)
    assert "network" not in kinds(hostNetwork=True)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"lifecycle": {}}, "container c: cannot translate lifecycle"),
        ({"securityContext": {"procMount": "Unmasked"}}, "securityContext: cannot translate proc"),
        (
            {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
            "the API server refuses the two together",
        ),
        ({"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "the user is 0"),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}]}, "variable A: cannot"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name(
    container: dict[str, Any], words: str
) -> None:
    with pytest.raises(PodSpecError, match=words):
        config(container)


def test_a_probe_is_the_command_that_it_has_run_and_no_other_kind() -> None:
    probe: dict[str, Any] = {"exec": {"command": ["a", "b"]}, "periodSeconds": 5}
    container = {"name": "c", "livenessProbe": probe}
    assert probe_command(container, "livenessProbe") == ["a", "b"]
    probe["httpGet"] = {"path": "/"}
    with pytest.raises(PodSpecError, match="container c: livenessProbe: cannot translate httpGet"):
        probe_command(container, "livenessProbe")


def test_memory_is_limited_as_the_pod_says() -> None:
    limits = {"resources": {"limits": {"memory": "160Mi"}}}
    assert config(limits)["linux"]["resources"]["memory"] == {
        "limit": 160 << 20, "swap": 160 << 20,
    }  # fmt: skip
    assert [quantity(text) for text in (5, "1Ki", "2Gi")] == [5, 1024, 2 << 30]
    with pytest.raises(PodSpecError, match="memory 1X: expected bytes"):
        quantity("1X")


def test_the_default_profile_keeps_the_rules_for_these_capabilities_and_this_machine() -> None:
    def rule(name: str, **conditions: Any) -> dict[str, Any]:
        return {
            "names": [name],
            "action": "SCMP_ACT_ALLOW",
            "args": [],
            "comment": "",
            **conditions,
        }

    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
        ],
        "syscalls": [
            rule("read"),
            rule("bpf", includes={"caps": ["CAP_BPF"]}),
            rule("chroot", excludes={"caps": ["CAP_BPF"]}),
            rule("arch_prctl", includes={"arches": ["amd64"]}),
            rule("arm_fadvise64_64", includes={"arches": ["arm"]}),
        ],
    }

    def names(*capabilities: str) -> list[str]:
        found = default_profile(profile, "amd64", capabilities)
        assert found["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]
        return [entry["names"][0] for entry in found["syscalls"]]

    assert names() == ["read", "chroot", "arch_prctl"]
    assert names("CAP_BPF") == ["read", "bpf", "arch_prctl"]
