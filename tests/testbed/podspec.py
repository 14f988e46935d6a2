# SPDX-License-Identifier: Apache-2.0
"""From a container of a pod to runc's configuration, as kubelet and containerd make it.

Knows what the chart uses, and refuses every other field by name: what it does not translate would
silently not be tested.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Json = dict[str, Any]

_DEFAULT_CAPABILITIES: Final = frozenset(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
        *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
"""containerd's, for a container that asks for none."""

_DEFAULT_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
MASKED: Final = (
    *("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
)
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""What the runtime hides from, and shows read-only to, a container that is not privileged."""
_PROPAGATION: Final = {
    "None": "rprivate",
    "HostToContainer": "rslave",
    "Bidirectional": "rshared",
}
_CONTAINER: Final = frozenset(
    (
        *("name", "image", "imagePullPolicy", "command", "args", "env", "securityContext"),
        *("resources", "volumeMounts", "ports", "livenessProbe", "readinessProbe", "startupProbe"),
    )
)
_PROBE: Final = frozenset(("exec", "periodSeconds", "timeoutSeconds", "failureThreshold"))
_SECURITY: Final = frozenset(
    (
        *("privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"),
        *("seccompProfile", "runAsUser", "runAsGroup", "runAsNonRoot"),
        # Of security modules that the virtual node has not: a runtime passes them over there.
        *("seLinuxOptions", "appArmorProfile"),
    )
)


class PodSpecError(ValueError):
    """A pod that cannot be translated, or that the API server or the kubelet would refuse."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device node of the node: its path, "c" or "b", and its numbers."""

    path: str
    kind: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Node:
    """What of a node ends up in its containers."""

    name: str
    devices: Sequence[Device]
    capabilities: frozenset[str]
    """All that its kernel has, as CAP_NAME."""
    seccomp: Json
    """The runtime's default profile, in the form of the containers project."""
    services: Mapping[str, str] = field(default_factory=dict)
    """Variables that kubelet gives every container: where the API server is."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod on its node."""

    metadata: Json
    spec: Json
    uid: str
    cgroup: str
    """Relative to the cgroup root."""
    volumes: Mapping[str, Path]
    """The host's directory behind each volume, by the volume's name."""
    network: str
    """The path of the pod's network namespace."""


def containers(spec: Json) -> list[Json]:
    """Init containers first, then the others, as they are started."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def runtime_config(
    placed: Placed, container: Json, identifier: str, image: Json, node: Node, root: Path
) -> Json:
    """runc's config.json. ``image`` is the ``config`` of the image's configuration; ``root`` is
    where it is unpacked. Raises PodSpecError."""
    _known(container, _CONTAINER, f"container {container['name']}")
    security = container.get("securityContext", {})
    _known(security, _SECURITY, f"container {container['name']}: securityContext")
    privileged = security.get("privileged", False)
    escalation = security.get("allowPrivilegeEscalation")
    if privileged and escalation is False:
        raise PodSpecError(
            f"container {container['name']}: privileged is true and allowPrivilegeEscalation is "
            "false; the API server refuses the two together"
        )
    capabilities = sorted(_capabilities(security, node))
    user, group = _user(container["name"], security, image)
    config: Json = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": group},
            "args": _arguments(container, image),
            "env": _environment(placed, container, image, node),
            "cwd": image.get("WorkingDir") or "/",
            # kubelet sets it wherever escalation is not allowed.
            "noNewPrivileges": escalation is False,
            "capabilities": {
                kind: capabilities if user == 0 or kind == "bounding" else []
                for kind in ("bounding", "effective", "permitted")
            },
        },
        "root": {"path": str(root), "readonly": security.get("readOnlyRootFilesystem", False)},
        "hostname": placed.metadata["name"],
        "mounts": [*_mounts(privileged=privileged), *_volume_mounts(placed, container)],
        "annotations": {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": container["name"],
            "io.kubernetes.cri.sandbox-name": placed.metadata["name"],
            "io.kubernetes.cri.sandbox-namespace": placed.metadata["namespace"],
            "io.kubernetes.cri.sandbox-uid": placed.uid,
        },
        "linux": {
            "cgroupsPath": f"/{placed.cgroup}/cri-containerd-{identifier}.scope",
            "namespaces": _namespaces(placed, privileged=privileged),
            "resources": {
                "devices": _device_rules(node, privileged=privileged),
                **_memory(container),
            },
            "devices": _device_nodes(node) if privileged else [],
        },
    }
    if not privileged:
        config["linux"] |= {"maskedPaths": [*MASKED], "readonlyPaths": [*READ_ONLY]}
        if security.get("seccompProfile", {}).get("type") == "RuntimeDefault":
            config["linux"]["seccomp"] = default_profile(node.seccomp, "amd64", capabilities)
    return config


def probe_command(container: Json, kind: str) -> list[str]:
    """What kubelet has the runtime run in the container for a probe such as "livenessProbe"."""
    probe = container[kind]
    _known(probe, _PROBE, f"container {container['name']}: {kind}")
    return list(probe["exec"]["command"])


def default_profile(profile: Json, architecture: str, capabilities: Iterable[str]) -> Json:
    """runc's seccomp section from the containers project's ``seccomp.json``, for a container with
    these capabilities. ``architecture`` is Debian's name for it."""
    held = set(capabilities)
    for entry in profile["archMap"]:
        if entry["architecture"] == {"amd64": "SCMP_ARCH_X86_64"}.get(architecture):
            architectures = [entry["architecture"], *entry["subArchitectures"]]

    def applies(rule: Json) -> bool:
        wanted, unwanted = rule.get("includes", {}), rule.get("excludes", {})
        return (
            set(wanted.get("caps", ())) <= held
            and not set(unwanted.get("caps", ())) & held
            and architecture in wanted.get("arches", [architecture])
            and architecture not in unwanted.get("arches", [])
        )

    fields = ("names", "action", "args", "errnoRet")
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": architectures,
        "syscalls": [
            {name: rule[name] for name in fields if rule.get(name) not in (None, [])}
            for rule in profile["syscalls"]
            if applies(rule)
        ],
    }


