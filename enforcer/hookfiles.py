# SPDX-License-Identifier: Apache-2.0
"""The files of the hook on the node: each container's slice, and the ledger its processes keep.

Written here, mounted into the container by the device plugin (docs/hook-files.md). Only root can
add or remove anything below ``slices``; a container is handed its one ledger file to write.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from audit_hook import ledger
from audit_hook.slice import GpuShare, SliceFile, write_slice
from enforcer.limits import gpu_shares
from enforcer.model import Container, PodCgroup, pci_key
from enforcer.slices import SLICES, hook_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from enforcer.model import Gpu, Limit, Protection, Slice

_SLICE = "slice"
_LEDGER = "ledger"
_MOST_BYTES = 1 << 50
"""More than any GPU has; a container can write what it likes."""

Key = tuple[str, str]
"""Pod UID and container name."""


def hooked(one: Slice) -> bool:
    """True if the container gets the hook: a whole GPU has nothing to hold or to show smaller."""
    return any(share.vram_bytes is not None for share in one.shares)


def slice_file(one: Slice, gpus: Sequence[Gpu], *, kernel_refuses: bool) -> SliceFile:
    """What the hook is told of a slice; a GPU that is not there now keeps its share.

    The shares' order is the order in which ROCr counts the GPUs: the plugin makes it so.
    """
    devices = {(gpu.bdf, gpu.partition): gpu for gpu in gpus}
    shares = []
    for share in one.shares:
        gpu = devices.get((share.bdf, share.partition))
        shares.append(
            GpuShare(share.bdf, share.vram_bytes, share.cus)
            if gpu is None
            else GpuShare(share.bdf, share.vram_bytes, share.cus, gpu.kfd_id, gpu.render, gpu.card)
        )
    return SliceFile(
        tuple(shares),
        kernel_refuses=kernel_refuses,
        priority=one.priority,
        oversubscribe=one.oversubscribe,
    )


def held_by_kernel(
    slices: Iterable[Slice],
    wanted: Iterable[Limit],
    owners: Mapping[int, Container | PodCgroup],
    proven: Mapping[tuple[int, int], Protection],
) -> frozenset[Key]:
    """The slices above which the kernel refuses, by what was read back from it.

    On every GPU it is the container's own limit that counts; until its cgroup is there and named,
    the pod's, below which it will be held from its first call.
    """
    pods: set[tuple[str, str]] = set()
    own: dict[tuple[str, str, str], bool] = {}
    for limit in wanted:
        protection, owner = proven.get(limit.key), owners[limit.cgroup_id]
        held = protection is not None and protection.held and limit.vram_bytes is not None
        if isinstance(owner, PodCgroup):
            if held:
                pods.add((owner.uid, limit.bdf))
        elif owner.name is not None:
            # A container that restarts can have two cgroups for a moment.
            key = (owner.pod.uid, owner.name, limit.bdf)
            own[key] = held and own.get(key, True)
    return frozenset(
        one.key
        for one in slices
        if all(
            own.get((*one.key, bdf), (one.pod_uid, bdf) in pods)
            for bdf, size in gpu_shares(one).items()
            if size is not None
        )
    )


class HookFiles:
    """The files below ``<base>/slices``, and what was written there."""

    def __init__(self, base: Path) -> None:
        """``base``: the host's ``/run/ringfence``."""
        self._base = base
        self._written: dict[Key, SliceFile] = {}
        self._left: set[Key] | None = None

    @property
    def present(self) -> bool:
        """True if there are files of any slice, also of one that is no more."""
        return bool(self._written or self._strays())

    def write(
        self, slices: Iterable[Slice], gpus: Sequence[Gpu], kernel_refuses: frozenset[Key]
    ) -> list[str]:
        """Bring every hooked slice's files up to date; a line for each that could not be."""
        problems = []
        for one in filter(hooked, slices):
            try:
                content = slice_file(one, gpus, kernel_refuses=one.key in kernel_refuses)
                self._write(one, content)
            except ValueError as error:
                problems.append(
                    f"slice file of container {one.container} of {one.namespace}/{one.pod}: "
                    f"{error}; its hook is not told"
                )
            except OSError as error:
                problems.append(
                    f"{error.filename or self._base}: {error.strerror}; the hook of container "
                    f"{one.container} of {one.namespace}/{one.pod} is not told its slice"
                )
        return problems

    def remove(self, keep: Iterable[Key], pods: Iterable[str]) -> list[str]:
        """Remove the files of every other slice whose pod is not among ``pods``, the live ones.

        A container that still runs keeps its slice even when the checkpoint has lost it.
        """
        kept, alive = set(keep), set(pods)
        problems = []
        strays = self._strays()
        for key in sorted({*self._written, *strays}):
            if key in kept or key[0] in alive:
                continue
            try:
                directory = hook_directory(self._base, *key)
            except ValueError:
                # No slice has such a name, so it is not one of ours.
                strays.discard(key)
                continue
            try:
                _remove(directory)
            except OSError as error:
                problems.append(f"{error.filename or directory}: cannot remove: {error.strerror}")
                continue
            self._written.pop(key, None)
            strays.discard(key)
        return problems

    def used(self, one: Slice) -> dict[int, int] | None:
        """Bytes the container's processes say they hold, by GPU (``pci_key``) of the slice.

        None where no file is. Raises ``audit_hook.ledger.LedgerError``.
        """
        gpus = [pci_key(share.bdf) for share in one.shares]
        directory = hook_directory(self._base, *one.key) / _LEDGER
        path = directory / ledger.LEDGER_NAME
        with suppress(OSError):
            status = path.lstat()
            # Nobody has written into it yet, as with most: it need not be read.
            if stat.S_ISREG(status.st_mode) and (status.st_blocks, status.st_size) == (
                0,
                ledger.LEDGER_BYTES,
            ):
                return dict.fromkeys(gpus, 0)
            if status.st_size > ledger.LEDGER_BYTES:
                _cut(path)
                raise ledger.LedgerError(
                    f"{path}: the container had made it {status.st_size} bytes long; cut back to "
                    f"{ledger.LEDGER_BYTES}, so that it cannot fill the node's {self._base}"
                )
        found = ledger.read_ledger(directory)
        if found is None:
            return None
        used = {gpu: found.used(gpu) for gpu in gpus}
        if max(used.values(), default=0) > _MOST_BYTES:
            raise ledger.LedgerError(
                f"{path}: expected at most {_MOST_BYTES} bytes of a GPU, found {used}: a process "
                "of the container wrote what it does not hold"
            )
        return used

    def _write(self, one: Slice, content: SliceFile) -> None:
        # For every slice in every pass: text, as building paths is most of the work.
        base = f"{self._base}/{SLICES}/{one.pod_uid}/{one.container}"
        if (
            self._written.get(one.key) == content
            and os.path.exists(f"{base}/{_SLICE}")  # noqa: PTH110
            and os.path.exists(f"{base}/{_LEDGER}/{ledger.LEDGER_NAME}")  # noqa: PTH110
        ):
            return
        directory = hook_directory(self._base, *one.key)
        books = directory / _LEDGER / ledger.LEDGER_NAME
        # Traversable for the runtime of a pod with a user namespace, and not to be listed.
        (self._base / SLICES).mkdir(mode=0o711, parents=True, exist_ok=True)
        (directory / _LEDGER).mkdir(mode=0o755, parents=True, exist_ok=True)
        _create_ledger(books)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_slice(content, descriptor, _SLICE)
        finally:
            os.close(descriptor)
        self._written[one.key] = content

    def _strays(self) -> set[Key]:
        """The slices a predecessor left files of, looked for once."""
        if self._left is None:
            self._left = {
                (pod.name, container.name)
                for pod in _directories(self._base / SLICES)
                for container in _directories(pod)
            }
        return self._left


def _create_ledger(path: Path) -> None:
    """An unused ledger, without taking anything from one that is in use."""
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except FileExistsError:
        return
    try:
        os.truncate(descriptor, ledger.LEDGER_BYTES)
        # Processes of any user of the container keep their books here.
        os.fchmod(descriptor, 0o666)
    finally:
        os.close(descriptor)


def _cut(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.truncate(descriptor, ledger.LEDGER_BYTES)
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> None:
    """What this module made, by name: whatever else is there is left, and an error."""
    for path in (
        directory / _LEDGER / ledger.LEDGER_NAME,
        directory / _SLICE,
        directory / f".{_SLICE}.new",
    ):
        path.unlink(missing_ok=True)
    for path in (directory / _LEDGER, directory):
        with suppress(FileNotFoundError):
            path.rmdir()
    # The pod's own directory stays while another of its containers is there.
    with suppress(OSError):
        directory.parent.rmdir()


def _directories(parent: Path) -> list[Path]:
    try:
        return [path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
