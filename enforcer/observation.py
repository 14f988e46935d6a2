# SPDX-License-Identifier: Apache-2.0
"""Reads what KFD and DRM tell of the processes in some cgroups. Nothing of it needs BPF or dmem."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from enforcer.accounting import Processes
from enforcer.host import drm, kfd, procs
from enforcer.host.files import FileError
from enforcer.model import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from enforcer.host.roots import Roots
    from enforcer.model import Gpu


_MOST_SECONDS = 0.05
_LEAST_PROCESSES = 64
"""A pod whose processes beyond these take longer is not looked at whole: others wait meanwhile."""


def read_processes(
    roots: Roots, root: Path, paths: Iterable[str], gpus: Sequence[Gpu]
) -> tuple[Processes, list[str]]:
    """The processes of the cgroups at ``paths`` below ``root``, and what could not be read.

    Process ids are those of this process's namespace, which must be the initial one.
    """
    until = time.monotonic() + _MOST_SECONDS
    problems: list[str] = []
    pids: dict[str, set[int]] = {}
    for path in sorted(set(paths)):
        pids[path], unread = procs.pids(root / path)
        problems.extend(Problem(f"/{path}: processes", line) for line in unread)
    clients: dict[int, list[drm.DrmClient]] = {}
    asked: dict[int, dict[str, int]] = {}
    activity: dict[int, dict[str, kfd.KfdActivity]] = {}
    bdfs = {gpu.kfd_id: gpu.bdf for gpu in gpus}
    pod = f"/{min(pids, default='')}"
    every = sorted(set().union(*pids.values()))
    for done, pid in enumerate(every):
        if done >= _LEAST_PROCESSES and time.monotonic() > until:
            what = f"{pod}: usage seen in some processes only"
            problems.append(
                Problem(
                    what,
                    f"{pod}: usage seen in {done} of {len(every)} processes only: "
                    f"to look at all takes longer than {_MOST_SECONDS} s",
                )
            )
            break
        clients[pid], unread = drm.clients(roots.proc, [pid])
        problems.extend(Problem(f"{pod}: DRM clients", line) for line in unread)
        try:
            sizes = kfd.process_vram(roots.sys, pid)
            doing = kfd.process_activity(roots.sys, pid) if sizes else {}
        except FileError as error:
            problems.append(Problem(f"{pod}: KFD's counts", str(error)))
            continue
        asked[pid] = {}
        for gpu_id, size in sizes.items():
            if gpu_id in bdfs:
                # Partitions of one GPU have ids of their own.
                bdf = bdfs[gpu_id]
                asked[pid][bdf] = asked[pid].get(bdf, 0) + size
        activity[pid] = {}
        for gpu_id, one in doing.items():
            if gpu_id in bdfs:
                before = activity[pid].get(bdfs[gpu_id], kfd.KfdActivity())
                activity[pid][bdfs[gpu_id]] = before + one
    return Processes(pids, asked, clients, activity), problems
