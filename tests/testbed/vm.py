# SPDX-License-Identifier: Apache-2.0
"""Runs a command on a virtual node, preparing what the node needs. For `run` and for tests."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import image, kernels, kmodule, machine, stock
from tests.testbed.cache import Cache, Report, StepError
from tests.testbed.machine import Sink, VmError, VmPanicError, VmResult, VmTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "NodeOptions",
    "StepError",
    "VmError",
    "VmPanicError",
    "VmResult",
    "VmTimeoutError",
    "run_vm",
]

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The virtual node wanted.

    `stock` names one of the distribution's own kernels, which then takes the place of `kernel` and
    runs without the simulated driver. `vram_gib` and `gfx` are what each simulated GPU claims to
    have and be; None is the driver's own default. `driver_options` are further module parameters.
    """

    kernel: str = "dmem"
    stock: str | None = None
    gpus: int = 2
    vram_gib: int | None = None
    gfx: str | None = None
    driver: bool = True
    module_btf: bool = True
    driver_options: Mapping[str, str] = field(default_factory=dict)
    lsm: str | None = None
    numa: bool = False
    memory_mib: int = 2048
    python_image: bool = True


def run_vm(
    command: Sequence[str],
    options: NodeOptions | None = None,
    *,
    timeout_s: float = 300.0,
    cwd: Path = PROJECT,
    env: Mapping[str, str] | None = None,
    out: Path | None = None,
    visible: Sequence[Path] = (),
    stdout: Sink | None = None,
    stderr: Sink | None = None,
    log: Path | None = None,
    cache: Cache | None = None,
    report: Report | None = None,
) -> VmResult:
    """Run `command` as root in `cwd` on a fresh node and return its status and output.

    `out` is a host directory the command may write to; it is in $RINGFENCE_OUT there. Everything
    else the command writes is gone with the node. `visible` are host directories below /tmp (which
    is the node's own) that the command reads.

    Raises StepError when the node cannot be prepared, VmTimeoutError, VmPanicError or VmError when
    it does not carry the command to its end.
    """
    options = options or NodeOptions()
    cache = cache or Cache.from_environment(os.environ)
    report = report or Report()
    venv = cache.root / "venv"
    environment = dict(env or {})
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        environment["RINGFENCE_OUT"] = str(out)
    return machine.run(
        _node(options, cache, report, out=out, visible=visible),
        command,
        cwd=cwd,
        env=environment,
        path=[venv / "bin"],
        timeout_s=timeout_s,
        stdout=stdout,
        stderr=stderr,
        log=log,
    )


def _node(
    options: NodeOptions,
    cache: Cache,
    report: Report,
    *,
    out: Path | None,
    visible: Sequence[Path],
) -> machine.Node:
    driver: machine.Driver | None = None
    if options.stock is not None:
        boot = stock.prepare(cache, options.stock, report)
    else:
        built = kernels.prepare(cache, options.kernel, report)
        boot = built.boot
        if options.driver:
            driver = kmodule.prepare(
                cache,
                built,
                report,
                module_btf=options.module_btf,
                options=_driver_options(options),
            )
    python: image.Image | None = None
    if options.python_image and (cache.root / "venv" / "bin" / "python").exists():
        python = image.prepare(cache, image.python_directories(cache.root / "venv"), report)
    return machine.Node(
        kernel=boot,
        driver=driver,
        gpus=0 if options.stock is not None else options.gpus,
        numa=options.numa,
        lsm=options.lsm,
        memory_mib=options.memory_mib,
        image=python.file if python else None,
        image_dirs=python.directories if python else (),
        visible=[PROJECT, *([] if python else [cache.root / "venv"]), *visible],
        writable=[out] if out is not None else [],
    )


def _driver_options(options: NodeOptions) -> dict[str, str]:
    named = {"vram_gib": options.vram_gib, "gfx": options.gfx}
    given = {name: str(value) for name, value in named.items() if value is not None}
    return {**given, **options.driver_options}
