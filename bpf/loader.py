# SPDX-License-Identifier: Apache-2.0
"""Loads the gate and the ledger, and reads and writes the maps they share.

Everything is pinned: maps below the pin root, links in one directory per generation, so limits
hold while no process of ours runs. Loading again takes over the same maps: the new programs are
attached beside the old ones, proven, made the acting generation by one word in the map ``active``,
and only then do the old ones go. A crash at any point leaves the old or the new ones acting.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bpf import call32, decode
from bpf.btf import MODULES, KernelTypes
from bpf.libbpf import BpfError, Libbpf, RingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

_log = logging.getLogger(__name__)

PIN_ROOT: Final = Path("/sys/fs/bpf/ringfence") / str(decode.SCHEMA)

_SELF_TEST_CMD: Final = 0x5246F5C5
_SELF_TEST_ERRNO: Final = errno.EUCLEAN
_MEMBARRIER_CMD_GLOBAL: Final = 1
_SYS_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}
_HAND_OVER_SECONDS: Final = 0.05
_ZERO: Final = decode.U32.pack(0)


class _Part(IntEnum):
    """Index in the map ``active``; the lower-case name is the prefix of its pins."""

    GATE = 0
    LEDGER = 1

    @property
    def prefix(self) -> str:
        return self.name.lower() + "_"


class _Stand(IntEnum):
    """Index in the map ``active`` after the parts."""

    LSM = 2


_LSM: Final = "file_ioctl_lsm"
_HOOKS: Final = MappingProxyType(
    {
        "file_ioctl": 0,
        "file_ioctl_again": 1,
        _LSM: 2,
        "file_ioctl_compat": 3,
        "file_ioctl_compat_again": 4,
    }
)
"""Programs that are each proven with a dummy call of their own: ``enum hook`` of maps.h."""

_STAND_INS: Final = frozenset({"file_ioctl", "file_ioctl_again"})
"""Whose work the security module's program does where it can."""

_COMPAT: Final = frozenset({3, 4})
"""The hooks that are asked about the calls of 32-bit processes."""

_TWO_WAYS_IN: Final = ("__bpf_prog_enter_sleepable", "__bpf_prog_enter_sleepable_recur")
"""The kernel's ways into a sleepable program: one that passes over a program already running on the
CPU, and one that does not, for security modules. Where there is only one, it passes over, and a
program that sleeps in a tenant's page fault would go unasked by everybody else there."""

# Where the kernel asks about 32-bit calls apart, nobody else is asked about those.
_REQUIRED_WHERE_THERE: Final = frozenset({"file_ioctl_compat"})

# Without one of these a part does not do what it is for; the others only see less.
_REQUIRED: Final = MappingProxyType(
    {
        _Part.GATE: frozenset({"file_ioctl", "task_exit"}),
        _Part.LEDGER: frozenset(
            {
                "bo_create",
                "bo_created",
                "bo_destroy",
                "kfd_ioctl_end",
                "drm_ioctl_end",
            }
        ),
    }
)

_VALUE_SIZES: Final = MappingProxyType(
    {
        "active": decode.ACTING.size,
        "limits": decode.LIMIT.size,
        "pending": decode.LIMIT.size,
        "usage": decode.USAGE.size,
        "tenants": decode.U32.size,
        "gpus_by_kfd_id": decode.U64.size,
        "gpus_by_minor": decode.U64.size,
        "builtin_majors": decode.U32.size,
        "buffers": decode.HOLDING.size,
        "resources": decode.HOLDING.size,
        "clients": decode.U64.size,
        "svm": decode.SVM_USAGE.size,
        "cu_masks": decode.CU_MASK.size,
        "queues": decode.QUEUE.size,
        "compute": decode.COMPUTE.size,
        "policy": decode.U32.size,
        "population": decode.S64.size,
        "counters": decode.U64.size,
        "self_test": decode.SELF_TEST.size,
    }
)

_LATER: Final = frozenset({"svm", "cu_masks", "queues", "compute"})
"""Not there while the parts of an earlier version act, whose maps have the same schema."""

_COUNTED_BY_KEYS: Final = (
    "limits",
    "pending",
    "usage",
    "tenants",
    "clients",
    "svm",
    "cu_masks",
    "queues",
    "compute",
    "gpus_by_kfd_id",
    "gpus_by_minor",
)
"""Small enough that their fill is found by walking them."""


