# SPDX-License-Identifier: Apache-2.0
"""The checkpoint: the slices given out on this node, written by the device plugin alone.

A JSON object ``{"schema": 1, "slices": [...]}``. It is believed entry by entry: a bad entry is left
out and reported, garbage or another schema is a CheckpointError, and then the reader keeps what it
knew before.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from enforcer.model import ContainerKind, Share, Slice, pci_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SCHEMA = 1
FILE = "slices.json"
SLICES = "slices"
"""Directory below ``/run/ringfence`` with the hook's files, by pod UID and container."""

_Item = TypeVar("_Item")

# The pod UID becomes part of a cgroup path, the rest of messages and metric labels.
_UID = _NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]{0,252}")
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", re.ASCII)
_CUS = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)
_MAX_BYTES = 1 << 50
"""More than a GPU has, and little enough for the sums of all slices to stay within 64 bits."""
_DEEPEST, _LONGEST = 3, 80
"""Of what is shown of an entry that is left out."""
_KEEPING = "keeping the slices known before"


class CheckpointError(Exception):
    """The checkpoint as a whole cannot be used."""


class _Bad(Exception):  # noqa: N818 - never leaves this module
    """One entry is unusable; the message starts with the path of the field."""


def encode(slices: Iterable[Slice]) -> str:
    """The checkpoint's text."""
    return document(map(encode_slice, slices))


def document(lines: Iterable[str]) -> str:
    """The checkpoint's text, of what ``encode_slice`` made of each slice."""
    entries = ",\n".join(lines)
    return f'{{"schema": {SCHEMA}, "slices": [\n{entries}\n]}}\n'


def encode_slice(one: Slice) -> str:
    """The line of one slice in the checkpoint."""
    entry: dict[str, object] = {
        "pod_uid": one.pod_uid,
        "namespace": one.namespace,
        "pod": one.pod,
        "container": one.container,
        "kind": one.kind.value,
        "device_ids": list(one.device_ids),
        "shares": [_encode_share(share) for share in one.shares],
        "created": one.created,
    }
    if one.oversubscribe:
        entry["oversubscribe"] = True
    if one.hook is not None:
        entry["hook"] = one.hook
    if one.priority is not None:
        entry["priority"] = one.priority
    return json.dumps(entry)


def _encode_share(share: Share) -> dict[str, object]:
    entry: dict[str, object] = {
        "bdf": share.bdf,
        "vram_bytes": share.vram_bytes,
        "cus": share.cus,
    }
    # Optional members came later: they are written only where a reader must know them.
    if share.partition is not None:
        entry["partition"] = share.partition
    return entry


def decode(text: str) -> tuple[list[Slice], list[str]]:
    """The slices of a checkpoint, and a line for each entry that was left out.

    Raises CheckpointError for what is not a checkpoint of this schema.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"expected JSON, found: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise CheckpointError(f"expected an object with schema {SCHEMA}, found {_shown(found)}")
    entries = document.get("slices")
    if not isinstance(entries, list):
        raise CheckpointError(f"slices: expected a list, found {type(entries).__name__}")
    slices: dict[tuple[str, str], Slice] = {}
    problems: list[str] = []
    for index, entry in enumerate(entries):
        try:
            one = _slice(entry, f"slices[{index}]")
            if one.key in slices:
                raise _Bad(
                    f"slices[{index}]: container {one.container!r} of pod {one.pod_uid} twice"
                )
            slices[one.key] = one
        except _Bad as error:
            problems.append(str(error))
    return list(slices.values()), problems


def read_checkpoint(path: Path) -> tuple[list[Slice], list[str]]:
    """The slices in the file at ``path`` as ``decode``; none where there is no file yet."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return [], []
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot read: {error}") from error
    try:
        slices, problems = decode(text)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return slices, [f"{path}: {problem}" for problem in problems]


class Checkpoint:
    """A reader's view of the file at ``path``: its last good state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._slices: list[Slice] = []
        self._problems: list[str] = []

    def read(self) -> tuple[list[Slice], list[str]]:
        """The slices and a line for each problem; the file is read again when it is another one.

        A file that cannot be used leaves the slices as they were. A file that is gone does so too:
        the plugin never removes it, and limits must not end with it.
        """
        try:
            seen = self._identity()
            if seen is None and self._seen is not None:
                return self._slices, [f"{self.path}: gone; {_KEEPING}"]
            if seen != self._seen:
                self._slices, self._problems = read_checkpoint(self.path)
                self._seen = seen
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError):
                # Nothing is known of the file, and it can be read later without having changed.
                return self._slices, [f"{error}; {_KEEPING}"]
            self._problems = [f"{error}; {_KEEPING}"]
            self._seen = seen
        return self._slices, self._problems

    def _identity(self) -> tuple[int, int, int] | None:
        """Of the file that is there now; None where there is none. Raises CheckpointError."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot read: {error}") from error
        return status.st_ino, status.st_mtime_ns, status.st_size