def _known(given: Json, known: frozenset[str], where: str) -> None:
    if unknown := set(given) - known:
        raise PodSpecError(f"{where}: cannot translate {', '.join(sorted(unknown))}")


def _user(name: str, security: Json, image: Json) -> tuple[int, int]:
    own_user, _, own_group = (image.get("User") or "0").partition(":")
    user = security.get("runAsUser", int(own_user))
    if security.get("runAsNonRoot") and user == 0:
        raise PodSpecError(f"container {name}: runAsNonRoot is true and the user is 0")
    return user, security.get("runAsGroup", int(own_group or 0))


def _capabilities(security: Json, node: Node) -> frozenset[str]:
    if security.get("privileged"):
        return node.capabilities
    wished = security.get("capabilities", {})
    held = _DEFAULT_CAPABILITIES
    if "ALL" in wished.get("drop", []):
        held = frozenset()
    held -= {f"CAP_{name}" for name in wished.get("drop", [])}
    held |= {f"CAP_{name}" for name in wished.get("add", [])}
    if unknown := held - node.capabilities:
        raise PodSpecError(f"capabilities unknown to the kernel: {', '.join(sorted(unknown))}")
    return held


def _arguments(container: Json, image: Json) -> list[str]:
    command = container.get("command")
    if command:
        return [*command, *container.get("args", [])]
    return [*(image.get("Entrypoint") or []), *(container.get("args") or image.get("Cmd") or [])]


