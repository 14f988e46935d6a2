# SPDX-License-Identifier: Apache-2.0
"""What a container is to the hook: a slice file, a ledger directory, an environment, processes.

Each command runs in a mount namespace of its own with the container's slice file and ledger at the
fixed paths, and unmodified HIP and ROCr over the stand-in thunk. The node's files stay as they are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from audit_hook.slice import GpuShare, SliceFile, format_slice

from . import sysfs
from .build import rocr_is_5

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20
GPU = "0000:03:00.0"
SECOND_GPU = "0000:04:00.0"

HOOK = Path("/usr/local/ringfence")
"""Where a pod finds the hook's files."""
THUNK = Path("/usr/local/thunk")
PROGRAMS = Path("/usr/local/programs")
_OUT = Path("/srv")
WITHOUT_IMAGES = {"HSA_DISABLE_IMAGE": "1"}
"""For ROCr from 5.4: its address library asserts on a made-up chip."""

_ENTER_ROOTFS = """
set -e
mkdir "$WORK/upper" "$WORK/over" "$WORK/root"
mount -t overlay -o "lowerdir=$ROOTFS,upperdir=$WORK/upper,workdir=$WORK/over" overlay "$WORK/root"
cd "$WORK/root"
mkdir -p proc dev srv tmp run/ringfence/ledger usr/local/ringfence usr/local/thunk \\
  usr/local/programs
# Unpacked packages have no base-files, which makes these links.
[ -e lib ] || ln -s usr/lib lib
[ -e lib64 ] || ln -s usr/lib64 lib64
if [ -d "$ROOT/machine" ]; then
  mount -t tmpfs tmpfs dev
  for name in null zero full random urandom tty; do
    : > "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
  done
  mkdir -m 1777 dev/shm
  cp -r "$ROOT/machine/." .
  mount --rbind /sys/devices/system sys/devices/system
else
  mount --rbind /dev dev
fi
mount -t proc proc proc
cp -r "$UPPER/ringfence" etc/
mount --bind "$ROOT/ledger" run/ringfence/ledger
mount --bind "$ROOT/out" srv
mount --bind "$ROOT/tmp" tmp
mount --bind "$BUILT/hook" usr/local/ringfence
mount --bind "$THUNK" usr/local/thunk
mount --bind "$BUILT/programs" usr/local/programs
box=usr/bin/busybox
[ -e "$box" ] || box=bin/busybox
exec chroot . "/$box" env -i "$@"
"""

_ENTER = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/ringfence
if [ -d "$ROOT/ledger" ]; then
  mkdir /run/ringfence/ledger
  mount --bind "$ROOT/ledger" /run/ringfence/ledger
