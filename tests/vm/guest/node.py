# SPDX-License-Identifier: Apache-2.0
"""The virtual node as a test uses it: pods, containers with a GPU client in them, slices."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from enforcer.model import MIB, ContainerKind, Share, Slice
from tests.vm.guest.runc import Pod, RuncContainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from enforcer.model import Gpu

CREATED = "2026-01-01T00:00:00Z"


class RefusedError(Exception):
    """The kernel answered with an error; ``errno`` is its name (``ENOMEM``)."""

    def __init__(self, command: str, errno: str, fields: dict[str, str]) -> None:
        super().__init__(f"{command}: {errno}")
        self.errno = errno
        self.fields = fields


class _Streams(Protocol):
    @property
    def stdin(self) -> IO[str]: ...
    @property
    def stdout(self) -> IO[str]: ...


class Client:
    """The static test client behind a container's (or a plain process's) standard streams.

    Its language is at the top of ``tests/vm/client/gpuclient.c``.
    """

    def __init__(self, streams: _Streams) -> None:
        self._streams = streams

    def ask(self, command: str) -> dict[str, str]:
        """Send one command and return the fields of its ``ok`` line. Raises RefusedError."""
        self._streams.stdin.write(command + "\n")
        self._streams.stdin.flush()
        line = self._streams.stdout.readline()
        assert line, f"the client ended at: {command}"
        verdict, _, *fields = line.split()
        parsed = dict(field.split("=", 1) for field in fields)
        if verdict != "ok":
            raise RefusedError(command, parsed.get("errno", line.strip()), parsed)
        return parsed

    def refused(self, command: str) -> str:
        """The name of the errno a command ends with; "" if it succeeds."""
        try:
            self.ask(command)
        except RefusedError as error:
            return error.errno
        return ""

    def open(self, gpu: Gpu) -> None:
        """Open the render node and KFD, and join them as ROCr does."""
        self.ask(f"open render {gpu.render}")
        self.ask("open kfd")
        self.ask(f"acquire {gpu.kfd_id}")

    def kfd_alloc(self, gpu: Gpu, size: int) -> str:
        """Allocate VRAM through KFD; the handle."""
        return self.ask(f"kfd-alloc {gpu.kfd_id} {size}")["handle"]

    def gem_create(self, size: int, domain: str = "vram") -> str:
        """Create a GEM buffer on the render node; the handle."""
        return self.ask(f"gem-create {size} {domain}")["handle"]


class PlainClient(Client):
    """The client as a process of the node that belongs to no pod."""

    def __init__(self, binary: Path) -> None:
        self.process = subprocess.Popen(
            [binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        super().__init__(self)

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def finish(self) -> None:
        self.stdin.close()
        self.process.wait(timeout=60)
        self.stdout.close()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container of a pod, the client in it, and its slice."""

    pod: Pod
    container: RuncContainer
    client: Client
    slice: Slice


def slice_of(pod: Pod, container: str, gpu: Gpu, mib: int | None, slot: int = 0) -> Slice:
    """A slice of one GPU; ``mib`` None is the whole GPU."""
    share = Share(gpu.bdf, None if mib is None else mib * MIB)
    return Slice(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        kind=ContainerKind.APP,
        device_ids=(f"{gpu.bdf}#{slot}",),
        shares=(share,),
        created=CREATED,
    )


class Pods:
    """Makes tenants and takes them away again; knows the slices of all that live."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._open = contextlib.ExitStack()
        self.slices: list[Slice] = []

    def pod(self, name: str) -> Pod:
        """A pod's cgroup, gone with this object."""
        pod = Pod(name).create()
        self._open.callback(pod.remove)
        return pod

    def start(self, pod: Pod, one: Slice) -> Tenant:
        """A container of the pod with the client as its first process."""
        container = RuncContainer(pod, one.container, ["/bin/gpuclient"], self._binary)
        self._open.callback(_end, container)
        return Tenant(pod, container, Client(container), one)

    def close(self) -> None:
        self._open.close()
        self.slices.clear()


def _end(container: RuncContainer) -> None:
    if container.process.poll() is None:
        container.kill()


@contextlib.contextmanager
def pods(binary: Path) -> Iterator[Pods]:
    """The pods of one test."""
    made = Pods(binary)
    try:
        yield made
    finally:
        made.close()
