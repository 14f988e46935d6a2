# SPDX-License-Identifier: Apache-2.0
"""What Ringfence needs of a node, each need looked at by itself. Nothing is changed or loaded."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from enforcer.cli.explain import ADVICE
from enforcer.health import GONE
from enforcer.host import cgroups, dmem, runtime
from enforcer.host.files import FileError, optional, read_int, read_line, read_text
from enforcer.inventory import read_inventory
from enforcer.model import Why
from enforcer.slices import FILE, CheckpointError, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from enforcer.cli.node import Place
    from enforcer.host.roots import Roots
    from enforcer.model import LayerState, Snapshot

_OLDEST = (5, 17)
_OBJECTS = ("libringfence-audit.so", "libringfence-hsa.so")
_FOREIGN = re.compile(r"amd\.com[_.-].*|.*amd.*gpu.*", re.IGNORECASE)
_OURS = "ringfence-"
_REGISTRATION = "registration.json"
_REGISTERED = "registered"
_RUNTIMES = (
    "containerd/containerd.sock",
    "k3s/containerd/containerd.sock",
    "k0s/containerd.sock",
    "crio/crio.sock",
    "docker.sock",
)


class State(StrEnum):
    """What came of a check."""

    OK = "ok"
    NOTE = "note"
    """Works with less, or cannot be told from here."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's; ``cure`` says what to do, and is empty where nothing is."""

    name: str
    state: State
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """What is examined."""

    place: Place
    plugins: Path
    """Where the kubelet has device plugins register."""
    kubelet: Path
    """Its root directory."""
    hook: Path
    uid: int
    """The user that looks."""
    snapshot: Snapshot | None = None
    """The enforcer's last pass; None if it did not answer."""
    silence: str = ""
    """Why it did not."""
    now: float = 0.0
    """Unix seconds."""
    run: Path | None = None
    """The host's ``/run`` where it is another than the place's, which may have parts of it only."""


def examine(node: Node) -> list[Finding]:
    """Every check, in the order in which one would mend things."""
    return [finding for check in CHECKS for finding in check(node)]


def _ok(name: str, found: str) -> Finding:
    return Finding(name, State.OK, found)


def _note(name: str, found: str, cure: str = "") -> Finding:
    return Finding(name, State.NOTE, found, cure)


def _problem(name: str, found: str, cure: str) -> Finding:
    return Finding(name, State.PROBLEM, found, cure)


def _user(node: Node) -> Iterator[Finding]:
    if node.uid == 0:
        yield _ok("user", "root")
    else:
        yield _problem(
            "user",
            f"uid {node.uid} cannot look into processes, maps and sockets",
            "run it as root, on the node or in the enforcer's container",
        )


def _kernel(node: Node) -> Iterator[Finding]:
    try:
        release = read_line(node.place.roots.proc / "sys/kernel/osrelease")
    except FileError as error:
        yield _problem("kernel", str(error), "is /proc mounted?")
        return
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        yield _note("kernel", f"release {release!r} tells no version")
    elif (int(match[1]), int(match[2])) < _OLDEST:
        yield _note(
            "kernel",
            f"{release}: the gate needs 5.17, or an older one with its BPF ported back (RHEL 9)",
            "a newer kernel, if the gate below is off",
        )
    else:
        yield _ok("kernel", release)


def _bpf(node: Node) -> Iterator[Finding]:
    roots = node.place.roots
    if (roots.sys / "kernel/btf/vmlinux").exists():
        yield _ok("kernel BTF", "there")
    else:
        yield _problem(
            "kernel BTF",
            "no /sys/kernel/btf/vmlinux: no gate and no ledger",
            "a kernel with CONFIG_DEBUG_INFO_BTF=y, as every large distribution's is",
        )
    jit = optional(read_int, roots.proc / "sys/net/core/bpf_jit_enable")
    if jit == 0:
        yield _problem("BPF JIT", "off", "sysctl net.core.bpf_jit_enable=1")
    elif jit is None:
        yield _note("BPF JIT", "cannot be told: no net.core.bpf_jit_enable")
    else:
        yield _ok("BPF JIT", "on")
    mode = _lockdown(roots.sys / "kernel/security/lockdown")
    if mode == "confidentiality":
        yield _problem(
            "lockdown",
            "confidentiality: BPF may not read kernel memory",
            "boot with lockdown=integrity or without",
        )
    else:
        yield _ok("lockdown", mode or "not there")
    if "bpf" in _types(roots.proc):
        yield _ok("bpffs", "mounted")
    else:
        yield _problem(
            "bpffs",
            "not mounted: limits could not survive the enforcer",
            "mount -t bpf bpf /sys/fs/bpf",
        )


