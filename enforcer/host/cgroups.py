# SPDX-License-Identifier: Apache-2.0
"""The cgroup2 tree: pods and containers found by walking it, whatever wrote it.

No runtime's path formula is used: a pod is a directory whose name ends in its UID, wherever it
lies (systemd and cgroupfs drivers, ``--cgroup-root``, a node inside a container), and a container
is a direct child named by its 64-digit id, which some drivers put words around.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cgroupspy.contenttypes import BaseContentType
from cgroupspy.controllers import Controller
from cgroupspy.interfaces import TypedFile

from enforcer.host.files import read_map
from enforcer.model import Container, PodCgroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from enforcer.host.runtime import ContainerRecord

# A UUID, or the 32 digits kubelet gives a static pod; the systemd driver writes "_" for "-".
_POD = re.compile(
    r"(?:.*-)?pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
# Of the cgroupfs drivers only CRI-O's writes a name before the id.
_CONTAINER = re.compile(
    r"(?:(?:cri-containerd|crio|docker|cri-dockerd)-(?P<scope>[0-9a-f]{64})\.scope"
    r"|(?:crio-)?(?P<plain>[0-9a-f]{64}))"
)


class NoCgroup2Error(Exception):
    """There is no cgroup2 tree to find containers in."""


class ControllerNames(BaseContentType):  # type: ignore[misc]  # the package has no types
    """A list of controllers: read as names, written as the ones to enable."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def __str__(self) -> str:
        return " ".join(f"+{name}" for name in sorted(self.names))

    @classmethod
    def from_string(cls, value: str) -> ControllerNames:
        return cls(frozenset(value.split()))


class CoreFiles(Controller):  # type: ignore[misc]  # the package has no types
    """The ``cgroup.*`` files of one cgroup. Reading and assigning raise OSError."""

    controllers = TypedFile("cgroup.controllers", ControllerNames, readonly=True)
    subtree_control = TypedFile("cgroup.subtree_control", ControllerNames)


@dataclass(frozen=True, slots=True)
class Directory:
    """A cgroup's directory, in the shape the typed files ask for."""

    path: Path

    @property
    def full_path(self) -> bytes:
        return os.fsencode(self.path)


@dataclass(frozen=True, slots=True)
class Tree:
    """The pods and containers of one walk."""

    pods: tuple[PodCgroup, ...]
    containers: tuple[Container, ...]
    problems: tuple[str, ...] = ()
    """Directories that could not be read: without them nothing may be concluded from absence."""
    parents: frozenset[str] = frozenset()
    """The cgroups in which pods and containers come and go: the pods', and those above them."""


def cgroup2_root(mount: Path) -> Path:
    """The root of the cgroup2 tree at or, on a hybrid host, below ``mount``.

    Raises NoCgroup2Error on a pure cgroup v1 host.
    """
    for candidate in (mount, mount / "unified"):
        if (candidate / "cgroup.controllers").exists():
            return candidate
    raise NoCgroup2Error(
        f"{mount}: expected a cgroup2 mount (cgroup.controllers), found none; containers cannot be "
        "told apart by the kernel layers: boot with systemd.unified_cgroup_hierarchy=1"
    )


def shortcoming(mount: Path) -> str:
    """Why a pod that is there may not be in the cgroup2 tree; "" on a host that has but this."""
    try:
        root = cgroup2_root(mount)
    except NoCgroup2Error as error:
        return str(error)
    if root == mount:
        return ""
    return (
        f"{mount} is hybrid: a pod that its runtime made in the cgroup1 hierarchies alone is not "
        f"in {root}; boot with systemd.unified_cgroup_hierarchy=1"
    )


def walk(root: Path) -> Tree:
    """Every pod and container cgroup below ``root``; what vanishes on the way is left out."""
    pods: list[PodCgroup] = []
    containers: list[Container] = []
    problems: list[str] = []
    pending = [""]
    while pending:
        parent = pending.pop()
        for name, inode in _children(root / parent, problems):
            path = f"{parent}/{name}" if parent else name
            match = _POD.fullmatch(name)
            if match is None:
                pending.append(path)
                continue
            pod = PodCgroup(match["uid"].replace("_", "-"), path, inode)
            pods.append(pod)
            containers.extend(_containers(root, pod, problems))
    parents = {pod.path for pod in pods}
    parents.update(pod.path.rpartition("/")[0] for pod in pods)
    return Tree(
        tuple(sorted(pods, key=_path)),
        tuple(sorted(containers, key=_path)),
        tuple(problems),
        frozenset(parents),
    )


def subtree_controllers(root: Path, path: str) -> frozenset[str] | None:
    """The controllers a cgroup hands to its children; None if it is gone or unreadable."""
    try:
        value: ControllerNames = CoreFiles(Directory(root / path)).subtree_control
    except OSError:
        return None
    return value.names


def populated(directory: Path) -> bool:
    """Whether there is a process in a cgroup or below it. Raises FileError, FileVanished."""
    return read_map(directory / "cgroup.events").get("populated") != 0


def _containers(root: Path, pod: PodCgroup, problems: list[str]) -> list[Container]:
    found = []
    for name, inode in _children(root / pod.path, problems):
        match = _CONTAINER.fullmatch(name)
        if match is not None:
            path = f"{pod.path}/{name}"
            found.append(Container(match["scope"] or match["plain"], pod, path, inode))
    return found


def _children(directory: Path, problems: list[str]) -> list[tuple[str, int]]:
    """Name and inode of the child cgroups.

    One whose name is not printable is left out: no kubelet and no runtime makes it, a user of the
    node may.
    """
    try:
        # kernfs counts 2 + subdirectories: most cgroups are leaves and need no listing. A file
        # system that does not count (1) is always listed.
        if directory.stat().st_nlink == 2:
            return []
        with os.scandir(directory) as entries:
            return [
                (entry.name, entry.inode())
                for entry in entries
                if entry.name.isprintable() and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{directory}: cannot list: {error.strerror}")
        return []


def _path(item: PodCgroup | Container) -> str:
    return item.path


def attribute(
    containers: Iterable[Container], identify: Callable[[str], ContainerRecord | None]
) -> tuple[Container, ...]:
    """The containers with what ``identify(id)`` knows of each."""
    return tuple(
        container
        if (record := identify(container.id)) is None
        else replace(container, name=record.name, sandbox=record.sandbox)
        for container in containers
    )