def write_checkpoint(path: Path, slices: Iterable[Slice]) -> None:
    """Replace the file at ``path``: after a crash it is the old one or the new one, never torn.

    Raises OSError, and leaves the old file, when the disk does not take it.
    """
    _replace(path, encode(slices), durable=True)
    _flush_directory(path.parent)


def write_document(path: Path, text: str) -> None:
    """As ``write_checkpoint``, of its text, for everything but a power cut.

    That may bring the old file back, or tear the new one, until ``flush_document``. It does not
    wait for the disk.
    """
    _replace(path, text, durable=False)


def flush_document(path: Path) -> None:
    """The file at ``path`` survives a power cut when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _flush_directory(path.parent)


def _replace(path: Path, text: str, *, durable: bool) -> None:
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    new.replace(path)


def _flush_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def hook_directory(base: Path, pod_uid: str, container: str) -> Path:
    """The host's directory with the files of one container's hook (docs/hook-files.md).

    ``base`` is the host's ``/run/ringfence``. The enforcer makes the directory, ``slice`` and
    ``ledger/usage.v1`` in it. Raises ValueError for a name that cannot name a directory.
    """
    for name in (pod_uid, container):
        if not _NAME.fullmatch(name):
            raise ValueError(f"expected a name of the form {_NAME.pattern}, found {name!r}")
    return base / SLICES / pod_uid / container


def _slice(entry: object, where: str) -> Slice:
    fields = _object(entry, where)
    shares = _list(fields, "shares", where, _share)
    if not shares:
        raise _Bad(f"{where}.shares: expected at least one, found none")
    priority = fields.get("priority")
    if priority is not None and (type(priority) is not int or priority not in {0, 1}):
        raise _Bad(f"{where}.priority: expected 0, 1 or null, found {_shown(priority)}")
    kind = _string(fields, "kind", where)
    if kind not in tuple(ContainerKind):
        raise _Bad(f"{where}.kind: expected {', '.join(ContainerKind)}, found {_shown(kind)}")
    return Slice(
        pod_uid=_string(fields, "pod_uid", where, _UID),
        namespace=_string(fields, "namespace", where, _NAME),
        pod=_string(fields, "pod", where, _NAME),
        container=_string(fields, "container", where, _NAME),
        kind=ContainerKind(kind),
        device_ids=_list(fields, "device_ids", where, _device_id),
        shares=shares,
        created=_created(fields, where),
        oversubscribe=_flag(fields, "oversubscribe", where),
        hook=_flag(fields, "hook", where) if "hook" in fields else None,
        priority=priority,
    )


def _share(entry: object, where: str) -> Share:
    fields = _object(entry, where)
    bdf = _string(fields, "bdf", where)
    try:
        pci_key(bdf)
    except ValueError as error:
        raise _Bad(f"{where}.bdf: {error}") from None
    size = fields.get("vram_bytes", _Bad)
    # bool is an int to Python, not to JSON.
    if size is not None and (
        not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _MAX_BYTES
    ):
        found = "none" if size is _Bad else _shown(size)
        raise _Bad(f"{where}.vram_bytes: expected bytes above 0 or null, found {found}")
    cus = None if fields.get("cus") is None else _string(fields, "cus", where, _CUS)
    partition = fields.get("partition")
    if partition is not None and (type(partition) is not int or not 0 <= partition < 64):
        raise _Bad(f"{where}.partition: expected 0 to 63 or null, found {_shown(partition)}")
    return Share(bdf=bdf, vram_bytes=size, cus=cus, partition=partition)


def _created(fields: dict[str, Any], where: str) -> str:
    text = _string(fields, "created", where, _CREATED)
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise _Bad(f"{where}.created: expected a time, found {_shown(text)}") from None
    return text


def _flag(fields: dict[str, Any], key: str, where: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        raise _Bad(f"{where}.{key}: expected true or false, found {_shown(value)}")
    return value


def _device_id(entry: object, where: str) -> str:
    if not isinstance(entry, str) or not entry:
        raise _Bad(f"{where}: expected a device id, found {_shown(entry)}")
    return entry


def _shown(value: object) -> str:
    """What was found, cut short: it can be as large as the file, and too deep for ``repr``."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = _DEEPEST, _LONGEST, _LONGEST
    return short.repr(value)


def _object(entry: object, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _Bad(f"{where}: expected an object, found {type(entry).__name__}")
    return entry


def _string(
    fields: dict[str, Any], key: str, where: str, pattern: re.Pattern[str] | None = None
) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise _Bad(f"{where}.{key}: expected text, found {_shown(value)}")
    if pattern is not None and not pattern.fullmatch(value):
        raise _Bad(f"{where}.{key}: expected the form {pattern.pattern}, found {_shown(value)}")
    return value


def _list(
    fields: dict[str, Any], key: str, where: str, item: Callable[[object, str], _Item]
) -> tuple[_Item, ...]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise _Bad(f"{where}.{key}: expected a list, found {type(value).__name__}")
    return tuple(item(entry, f"{where}.{key}[{index}]") for index, entry in enumerate(value))