def _lsm(node: Node) -> Iterator[Finding]:
    path = node.place.roots.sys / "kernel/security/lsm"
    try:
        modules = read_line(path).split(",")
    except FileError:
        yield _note(
            "LSM list", f"cannot be read: {path}", "mount -t securityfs none " + str(path.parent)
        )
        return
    if "bpf" in modules:
        yield _ok("LSM list", f"{','.join(modules)}: the gate asks as a security module")
    else:
        yield _note(
            "LSM list",
            f"{','.join(modules)}: no bpf in it; the gate asks by a modified return instead",
        )


def _driver(node: Node) -> Iterator[Finding]:
    roots = node.place.roots
    module = roots.sys / "module/amdgpu"
    if not module.is_dir():
        yield _problem("amdgpu", "not loaded", "modprobe amdgpu; see dmesg if it stays away")
        return
    version = optional(read_line, module / "version")
    yield _ok("amdgpu", f"loaded{f', version {version}' if version else ''}")
    if (roots.sys / "kernel/btf/amdgpu").exists():
        yield _ok("amdgpu BTF", "there: the ledger follows each buffer by it")
    elif (module / "initstate").exists():
        yield _note(
            "amdgpu BTF",
            "none, as amdgpu-dkms usually is built: followed by kprobes, which costs a little more",
            "build the module where the kernel's vmlinux and pahole are; its make log says why not",
        )
    else:
        yield _ok("amdgpu BTF", "built into the kernel, and so are its types")
    if (roots.dev / "kfd").exists():
        yield _ok("/dev/kfd", "there")
    else:
        yield _problem(
            "/dev/kfd",
            "not there: no HIP on this node",
            "a kernel with CONFIG_HSA_AMD=y, and a GPU that ROCm supports",
        )


def _gpus(node: Node) -> Iterator[Finding]:
    gpus, problems = read_inventory(node.place.roots)
    if not gpus:
        yield _problem(
            "GPUs",
            "no AMD GPU in KFD's topology",
            "is one built in (lspci -d 1002:), and amdgpu loaded? In a container: KFD shows a GPU "
            "only to a process whose device cgroup allows its render node",
        )
    else:
        yield _ok("GPUs", ", ".join(f"{gpu.bdf} {gpu.name}" for gpu in gpus))
    for problem in problems:
        yield _problem("GPUs", problem, "see dmesg for what amdgpu says of it")
    absent = [
        gpu for gpu in gpus if not (node.place.roots.dev / f"dri/renderD{gpu.render}").exists()
    ]
    for gpu in absent:
        yield _problem(
            "GPUs",
            f"{gpu.bdf}: no /dev/dri/renderD{gpu.render}",
            "udevadm trigger --subsystem-match=drm; a container cannot be given what is not there",
        )