fi
mount --bind "$ROOT/out" /srv
mount -t tmpfs tmpfs /usr/local
mkdir /usr/local/ringfence /usr/local/thunk /usr/local/programs
mount --bind "$BUILT/hook" /usr/local/ringfence
mount --bind "$THUNK" /usr/local/thunk
mount --bind "$BUILT/programs" /usr/local/programs
# After the hook: it may be named in ld.so.preload.
mount -t overlay -o "lowerdir=/etc,upperdir=$UPPER,workdir=$WORK" overlay /etc
mount --bind "$ROOT/tmp" /tmp
exec env -i "$@"
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command printed, and the lines that reached the driver."""

    code: int
    out: str
    err: str
    driver: str

    @property
    def lines(self) -> list[str]:
        """Lines of standard output."""
        return self.out.splitlines()


@dataclass(slots=True)
class Container:
    """One container on a node that has the hook's files and a stand-in for the driver."""

    root: Path
    built: Path
    """Holds hook/, thunk/ and programs/."""
    rootfs: Path | None = None
    """An unpacked image to run in; None: this machine's files."""
    thunk: str = "thunk"
    """The stand-in thunk below `built` that fits the ROCr in use."""
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("etc/ringfence", "ledger", "tmp", "out"):
            (self.root / name).mkdir(parents=True)
        for name in ("ledger", "tmp", "out"):
            (self.root / name).chmod(0o1777)
        self.env = {
            "PATH": "/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(THUNK),
            "THUNK_LOG": str(_OUT / "driver.log"),
            "LD_AUDIT": str(HOOK / "libringfence-audit.so"),
            "HSA_TOOLS_LIB": str(HOOK / "libringfence-hsa.so"),
        }
        if not rocr_is_5():
            self.env |= WITHOUT_IMAGES

    @property
    def log(self) -> Path:
        """Where the stand-in driver writes what reached it."""
        return self.root / "out" / "driver.log"

    @property
    def slice_path(self) -> Path:
        """The slice file, as the node wrote it."""
        return self.root / "etc" / "ringfence" / "slice"

    @property
    def ledger(self) -> Path:
        """The container's ledger directory on the node."""
        return self.root / "ledger"

    def add_machine(self, gpus: int = 1, vram_mib: int = 8192) -> None:
        """Device files and a sysfs for ROCr that has its thunk inside; only in a `rootfs`."""
        machine = self.root / "machine"
        sysfs.write(machine, gpus, vram_mib * MIB)
        (machine / "sys/devices/system").mkdir()
        self.env |= {
            "LD_PRELOAD": str(THUNK / "libdriver.so"),
            "THUNK_GPUS": str(gpus),
            "THUNK_VRAM": str(vram_mib * MIB),
        }
        self.env |= WITHOUT_IMAGES

    def give(
        self,
        *gpus: GpuShare,
        kernel_refuses: bool = False,
        priority: int | None = None,
        oversubscribe: bool = False,
    ) -> None:
        """Write the slice file."""
        content = SliceFile(gpus, kernel_refuses, priority, oversubscribe)
        self.slice_path.write_text(format_slice(content))

    def give_mib(self, mib: int, cus: str | None = None) -> None:
        """A slice of the first GPU that the hook holds."""
        self.give(GpuShare(GPU, mib * MIB, cus=cus, kfd_id=1001, render=128, card=0))

    def start(
        self,
        *command: str | Path,
        env: Mapping[str, str | None] | None = None,
        unshare: Sequence[str] = (),
        stdin: int | None = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start a command in the container; a variable given as None is unset."""
        variables = {k: v for k, v in {**self.env, **(env or {})}.items() if v is not None}
        # A work directory belongs to one overlay at a time.
        work = self.root / f"work-{os.urandom(4).hex()}"
        work.mkdir()
        upper = shutil.copytree(self.root / "etc", work / "etc")
        (work / "work").mkdir()
        # The variables are the command's alone: the shell that mounts must not load the hook.
        words = [*(f"{name}={value}" for name, value in variables.items()), *map(str, command)]
        script = _ENTER if self.rootfs is None else _ENTER_ROOTFS
        return subprocess.Popen(
            ["unshare", "--mount", *unshare, "sh", "-c", script, "sh", *words],
            env={
                "PATH": os.environ["PATH"],
                "ROOT": str(self.root),
                "BUILT": str(self.built),
                "UPPER": str(upper),
                "WORK": str(work / "work"),
                "ROOTFS": str(self.rootfs),
                "THUNK": str(self.built / self.thunk),
            },
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *command: str | Path,
        env: Mapping[str, str | None] | None = None,
        unshare: Sequence[str] = (),
        timeout: float = 60,
    ) -> Result:
        """Run a command in the container to its end."""
        process = self.start(*command, env=env, unshare=unshare)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{shlex.join(map(str, command))} hung: {out}{err}") from None
        driver = self.log.read_text() if self.log.exists() else ""
        return Result(process.returncode, out, err, driver)

    def hip(self, *words: str, program: str = "hip", **options: object) -> Result:
        """Run a HIP program of tests/hook/programs with these orders."""
        return self.run(PROGRAMS / program, *words, **options)  # type: ignore[arg-type]