def _environment(placed: Placed, container: Json, image: Json, node: Node) -> list[str]:
    variables = dict(entry.split("=", 1) for entry in image.get("Env", []))
    variables |= {"HOSTNAME": placed.metadata["name"], **node.services}
    fields = {
        "spec.nodeName": node.name,
        "metadata.name": placed.metadata["name"],
        "metadata.namespace": placed.metadata["namespace"],
        "metadata.uid": placed.uid,
    }
    for entry in container.get("env", []):
        source = entry.get("valueFrom")
        if source is None:
            variables[entry["name"]] = entry.get("value", "")
        elif path := source.get("fieldRef", {}).get("fieldPath"):
            variables[entry["name"]] = fields[path]
        else:
            raise PodSpecError(f"variable {entry['name']}: cannot translate {json.dumps(source)}")
    return [f"{name}={value}" for name, value in variables.items()]


def _mounts(*, privileged: bool) -> list[Json]:
    guarded = ["nosuid", "noexec", "nodev"]
    access = [] if privileged else ["ro"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": guarded},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": guarded},
        {
            "destination": "/dev/shm",  # the container's
            "type": "tmpfs",
            "source": "shm",
            "options": [*guarded, "mode=1777", "size=65536k"],
        },
        {
            "destination": "/sys",
            "type": "sysfs",
            "source": "sysfs",
            "options": [*guarded, *access],
        },
        {
            "destination": "/sys/fs/cgroup",
            "type": "cgroup",
            "source": "cgroup",
            "options": [*guarded, "relatime", *access],
        },
    ]


def _volume_mounts(placed: Placed, container: Json) -> list[Json]:
    """In the order of their paths, as kubelet sorts them: a mount below another comes later."""
    mounts = []
    for mount in container.get("volumeMounts", []):
        propagation = _PROPAGATION[mount.get("mountPropagation", "None")]
        access = "ro" if mount.get("readOnly") else "rw"
        mounts.append(
            {
                "destination": mount["mountPath"],
                "type": "bind",
                "source": str(placed.volumes[mount["name"]]),
                "options": ["rbind", propagation, access],
            }
        )
    return sorted(mounts, key=lambda mount: str(mount["destination"]))


def _namespaces(placed: Placed, *, privileged: bool) -> list[Json]:
    """A privileged container keeps the cgroup namespace of its node, as containerd leaves it."""
    kinds = ["mount", "ipc", "uts"]
    kinds += [] if placed.spec.get("hostPID") else ["pid"]
    kinds += [] if privileged else ["cgroup"]
    network: Json = {"type": "network", "path": placed.network}
    own = [{"type": kind} for kind in kinds]
    return own if placed.spec.get("hostNetwork") else [*own, network]


def _device_rules(node: Node, *, privileged: bool) -> list[Json]:
    if privileged:
        return [{"allow": True, "access": "rwm"}]
    named = [device for device in node.devices if device.path[len("/dev/") :] in _DEFAULT_DEVICES]
    return [
        {"allow": False, "access": "rwm"},
        *(
            {
                "allow": True,
                "type": device.kind,
                "major": device.major,
                "minor": device.minor,
                "access": "rwm",
            }
            for device in named
        ),
    ]


def _device_nodes(node: Node) -> list[Json]:
    return [
        {
            "path": device.path,
            "type": device.kind,
            "major": device.major,
            "minor": device.minor,
            "fileMode": 0o666,
        }
        for device in node.devices
    ]


def _memory(container: Json) -> Json:
    limit = container.get("resources", {}).get("limits", {}).get("memory")
    return {} if limit is None else {"memory": {"limit": quantity(limit), "swap": quantity(limit)}}


def quantity(text: str | int) -> int:
    """Bytes of a memory quantity such as 256Mi. Raises PodSpecError."""
    for factor, suffix in ((1 << 10, "Ki"), (1 << 20, "Mi"), (1 << 30, "Gi")):
        if str(text).endswith(suffix):
            return int(str(text).removesuffix(suffix)) * factor
    try:
        return int(text)
    except ValueError:
        raise PodSpecError(f"memory {text}: expected bytes or Ki, Mi, Gi") from None