def _cgroup(node: Node) -> Iterator[Finding]:
    try:
        root = cgroups.cgroup2_root(node.place.roots.cgroup)
    except cgroups.NoCgroup2Error as error:
        yield _problem("cgroup2", str(error), "boot with systemd.unified_cgroup_hierarchy=1")
        return
    if root == node.place.roots.cgroup:
        yield _ok("cgroup2", str(root))
    else:
        yield _problem(
            "cgroup2",
            f"a hybrid host: {root} has no resource controllers, and pods may not be in it",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    yield from _dmem(node, root)
    if (root / "kubepods.slice").is_dir():
        yield _ok("cgroup driver", "systemd (kubepods.slice)")
    elif (root / "kubepods").is_dir():
        yield _ok("cgroup driver", "cgroupfs (kubepods)")
    else:
        yield _note("cgroup driver", "no pod was started yet, or kubelet has another cgroup root")


def _dmem(node: Node, root: Path) -> Iterator[Finding]:
    gpus, _ = read_inventory(node.place.roots)
    try:
        regions = dmem.regions(dmem.capacity(root), {gpu.bdf for gpu in gpus})
    except FileError as error:
        yield _problem(
            "dmem",
            str(error),
            "until it can be read no container starts that the gate does not hold; if its form is "
            "another one, report it",
        )
        return
    without = sorted({gpu.bdf for gpu in gpus} - regions.keys())
    if not gpus:
        yield _note("dmem", "no GPU to look for")
    elif without:
        yield _note(
            "dmem",
            f"no region for {', '.join(without)}: the gate alone holds these",
            "only a kernel from 6.15 with CONFIG_CGROUP_DMEM=y has it",
        )
    else:
        yield _ok("dmem", f"{len(regions)} regions")


def _runtime(node: Node) -> Iterator[Finding]:
    roots = node.place.roots
    sockets = [name for name in _RUNTIMES if ((node.run or roots.run) / name).exists()]
    running, nameless = _running(roots)
    if running and not nameless:
        yield _ok("runtime", f"a record of each of {running} containers")
    elif nameless and (sockets or len(nameless) < running):
        yield _note(
            "runtime",
            f"no record of {len(nameless)} of {running} containers ({nameless[0]}): they stay "
            "nameless, and each is held to its pod's smallest slice",
            "set containerRuntime in the chart to where your runtime keeps its state: see "
            "docs/install.md",
        )
    elif sockets:
        yield _note("runtime", f"{', '.join(sockets)}; no container runs whose record to look for")
    else:
        yield _problem(
            "runtime",
            f"no socket of containerd, CRI-O or Docker below {node.run or roots.run}, and no "
            "record of a container",
            "is one running? Elsewhere (k0s, microk8s): see docs/install.md",
        )


def _running(roots: Roots) -> tuple[int, list[str]]:
    """How many containers of pods there are, and the ids of those without a record.

    The directories of records say nothing: the chart makes both runtimes', and one stays empty.
    """
    try:
        root = cgroups.cgroup2_root(roots.cgroup)
    except cgroups.NoCgroup2Error:
        return 0, []
    containers = cgroups.walk(root).containers
    nameless = [one for one in containers if not _recorded(roots, one.id)]
    ended = [one for one in nameless if not (root / one.path).is_dir()]
    return len(containers) - len(ended), [one.id for one in nameless if one not in ended]


def _recorded(roots: Roots, container_id: str) -> bool:
    try:
        return runtime.container_record(roots.run, roots.docker, container_id) is not None
    except FileError:
        return False


def _kubelet(node: Node) -> Iterator[Finding]:
    try:
        names = sorted(path.name for path in node.plugins.iterdir() if _is_socket(path))
    except OSError as error:
        yield _problem(
            "kubelet",
            f"{node.plugins}: {error.strerror}",
            "is this a node? Every kubelet makes it when it starts, whatever its --root-dir is",
        )
        return
    if "kubelet.sock" in names:
        yield _ok("kubelet", str(node.plugins / "kubelet.sock"))
    else:
        yield _problem("kubelet", f"no socket {node.plugins}/kubelet.sock", "is kubelet running?")
    if any(name.startswith(_OURS) for name in names):
        yield from _registered(node.place.state / _REGISTRATION)
    else:
        yield _problem(
            "device plugin",
            "Ringfence's has no socket here, so this node offers nothing of it",
            "is the DaemonSet's pod on this node? See the log of its container device-plugin",
        )
    foreign = [name for name in names if not name.startswith(_OURS) and _FOREIGN.fullmatch(name)]
    if foreign:
        yield _problem(
            "other plugins",
            f"{', '.join(foreign)}: another plugin for amd.com/gpu is on this node",
            "remove it: kubelet serves a resource from one plugin",
        )
    else:
        yield _ok("other plugins", "none for amd.com/gpu")


def _pod_resources(node: Node) -> Iterator[Finding]:
    resources = node.kubelet / "pod-resources/kubelet.sock"
    if _is_socket(resources):
        yield _ok("PodResources", str(resources))
    else:
        yield _note(
            "PodResources",
            f"no socket {resources}: the slice of a pod that ended is kept until it is deleted",
            "is kubelet running? Is its root directory another (--kubelet-dir, kubeletDir)? Is it "
            "newer than 1.14, and its feature KubeletPodResources on?",
        )


def _registered(path: Path) -> Iterator[Finding]:
    """What the device plugin wrote down of how it stands with kubelet."""
    try:
        resources = {
            str(name): (str(entry["state"]), f"{entry['why']}, since {entry['since']}")
            for name, entry in json.loads(path.read_text()).items()
        }
    except FileNotFoundError:
        yield _note("device plugin", f"its socket is there, but no {path} that says more")
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield _note("device plugin", f"{path}: expected how its resources stand, found {error!r}")
        return
    for name, (state, why) in sorted(resources.items()):
        if state == _REGISTERED:
            yield _ok("device plugin", f"{name} is registered")
        else:
            yield _problem(
                "device plugin",
                f"{name} is {state}: {why}",
                "is another plugin for it on this node? Remove that one; ours asks again by itself",
            )


def _hook(node: Node) -> Iterator[Finding]:
    there = [name for name in _OBJECTS if (node.hook / name).is_file()]
    if not there:
        yield _note(
            "hook",
            f"not installed in {node.hook}: hipMemGetInfo in a container shows the whole card",
        )
        return
    for name in sorted(set(_OBJECTS) - set(there)):
        yield _problem("hook", f"{node.hook / name} is missing", "install both objects anew")
    for name in there:
        status = (node.hook / name).stat()
        if status.st_mode & 0o022 or status.st_uid != 0:
            yield _problem(
                "hook",
                f"{node.hook / name} can be written by others than root",
                f"chown root {node.hook / name}; chmod 0755 {node.hook / name}",
            )
        elif not status.st_mode & stat.S_IROTH:
            yield _problem(
                "hook",
                f"{node.hook / name} cannot be read by everybody: containers could not load it",
                f"chmod 0755 {node.hook / name}",
            )
        else:
            yield _ok("hook", str(node.hook / name))


def _state(node: Node) -> Iterator[Finding]:
    path = node.place.state / FILE
    try:
        slices, problems = read_checkpoint(path)
    except CheckpointError as error:
        yield _problem(
            "slices",
            str(error),
            "the plugin sets it aside and goes on; running containers stay as they are held",
        )
        return
    for problem in problems:
        yield _problem("slices", problem, "this one slice is not held anew: restart its pod")
    yield _ok("slices", f"{len(slices)} in {path}" if path.exists() else f"none yet: no {path}")
    for bad in sorted(node.place.state.glob(f"{FILE}.bad-*")):
        yield _note("slices", f"{bad} was set aside", "look into it, and remove it")


def _enforcer(node: Node) -> Iterator[Finding]:
    snapshot = node.snapshot
    if snapshot is None:
        yield _problem(
            "enforcer",
            node.silence or "does not answer",
            "is the DaemonSet's pod on this node? See the log of its container enforcer, with "
            "--previous if it is started again and again. Limits set before stay in force",
        )
        return
    age = node.now - snapshot.time
    if age > 60:
        yield _problem(
            "enforcer",
            f"its last pass was {age:.0f} s ago",
            "see its log; kill it if it hangs: limits stay in force",
        )
    else:
        yield _ok("enforcer", f"answers, ledger {snapshot.support.ledger}")
    yield _layer(snapshot.support.gate, fatal=not snapshot.support.dmem.on)
    yield _layer(snapshot.support.dmem, fatal=not snapshot.support.gate.on)
    for problem in snapshot.problems:
        yield _problem("enforcer", problem, "see the line in its log for when it began")
    for one in snapshot.health:
        if not one.healthy:
            yield _problem(
                "GPU health",
                f"{one.bdf}: {one.reason}",
                "see dmesg, unless it was taken out on purpose: an hour later nothing is said of "
                "it any more, once no slice names it"
                if one.reason == GONE
                else "it gets no new pods; see dmesg, and reset it or the node where it stays so",
            )
    for name, used, most in snapshot.map_fill:
        if used * 10 > most * 9:
            yield _problem(
                "enforcer",
                f"BPF map {name} holds {used} of {most} entries",
                "fewer pods on this node: a full map refuses newcomers",
            )


def _layer(state: LayerState, *, fatal: bool) -> Finding:
    name = f"layer {state.layer.value}"
    if state.on:
        return _ok(name, "on")
    try:
        cure = ADVICE[Why(state.reason or "")]
    except ValueError:
        cure = "see the enforcer's log"
    return (_problem if fatal else _note)(name, str(state), cure)


CHECKS: tuple[Callable[[Node], Iterator[Finding]], ...] = (
    _user, _kernel, _bpf, _lsm, _driver, _gpus, _cgroup, _runtime, _kubelet, _pod_resources, _hook,
    _state, _enforcer,
)  # fmt: skip


def _lockdown(path: Path) -> str:
    """The mode in brackets: ``none [integrity] confidentiality``."""
    try:
        match = re.search(r"\[(\w+)\]", read_text(path))
    except FileError:
        return ""
    return match[1] if match else ""


def _types(proc: Path) -> set[str]:
    """The types of the file systems mounted at ``/sys/fs/bpf`` for the first process."""
    for mounts in (proc / "1/mounts", proc / "self/mounts"):
        try:
            lines = read_text(mounts).splitlines()
        except FileError:
            continue
        return {words[2] for line in lines if len(words := line.split()) > 2}
    return set()


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
