# SPDX-License-Identifier: Apache-2.0
"""Runs a command on a virtual node and brings its output and exit status back."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed import initramfs, qemu
from tests.testbed.streams import Control, MarkedStream

Sink = Callable[[bytes], object]

_CHUNK = 1 << 16
_BOOT_DEADLINE_S = 180.0
_LOG_TAIL_LINES = 40
_PANIC_MARKS = ("Kernel panic - not syncing", "Oops: ", "BUG: unable to handle")
_GUEST_FAILURE = "testbed: guest"
_TMPFS_PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/run"), Path("/var/log"))
_GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class VmError(Exception):
    """The machine did not carry the command to its end. `log` is the kernel's log."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        lines = self.log.splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([self.reason, f"last {len(lines)} lines of the kernel log:", *lines])


class VmTimeoutError(VmError):
    """The command was still running at the deadline."""


class VmPanicError(VmError):
    """The kernel panicked (an oops counts: nothing after it can be trusted)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel ready to boot. `modules` is what becomes /lib/modules/<release> in the guest."""

    name: str
    image: Path
    modules: Path


@dataclass(frozen=True, slots=True)
class Driver:
    """A simulated amdgpu.ko, the modules it needs in loading order, and its parameters."""

    module: Path
    depends: Sequence[str]
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """The virtual node.

    `image` is a block image that holds `image_dirs`, which then come from it instead of the host;
    `writable` are host directories the guest may write to; `lsm` is the kernel's `lsm=` list.
    """

    kernel: Kernel
    driver: Driver | None = None
    gpus: int = 0
    numa: bool = False
    lsm: str | None = None
    memory_mib: int = 2048
    image: Path | None = None
    image_dirs: Sequence[Path] = ()
    visible: Sequence[Path] = ()
    writable: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class VmResult:
    """Like subprocess.CompletedProcess. `boot_s`: seconds from start to the command's start."""

    args: Sequence[str]
    returncode: int
    stdout: bytes
    stderr: bytes
    kernel_log: str
    boot_s: float


@dataclass(slots=True)
class _Capture:
    data: bytearray = field(default_factory=bytearray)

    def __call__(self, chunk: bytes) -> None:
        self.data += chunk


def run(
    node: Node,
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    path: Sequence[Path] = (),
    timeout_s: float = 300.0,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
    log: Path | None = None,
) -> VmResult:
    """Boot `node`, run `command` as root in `cwd` (same path as on the host), end the machine.

    `path` is put before the usual PATH. Output goes to the sinks as it comes; a sink that is None
    collects it into the result. `log` is where the kernel's log is left, a temporary file if None.
    The deadline `timeout_s` counts from the start of the machine.

    Raises VmTimeoutError, VmPanicError, or VmError for everything else that is not the command's
    own end.
    """
    end = f"<end {secrets.token_hex(16)}>"
    captured = {qemu.STDOUT_PORT: _Capture(), qemu.STDERR_PORT: _Capture()}
    sinks: dict[int, Sink] = {
        qemu.STDOUT_PORT: stdout or captured[qemu.STDOUT_PORT],
        qemu.STDERR_PORT: stderr or captured[qemu.STDERR_PORT],
    }
    with tempfile.TemporaryDirectory(prefix="ringfence-vm-") as scratch:
        log = log or Path(scratch, "kernel.log")
        log.unlink(missing_ok=True)
        complaints = Path(scratch, "qemu.log")
        initrd = Path(scratch, "initrd")
        shares = [qemu.Share(f"share{i}", path) for i, path in enumerate(node.writable)]
        initrd.write_bytes(
            initramfs.fixed_part(node.kernel.modules)
            + initramfs.run_part(
                _settings(node, shares, [cwd, *node.visible], end),
                _script(command, cwd, {**_environment(path), **(env or {})}),
            )
        )
        started = time.monotonic()
        with _machine(node, initrd, shares, log, complaints) as (process, ports):
            session = _Session(
                process, ports, end.encode(), sinks, log, complaints, started, timeout_s
            )
            status = session.until_exit()
        return VmResult(
            args=list(command),
            returncode=status,
            stdout=bytes(captured[qemu.STDOUT_PORT].data),
            stderr=bytes(captured[qemu.STDERR_PORT].data),
            kernel_log=_text(log),
            boot_s=session.boot_s,
        )