_FORGET: Final = "forget"
"""A program that is attached to nothing and run by ``Maps.forget``."""
_QUEUES: Final = "queue_created"
"""A program that only a ledger that follows queues has."""
_RECORD: Final = "record"
"""Beside a part's pins, a symbolic link (a BPF file system has no files) whose text says what was
attached, and from which build. It is made last: without it a part is never taken for whole."""
_NAME_MAX: Final = 255
_DUMMY_CALLS: Final = 3
"""One may be passed over, as a task was preempted inside the program on that CPU."""
_ATTACHING: Final = 1
"""Grows when the same object would be attached in another way."""
_PROBES: Final = "ledger_probes.bpf.o"
_PROBE: Final = "kprobe/"
_REQUIRED_PROBES: Final = frozenset({"bo_create", "bo_destroy", "ioctl_end"})
_ONLY_PROBED: Final = "bo_init"
_REQUIRED_ONE_OF: Final = frozenset({_ONLY_PROBED, f"{_ONLY_PROBED}_dkms"})
_SYMBOL: Final = re.compile(rb"^[0-9a-f]+ [tT] (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Pinned:
    """An open map."""

    fd: int
    key_size: int
    value_size: int
    entries: int


class Maps:
    """The pinned maps. Close it, or use it in a ``with`` statement."""

    def __init__(self, library: Libbpf, pin_root: Path) -> None:
        self._lib = library
        self.pin_root = pin_root
        self._maps: dict[str, _Pinned] = {}
        self._ring: RingBuffer | None = None
        self._ring_fd = -1
        try:
            for name, value_size in _VALUE_SIZES.items():
                if name in _LATER and not (pin_root / name).exists():
                    continue
                fd = library.open_pinned(pin_root / name)
                self._maps[name] = pinned = _Pinned(fd, *library.map_sizes(fd))
                if pinned.value_size != value_size:
                    raise BpfError(
                        f"{pin_root / name}: values of {pinned.value_size} bytes, expected "
                        f"{value_size}; another version's map, remove it with `ringfence enforcer "
                        "--unload` of that version"
                    )
        except BpfError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the descriptors; the pinned maps stay."""
        if self._ring is not None:
            self._ring.close()
            os.close(self._ring_fd)
            self._ring = None
        for pinned in self._maps.values():
            os.close(pinned.fd)
        self._maps.clear()

    def _walk(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        if name in _LATER and name not in self._maps:
            return iter(())
        pinned = self._maps[name]
        return self._lib.walk(pinned.fd, pinned.key_size, pinned.value_size, pinned.entries)

    def _items(self, name: str) -> list[tuple[bytes, bytes]]:
        return list(dict(self._walk(name)).items())

    def set_limit(self, cgroup: int, gpu: int, size: int | None) -> None:
        """What the cgroup may hold of the GPU, in bytes; None: accounted, not limited."""
        value = decode.pack_limit(size)
        # In this order, so that a tenant without its limit yet is refused and not passed by.
        tenants, key = self._maps["tenants"], decode.U64.pack(cgroup)
        # One that is known may have been marked by the programs.
        if self._lib.lookup(tenants.fd, key, tenants.value_size) is None:
            self._lib.update(
                tenants.fd, key, decode.U32.pack(1), f"limit of cgroup {cgroup}: tenants"
            )
        self._lib.update(
            self._maps["limits"].fd,
            decode.pack_key(cgroup, gpu),
            value,
            f"limit of cgroup {cgroup} on GPU {gpu:#x}",
        )

    def delete_limit(self, cgroup: int, gpu: int) -> bool:
        """False if there was none. With its last limit the cgroup is no tenant any more.

        Its compute units on the GPU go with it.
        """
        existed = self._lib.delete(self._maps["limits"].fd, decode.pack_key(cgroup, gpu))
        if "cu_masks" in self._maps:
            self.delete_cu_mask(cgroup, gpu)
        if all(holder != cgroup for holder, _ in self.limits()):
            self._lib.delete(self._maps["tenants"].fd, decode.U64.pack(cgroup))
        return existed

    def limits(self) -> dict[tuple[int, int], int | None]:
        """(cgroup, GPU) -> bytes, None for accounted without a limit."""
        return {
            decode.unpack_key(key): decode.unpack_limit(value)
            for key, value in self._items("limits")
        }

    def set_pending(self, pod: int, gpu: int, size: int | None) -> None:
        """What a cgroup made directly below this one is limited to, before its mkdir returns.

        Bytes; None: accounted, not limited. Only below a cgroup with a limit of its own, and on a
        GPU that ``set_gpus`` has named. ``set_limit`` replaces what came of it.
        """
        self._lib.update(
            self._maps["pending"].fd,
            decode.pack_key(pod, gpu),
            decode.pack_limit(size),
            f"pending limit below cgroup {pod} on GPU {gpu:#x}: pending",
        )

    def delete_pending(self, pod: int, gpu: int) -> bool:
        """False if there was none."""
        return self._lib.delete(self._maps["pending"].fd, decode.pack_key(pod, gpu))

    def overran(self) -> frozenset[int]:
        """The cgroups that came to be above a limit by what nothing had let pass, at any time."""
        return frozenset(
            decode.U64.unpack(key)[0]
            for key, value in self._items("tenants")
            if decode.U32.unpack(value)[0] & decode.TENANT_OVERRAN
        )

    def pending(self) -> dict[tuple[int, int], int | None]:
        """(pod's cgroup, GPU) -> bytes, None for accounted without a limit."""
        return {
            decode.unpack_key(key): decode.unpack_limit(value)
            for key, value in self._items("pending")
        }

    def set_cu_mask(self, cgroup: int, gpu: int, mask: decode.CuMask) -> None:
        """The compute units a container's queues on this GPU are to be masked to.

        Its own cgroup's, not its pod's: the innermost that has any is what counts. Those made
        before are told apart with their next mask.
        """
        self._lib.update(
            self._maps["cu_masks"].fd,
            decode.pack_key(cgroup, gpu),
            decode.pack_cu_mask(mask),
            f"compute units of cgroup {cgroup} on GPU {gpu:#x}: cu_masks",
        )

    def delete_cu_mask(self, cgroup: int, gpu: int) -> bool:
        """Any compute unit from now on; False if there was no mask. Also goes with its cgroup."""
        return self._lib.delete(self._maps["cu_masks"].fd, decode.pack_key(cgroup, gpu))

    def cu_masks(self) -> dict[tuple[int, int], decode.CuMask]:
        """(cgroup, GPU) -> its compute units."""
        return {
            decode.unpack_key(key): decode.unpack_cu_mask(value)
            for key, value in self._items("cu_masks")
        }

    def usage(self) -> dict[tuple[int, int], decode.LedgerUsage]:
        """(cgroup, GPU) -> what it holds."""
        svm, compute = dict(self._items("svm")), dict(self._items("compute"))
        return {
            decode.unpack_key(key): decode.unpack_usage(value, svm.get(key), compute.get(key))
            for key, value in self._items("usage")
        }

    def delete_usage(self, cgroup: int, gpu: int) -> bool:
        """Forget an entry that holds nothing and has no limit; False if it must stay."""
        key = decode.pack_key(cgroup, gpu)
        usage = self._maps["usage"]
        if self._lib.lookup(self._maps["limits"].fd, key, decode.LIMIT.size) is not None:
            return False
        value = self._lib.lookup(usage.fd, key, usage.value_size)
        if value is None:
            return False
        beside = [self._maps[name] for name in ("svm", "compute") if name in self._maps]
        more = [self._lib.lookup(one.fd, key, one.value_size) for one in beside]
        if not decode.unpack_usage(value, *more).empty:
            return False
        for one in beside:
            self._lib.delete(one.fd, key)
        return self._lib.delete(usage.fd, key)

    def forget(self, cgroup: int, gpu: int) -> int:
        """Drop what a cgroup holds of a GPU by the ledger alone; the number of buffers dropped.

        For one in which no process is left and of which the kernel's own books (KFD, fdinfo, dmem)
        say 0: their ends were missed, or no ledger was attached. All cgroups that were charged for
        a buffer, its pod's among them, are given it back; whoever comes to its end later finds
        nothing to do. Raises BpfError where no ledger acts, or one of a version without this.
        """
        generation = self._acting(_Part.LEDGER)[1]
        if not generation:
            raise BpfError(f"{self.pin_root}: no ledger is attached that could forget")
        return self._lib.run(
            self.pin_root / str(generation) / (_Part.LEDGER.prefix + _FORGET), cgroup, gpu
        )

    def buffers(self) -> Iterator[tuple[int, decode.Holding]]:
        """Live buffers on the ledger, by the kernel's address of the object; some perhaps twice.

        There can be a million: what is asked of them is worked out on the way, not from a list.
        """
        for key, value in self._walk("buffers"):
            yield decode.U64.unpack(key)[0], decode.unpack_holding(value)

    def set_gpus(self, by_kfd_id: Mapping[int, int], by_minor: Mapping[int, int]) -> None:
        """Which GPU a KFD id and a DRM minor (render and card) mean; replaces what was there."""
        for name, wanted in (("gpus_by_kfd_id", by_kfd_id), ("gpus_by_minor", by_minor)):
            fd = self._maps[name].fd
            for number, gpu in wanted.items():
                self._lib.update(
                    fd, decode.U32.pack(number), decode.U64.pack(gpu), f"{name}: {number}"
                )
            for key, _ in self._items(name):
                if decode.U32.unpack(key)[0] not in wanted:
                    self._lib.delete(fd, key)

    def set_builtin_majors(self, majors: frozenset[int]) -> None:
        """Character majors to take for the driver's where it is no module (kfd's, and 226)."""
        fd = self._maps["builtin_majors"].fd
        for major in majors:
            self._lib.update(
                fd, decode.U32.pack(major), decode.U32.pack(1), f"builtin_majors: {major}"
            )
        for key, _ in self._items("builtin_majors"):
            if decode.U32.unpack(key)[0] not in majors:
                self._lib.delete(fd, key)

    def counters(self) -> dict[str, int]:
        """Lower-case names of ``decode.Counter`` -> count since the maps were made."""
        fd = self._maps["counters"].fd
        size = decode.U64.size * self._lib.possible_cpus()
        return {
            counter.name.lower(): sum(
                value
                for (value,) in decode.U64.iter_unpack(
                    self._lib.lookup(fd, decode.U32.pack(counter), size) or b""
                )
            )
            for counter in decode.Counter
        }

    def fill(self) -> dict[str, tuple[int, int]]:
        """Map -> (entries used, entries it has room for)."""
        filled: dict[str, tuple[int, int]] = {
            name: (len(self._items(name)), self._maps[name].entries)
            for name in _COUNTED_BY_KEYS
            if name in self._maps
        }
        population = self._maps["population"]
        for index, name in enumerate(("buffers", "resources")):
            value = self._lib.lookup(population.fd, decode.U32.pack(index), population.value_size)
            used: int = decode.S64.unpack(value)[0] if value else 0
            filled[name] = (used, self._maps[name].entries)
        return filled

    def ledger_acts(self) -> bool:
        """False before one was loaded, and after the driver went from under one of probes."""
        return self._acting(_Part.LEDGER) != (0, 0)

    def follows_queues(self) -> bool:
        """Whether the ledger that acts knows of compute queues; one of probes does not."""
        generation = self._acting(_Part.LEDGER)[1]
        return (self.pin_root / str(generation) / (_Part.LEDGER.prefix + _QUEUES)).exists()

    def set_policy(self, wanted: decode.Policy) -> None:
        """Holds from the next call on, and stays when this process ends."""
        for index, word in decode.pack_policy(wanted).items():
            key, value = decode.U32.pack(index), decode.U32.pack(word)
            self._lib.update(self._maps["policy"].fd, key, value, f"policy {index}")

    def policy(self) -> decode.Policy:
        """What the programs go by now."""
        fd = self._maps["policy"].fd
        return decode.unpack_policy(
            {
                index: decode.U32.unpack(
                    self._lib.lookup(fd, decode.U32.pack(index), decode.U32.size) or bytes(4)
                )[0]
                for index in decode.pack_policy(decode.Policy())
            }
        )

    def events(self) -> list[decode.Event]:
        """Refusals and kills since the last call, without waiting; one process at a time."""
        events, problems = decode.unpack_events(self._reader().take())
        for problem in problems:
            _log.warning("the gate told what is not understood: %s", problem)
        return events

    def events_fileno(self) -> int:
        """Readable when ``events`` has something."""
        return self._reader().fileno()

    def _reader(self) -> RingBuffer:
        if self._ring is None:
            self._ring_fd = self._lib.open_pinned(self.pin_root / "events")
            try:
                self._ring = self._lib.ring_buffer(self._ring_fd)
            except BpfError:
                os.close(self._ring_fd)
                raise
        return self._ring

    def _acting(self, part: _Part | _Stand) -> tuple[int, int]:
        value = self._lib.lookup(self._maps["active"].fd, decode.U32.pack(part), decode.ACTING.size)
        return decode.unpack_acting(value) if value else (0, 0)

    def _set_acting(self, part: _Part | _Stand, oldest: int, newest: int) -> None:
        self._lib.update(
            self._maps["active"].fd,
            decode.U32.pack(part),
            decode.ACTING.pack(oldest, newest),
            f"acting generation of the {part.name}",
        )

    def _hand_over(self, part: _Part, generation: int, *, lsm: bool) -> None:
        """Old and new act together for a moment, so that no event meets neither of them.

        ``lsm``: this gate's lsm program stands in for its fmod_ret ones. That is settled before the
        gate acts, and an older gate's answer stands until it does not act any more.
        """
        if lsm:
            self._set_acting(_Stand.LSM, self._acting(_Stand.LSM)[0] or generation, generation)
        oldest, newest = self._acting(part)
        if newest:
            self._set_acting(part, min(oldest, generation), max(newest, generation))
            _wait_for_running_programs()
        self._set_acting(part, generation, generation)
        if part is _Part.GATE:
            self._set_acting(_Stand.LSM, *(generation, generation) if lsm else (0, 0))

    def _stop(self, part: _Part) -> None:
        """The part's programs go by, from the next event on."""
        self._set_acting(part, 0, 0)
        if part is _Part.GATE:
            self._set_acting(_Stand.LSM, 0, 0)

    def _refused_dummy(self, generation: int, hook: int) -> bool:
        """Whether a call that only we can make is refused by this program of this generation.

        Also where we can make no such call: then its being attached is all there is to know.
        """
        self_test = self._maps["self_test"].fd
        compat = hook in _COMPAT
        token = secrets.randbits(32 if compat else 63) | 1
        self._lib.update(
            self_test, _ZERO, decode.SELF_TEST.pack(token, generation, hook), "self test"
        )
        try:
            return _ioctl_errno(token, compat=compat) in (_SELF_TEST_ERRNO, None)
        finally:
            self._lib.update(self_test, _ZERO, decode.SELF_TEST.pack(0, 0, 0), "self test")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A part whose programs are attached and acting."""

    pin_root: Path
    generation: int
    attached: Mapping[str, str | None]
    """Program -> None if it is attached, else why not; without those that were proven and then
    dropped because another does their work."""

    def _part(self) -> _Part:
        raise NotImplementedError

    def missed(self) -> dict[str, int]:
        """Program -> calls that passed it by, because it was running on that CPU already."""
        library = Libbpf()
        links = self.pin_root / str(self.generation)
        return {
            name: library.calls_missed(links / (self._part().prefix + name))
            for name, why_not in self.attached.items()
            if why_not is None
        }

    def detach(self) -> None:
        """Take the programs away; maps, limits and the other part stay."""
        _detach(self.pin_root, self._part())


class Gate(_Loaded):
    """The attached gate."""

    __slots__ = ()

    def _part(self) -> _Part:
        return _Part.GATE

    def self_test(self) -> bool:
        """Proof that the gate is asked: a dummy call is refused, and only for us."""
        with open_maps(self.pin_root) as maps:
            return (self.generation,) * 2 == maps._acting(_Part.GATE) and all(
                _refuses(maps, self.generation, hook)
                for name, hook in _HOOKS.items()
                if name in self.attached and self.attached[name] is None
            )

    @property
    def asked_by(self) -> str:
        """Which hook decides: ``lsm``, which waits for arguments not in memory, or ``fmod_ret``."""
        return "fmod_ret" if self.attached[_LSM] else "lsm"

    def unload(self) -> None:
        """Leave nothing behind: programs of both parts, maps, directories."""
        unload(self.pin_root)


class Ledger(_Loaded):
    """The attached ledger."""

    __slots__ = ()

    @property
    def by_probes(self) -> bool:
        """True where the driver has no type information and is followed by kprobes."""
        return _by_probes(self.attached)

    def _part(self) -> _Part:
        return _Part.LEDGER


def load_gate(object_path: Path, pin_root: Path = PIN_ROOT, *, keep: bool = False) -> Gate:
    """Attach the gate, or take over from the one attached.

    It refuses limited callers until a ledger is loaded too: without one nothing is ever given
    back. Where an earlier version's parts act, load the ledger first: that one follows what any
    gate lets pass. ``keep``: one that acts, is whole and is of this very build stays as it is.
    Raises BpfError, with the previous gate still acting.
    """
    kept = _kept(object_path, pin_root, _Part.GATE) if keep else None
    return Gate(pin_root, *(kept or _load(object_path, pin_root, _Part.GATE)))


def load_ledger(object_path: Path, pin_root: Path = PIN_ROOT, *, keep: bool = False) -> Ledger:
    """Attach the ledger to the driver, or take over from the one attached.

    A driver without type information is followed by kprobes, from the object beside this one. Its
    links hold the driver's module: ``detach`` before unloading that. ``keep`` as for the gate.
    Raises BpfError, with the previous ledger still acting, where the driver is not loaded or cannot
    be followed either way.
    """
    for path in (object_path, object_path.with_name(_PROBES)) if keep else ():
        if kept := _kept(path, pin_root, _Part.LEDGER):
            return Ledger(pin_root, *kept)
    with KernelTypes(Libbpf()) as types:
        typed = types.has_function("amdgpu_bo_create")
    if not typed and _symbols(frozenset({"amdgpu_bo_create"})):
        object_path = object_path.with_name(_PROBES)
    return Ledger(pin_root, *_load(object_path, pin_root, _Part.LEDGER))


def followed_by_probes(pin_root: Path = PIN_ROOT) -> bool:
    """Whether the ledger pinned there, by whatever process, goes by kprobes."""
    return any(pin_root.glob(f"*/{_Part.LEDGER.prefix}{_ONLY_PROBED}*"))


def open_maps(pin_root: Path = PIN_ROOT) -> Maps:
    """The maps a gate or ledger has pinned. Raises BpfError if there are none."""
    return Maps(Libbpf(), pin_root)


def unload(pin_root: Path = PIN_ROOT) -> None:
    """Remove every program, map and directory; harmless where there is nothing."""
    if not pin_root.is_dir():
        return
    with _locked(pin_root):
        # The kernel detaches a program a while after its link is gone: it must not act until then.
        with suppress(BpfError), Maps(Libbpf(), pin_root) as maps:
            for part in _Part:
                maps._stop(part)
        for part in _Part:
            _remove_links(pin_root, part, keep=None)
        for pin in pin_root.iterdir():
            pin.unlink()
    pin_root.rmdir()
    with suppress(OSError):  # another schema's directory may be beside ours
        pin_root.parent.rmdir()


def _load(object_path: Path, pin_root: Path, part: _Part) -> tuple[int, Mapping[str, str | None]]:
    library = Libbpf()
    _make_pin_root(pin_root)
    with _locked(pin_root):
        opened = library.open_object(object_path, pin_root)
        try:
            generation = 1 + max(_generations(pin_root), default=0)
            library.set_constant(opened, ".rodata.generation", decode.U32.pack(generation))
            attached = _select(library, opened, part)
            chosen = frozenset(name for name, why_not in attached.items() if why_not is None)
            library.load_object(opened, str(object_path))
            links = pin_root / str(generation)
            links.mkdir(mode=0o700)
            surroundings = _driver(), _map_numbers(library, pin_root)
            try:
                _attach(library, opened, links, part, attached)
                with Maps(library, pin_root) as maps:
                    if part is _Part.GATE:
                        _prove(maps, generation, links, attached)
                    lsm = part is _Part.GATE and attached[_LSM] is None
                    maps._hand_over(part, generation, lsm=lsm)
                if lsm:
                    _drop_stand_ins(links, attached)
            except BaseException:
                _remove(links)
                raise
            # What failed now may not the next time; that bpf is no security module stays so.
            if all(
                why_not is None or name not in chosen - {_LSM} for name, why_not in attached.items()
            ):
                _write_record(library, object_path, links, part, attached, surroundings)
            _remove_links(pin_root, part, keep=generation)
        finally:
            library.close_object(opened)
    return generation, MappingProxyType(attached)


def _kept(
    object_path: Path, pin_root: Path, part: _Part
) -> tuple[int, Mapping[str, str | None]] | None:
    """Generation and programs of a part that acts, is of this build and has all it had.

    The gate's programs are proven again, each with a call of its own; those of the ledger, which
    nobody can call, are compared with what was attached, all with the driver and the maps they were
    attached to. None, whatever is the matter with it.
    """
    library = Libbpf()
    with suppress(BpfError, OSError, ValueError, KeyError, TypeError), _locked(pin_root):
        with Maps(library, pin_root) as maps:
            oldest, generation = maps._acting(part)
            links = pin_root / str(generation)
            record = _decode((links / (part.prefix + _RECORD)).readlink().as_posix())
            if oldest != generation or record["build"] != _build(object_path):
                return None
            attached: dict[str, str | None] = dict.fromkeys(record["attached"])
            if (
                record["driver"] != _driver()
                or not record["maps"].items() <= _map_numbers(library, pin_root).items()
                or record["programs"] != _programs(library, links, part, attached)
                or (part is _Part.GATE and not _proven(maps, generation, attached))
            ):
                return None
        _remove_links(pin_root, part, keep=generation)
        return generation, MappingProxyType(attached | record["left_out"])
    return None


def _write_record(
    library: Libbpf,
    object_path: Path,
    links: Path,
    part: _Part,
    attached: Mapping[str, str | None],
    surroundings: tuple[list[int], dict[str, int]],
) -> None:
    """For ``_kept``. A part without one is in force all the same, and loaded anew the next time."""
    present = [name for name, why_not in attached.items() if why_not is None]
    with suppress(BpfError, OSError):
        record = {
            "build": _build(object_path),
            "driver": surroundings[0],
            "maps": surroundings[1],
            "attached": present,
            "left_out": {name: why for name, why in attached.items() if why is not None},
            "programs": _programs(library, links, part, present),
        }
        (links / (part.prefix + _RECORD)).symlink_to(_encode(record))


def _encode(record: Mapping[str, object]) -> str:
    """As a path to nowhere: whoever follows it must find each of its names short enough."""
    text = base64.urlsafe_b64encode(json.dumps(record).encode()).decode()
    return "/".join(text[at : at + _NAME_MAX] for at in range(0, len(text), _NAME_MAX))


def _decode(text: str) -> dict[str, Any]:
    """The reverse of ``_encode``. Raises ValueError."""
    record: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text.replace("/", "")))
    return record


def _driver() -> list[int]:
    """Which of the driver's modules are loaded, and which have type information; 0: not.

    By inode: sysfs makes a directory or file anew, under another, each time a module is loaded.
    """
    found = []
    for path in (
        Path("/sys") / part / name for part in ("module", "kernel/btf") for name in MODULES
    ):
        try:
            found.append(path.stat().st_ino)
        except FileNotFoundError:
            found.append(0)
    return found


def _map_numbers(library: Libbpf, pin_root: Path) -> dict[str, int]:
    """The kernel's number of each pinned map: programs stay with theirs, whatever is pinned."""
    return {path.name: library.map_number(path) for path in pin_root.iterdir() if not path.is_dir()}


def _build(object_path: Path) -> str:
    return hashlib.sha256(b"%d " % _ATTACHING + object_path.read_bytes()).hexdigest()


def _programs(library: Libbpf, links: Path, part: _Part, attached: Iterable[str]) -> str:
    """A digest of the code behind each pin of a part. Raises BpfError where one is missing."""
    tags = {name: library.program_tag(links / (part.prefix + name)) for name in sorted(attached)}
    if part is _Part.LEDGER:
        forget = links / (part.prefix + _FORGET)
        tags[_FORGET] = library.program_tag(forget, linked=False)
    return hashlib.sha256(repr(tags).encode()).hexdigest()


def _proven(maps: Maps, generation: int, attached: Mapping[str, str | None]) -> bool:
    """Whether the gate's programs refuse a dummy call each, and the right one decides."""
    lsm = (generation,) * 2 if _LSM in attached else (0, 0)
    return maps._acting(_Stand.LSM) == lsm and all(
        _refuses(maps, generation, hook) for name, hook in _HOOKS.items() if name in attached
    )


def _refuses(maps: Maps, generation: int, hook: int) -> bool:
    return any(maps._refused_dummy(generation, hook) for _ in range(_DUMMY_CALLS))


def _prove(maps: Maps, generation: int, links: Path, attached: dict[str, str | None]) -> None:
    """Have each program refuse a dummy call; one that does not is let go again."""
    for name, hook in _HOOKS.items():
        if attached[name] is not None or _refuses(maps, generation, hook):
            continue
        attached[name] = "attached, but it did not refuse a dummy call: the kernel does not run it"
        if name == _LSM:
            attached[name] = (
                "bpf is not among the active security modules (/sys/kernel/security/lsm)"
            )
        if name in _REQUIRED[_Part.GATE] | _REQUIRED_WHERE_THERE:
            raise BpfError(f"gate: {name}: {attached[name]}")
        (links / (_Part.GATE.prefix + name)).unlink()


def _drop_stand_ins(links: Path, attached: dict[str, str | None]) -> None:
    """With the security module's program in charge the others cost every ioctl and do nothing."""
    for name in _STAND_INS:
        if attached[name] is None:
            (links / (_Part.GATE.prefix + name)).unlink()
            del attached[name]


def _select(library: Libbpf, opened: int, part: _Part) -> dict[str, str | None]:
    """Leave out programs whose function the running kernel has not."""
    programs = list(library.programs(opened))
    targets = {
        name: section.partition("/")[2]
        for _, name, section in programs
        if not section.startswith(("tp_btf/", "raw_tp/"))
    }
    if _LSM in targets:
        targets[_LSM] = f"bpf_lsm_{targets[_LSM]}"
    by_probes = _by_probes(targets)
    # A driver with type information has that of what is probed, too, and it is sooner looked up.
    probed = {
        targets[name] for _, name, section in programs if by_probes and section.startswith(_PROBE)
    }
    symbols = _symbols(frozenset(probed)) if probed else frozenset()
    with KernelTypes(library) as types:
        present = {target for target in targets.values() if types.has_function(target)}
        lsm_passed_over = not all(types.has_function(name) for name in _TWO_WAYS_IN)
    required = _required(part, probes=by_probes)
    attached: dict[str, str | None] = {}
    for program, name, _ in programs:
        if name == _FORGET:
            continue
        target = targets.get(name)
        attached[name] = None
        if target in probed and target not in symbols:
            attached[name] = f"no {target} among the symbols of the kernel and its modules"
        elif target is not None and target not in probed and target not in present:
            attached[name] = (
                f"no {target} in the type information (BTF) of the kernel, {', '.join(MODULES)}"
            )
        elif name == _LSM and lsm_passed_over:
            attached[name] = "this kernel would pass it over for others while it sleeps for one"
        if attached[name] is None:
            continue
        if name in required:
            raise BpfError(
                f"{part.name.lower()}: {attached[name]}; is amdgpu loaded, and "
                "built with CONFIG_DEBUG_INFO_BTF_MODULES?"
            )
        library.skip_program(program)
    if by_probes and all(attached[name] is not None for name in _REQUIRED_ONE_OF):
        raise BpfError(f"ledger: {attached[min(_REQUIRED_ONE_OF)]}; is it amdgpu that is loaded?")
    return attached


def _by_probes(programs: Iterable[str]) -> bool:
    """Whether they are those of the ledger for a driver without type information."""
    return _ONLY_PROBED in programs


def _required(part: _Part, *, probes: bool) -> frozenset[str]:
    return _REQUIRED_PROBES if probes else _REQUIRED[part]


def _symbols(wanted: frozenset[str]) -> frozenset[str]:
    """Those of these functions that the kernel and its modules have (/proc/kallsyms)."""
    found = {name.decode() for name in _SYMBOL.findall(Path("/proc/kallsyms").read_bytes())}
    return wanted & found


def _attach(
    library: Libbpf, opened: int, links: Path, part: _Part, attached: dict[str, str | None]
) -> None:
    """Attach and pin each; what may be missing is noted, not fatal."""
    required = _required(part, probes=_by_probes(attached)) | _REQUIRED_WHERE_THERE
    for program, name, _ in library.programs(opened):
        if name == _FORGET:
            library.pin_program(program, links / (part.prefix + name))
            continue
        if attached[name] is not None:
            continue
        try:
            library.attach_pinned(program, name, links / (part.prefix + name))
        except BpfError as error:
            if name in required:
                raise
            attached[name] = str(error)


def _detach(pin_root: Path, part: _Part) -> None:
    with _locked(pin_root):
        with Maps(Libbpf(), pin_root) as maps:
            maps._stop(part)
        _remove_links(pin_root, part, keep=None)


def _make_pin_root(pin_root: Path) -> None:
    try:
        pin_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BpfError(
            f"{pin_root}: {error.strerror}; expected a BPF file system, mount one with "
            "`mount -t bpf bpf /sys/fs/bpf`"
        ) from None


def _generations(pin_root: Path) -> set[int]:
    return {int(entry.name) for entry in pin_root.iterdir() if entry.name.isdecimal()}


def _remove_links(pin_root: Path, part: _Part, keep: int | None) -> None:
    """Links of a part in other generations, and directories that are empty then."""
    for generation in _generations(pin_root) - {keep}:
        directory = pin_root / str(generation)
        for pin in directory.iterdir():
            if pin.name.startswith(part.prefix):
                pin.unlink()
        with suppress(OSError):  # the other part's links are in it
            directory.rmdir()


def _remove(links: Path) -> None:
    for pin in links.iterdir():
        pin.unlink()
    links.rmdir()


@contextmanager
def _locked(pin_root: Path) -> Iterator[None]:
    """One loader at a time, also across processes; the kernel drops it with its holder."""
    descriptor = os.open(pin_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BpfError(f"{pin_root}: another process is loading BPF programs; try again") from None
    finally:
        os.close(descriptor)


def _ioctl_errno(token: int, *, compat: bool = False) -> int | None:
    """The errno of the self-test call, 0 if it was let through.

    ``compat``: as a 32-bit process makes it; None if this one cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        if compat:
            return call32.ioctl_errno(descriptor, _SELF_TEST_CMD, token)
        result = libc.ioctl(descriptor, ctypes.c_ulong(_SELF_TEST_CMD), ctypes.c_ulong(token))
        return ctypes.get_errno() if result < 0 else 0
    finally:
        os.close(descriptor)


def _wait_for_running_programs() -> None:
    """Programs run as RCU readers; membarrier waits for a grace period where it can."""
    number = _SYS_MEMBARRIER.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(
            ctypes.c_long(number), ctypes.c_int(_MEMBARRIER_CMD_GLOBAL), ctypes.c_uint(0)
        )
    time.sleep(_HAND_OVER_SECONDS)