@dataclass(slots=True)
class _Session:
    """One machine's life from its start to the command's exit status."""

    process: subprocess.Popen[bytes]
    ports: Mapping[int, socket.socket]
    end: bytes
    sinks: Mapping[int, Sink]
    log: Path
    complaints: Path
    started: float
    timeout_s: float
    boot_s: float = 0.0

    def until_exit(self) -> int:
        control = Control()
        streams = {number: MarkedStream(self.end) for number in self.sinks}
        try:
            with selectors.DefaultSelector() as selector:
                for number, port in self.ports.items():
                    selector.register(port, selectors.EVENT_READ, number)
                while control.status is None or not all(s.ended for s in streams.values()):
                    self._wait(selector, control, streams)
        finally:
            for number, stream in streams.items():
                if rest := stream.rest():
                    self.sinks[number](rest)
        return control.status

    def _wait(
        self,
        selector: selectors.BaseSelector,
        control: Control,
        streams: Mapping[int, MarkedStream],
    ) -> None:
        elapsed = time.monotonic() - self.started
        if elapsed >= self.timeout_s:
            what = "the command was still running" if control.started else "still booting"
            raise VmTimeoutError(f"{what} after {self.timeout_s:.0f} s", _text(self.log))
        if not control.started and elapsed >= _BOOT_DEADLINE_S:
            raise VmError(f"no command started within {_BOOT_DEADLINE_S:.0f} s", _text(self.log))
        for key, _ in selector.select(min(1.0, self.timeout_s - elapsed)):
            data = _received(self.ports[key.data])
            if not data:
                selector.unregister(key.fileobj)
            elif key.data == qemu.CONTROL_PORT:
                self._hear(control, data)
            elif output := streams[key.data].feed(data):
                self.sinks[key.data](output)
        if control.failure is not None:
            raise VmError(f"the virtual node: {control.failure}", _text(self.log))
        if not selector.get_map():
            raise self._ended_early()

    def _hear(self, control: Control, data: bytes) -> None:
        before = control.started
        try:
            control.feed(data)
        except ValueError as error:
            raise VmError(str(error), _text(self.log)) from error
        if control.started and not before:
            self.boot_s = time.monotonic() - self.started

    def _ended_early(self) -> VmError:
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return VmError("qemu closed its ports and did not end", _text(self.log))
        log = _text(self.log)
        for mark in _PANIC_MARKS:
            if line := next((line for line in log.splitlines() if mark in line), None):
                return VmPanicError(f"the kernel panicked: {line.strip()}", log)
        if line := next((line for line in log.splitlines() if _GUEST_FAILURE in line), None):
            return VmError(f"the virtual node: {line.partition(_GUEST_FAILURE)[2].strip()}", log)
        problem = _text(self.complaints)
        return VmError(
            f"the machine ended (qemu status {status}) before the command did. {problem}".strip(),
            log,
        )


@contextlib.contextmanager
def _machine(
    node: Node, initrd: Path, shares: Sequence[qemu.Share], log: Path, complaints: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Mapping[int, socket.socket]]]:
    """A running QEMU and our ends of its ports. It is gone when the block is left, however.

    `complaints` takes what QEMU itself has to say.
    """
    if shutil.which("qemu-system-x86_64") is None:
        raise VmError("qemu-system-x86_64 is not installed: run tests/testbed/prepare packages", "")
    with contextlib.ExitStack() as stack:
        ours: dict[int, socket.socket] = {}
        theirs: dict[int, socket.socket] = {}
        for number in (qemu.CONTROL_PORT, qemu.STDOUT_PORT, qemu.STDERR_PORT):
            near, far = socket.socketpair()
            ours[number] = stack.enter_context(near)
            theirs[number] = stack.enter_context(far)
        argv = qemu.arguments(
            qemu.Machine(
                kernel=node.kernel.image,
                initrd=initrd,
                append=_append(node.lsm),
                log=log,
                memory_mib=node.memory_mib,
                gpus=node.gpus,
                numa=node.numa,
                image=node.image,
                shares=shares,
                ports={number: far.fileno() for number, far in theirs.items()},
            )
        )
        # setpriv: the machine must not outlive us even when we are killed with SIGKILL.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stack.enter_context(complaints.open("wb")),
            pass_fds=[far.fileno() for far in theirs.values()],
            # A terminal's Ctrl-C is ours to handle.
            start_new_session=True,
        )
        try:
            for far in theirs.values():
                far.close()
            yield process, ours
        finally:
            process.kill()
            process.wait()


def _append(lsm: str | None) -> str:
    words = ["console=ttyS0", "panic=-1", "oops=panic", "rdinit=/init", "mitigations=off"]
    return " ".join([*words, f"lsm={lsm}"] if lsm is not None else words)


def _settings(
    node: Node, shares: Sequence[qemu.Share], visible: Sequence[Path], end: str
) -> dict[str, str]:
    driver = node.driver
    files = [*visible, *([driver.module.parent] if driver else [])]
    keep = dict.fromkeys(path for path in files if _hidden(path))
    options = driver.options if driver else {}
    return {
        "END": end,
        "MODULES_DIR": str(node.kernel.modules),
        "KEEP": " ".join(map(_word, keep)),
        "SHARES": " ".join(f"{share.tag}:{_word(share.path)}" for share in shares),
        "IMAGE_DIRS": " ".join(map(_word, node.image_dirs)),
        "DRIVER": str(driver.module) if driver else "",
        "DRIVER_DEPENDS": " ".join(driver.depends) if driver else "",
        "DRIVER_OPTIONS": " ".join(f"{name}={value}" for name, value in options.items()),
    }


def _hidden(path: Path) -> bool:
    """Whether one of the guest's own file systems would cover this host path."""
    return any(path.is_relative_to(place) and path != place for place in _TMPFS_PLACES)


def _word(path: Path) -> str:
    """A path the guest's shell lists can hold."""
    text = str(path)
    if any(character.isspace() or character in "*?[:" for character in text):
        raise ValueError(f"{text}: a path with a space or one of * ? [ : cannot be shown to the VM")
    return text


def _environment(path: Sequence[Path]) -> dict[str, str]:
    return {
        "PATH": ":".join([*map(str, path), _GUEST_PATH]),
        "HOME": "/root",
        "USER": "root",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def _script(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str:
    """A shell script that becomes `command` with exactly this environment."""
    assignments = [f"{name}={value}" for name, value in env.items()]
    words = shlex.join(["/usr/bin/env", "-i", *assignments, *command])
    return f"cd {shlex.quote(str(cwd))} || exit 126\nexec {words}\n"


def _received(port: socket.socket) -> bytes:
    """Bytes from a port, empty at its end."""
    try:
        return port.recv(_CHUNK)
    except ConnectionResetError:
        return b""


def _text(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
