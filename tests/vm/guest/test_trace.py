# SPDX-License-Identifier: Apache-2.0
"""Each tool shows a known, prime number of events, no more and no fewer, and who they are of."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from enforcer.host import dmem
from enforcer.model import MIB
from tests.vm.guest.caller import Caller
from tests.vm.guest.services import CGROUP
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer

ID = "fedcba987654" + "3" * 52
PRIME = 67


@pytest.fixture
def container() -> Iterator[Path]:
    pod = CGROUP / "trace-pod.slice"
    scope = pod / f"cri-containerd-{ID}.scope"
    scope.mkdir(parents=True)
    yield scope
    scope.rmdir()
    pod.rmdir()


@contextmanager
def tool(name: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A tool that is in place: its first line has come."""
    running = subprocess.Popen(
        [sys.executable, "-m", f"bpf.tools.{name}", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline(), (running.communicate(timeout=60), name)
        yield running
    finally:
        running.kill()
        running.wait()


def rows(running: subprocess.Popen[str]) -> list[list[str]]:
    """The words of every further line, once the tool has ended by itself."""
    out, err = running.communicate(timeout=180)
    assert (running.returncode, err) == (0, "")
    assert all(len(line) < 80 for line in out.splitlines())
    return [line.split() for line in out.splitlines() if line]


def test_gatesnoop_shows_every_refusal_and_nothing_else(
    enforcer: Enforcer, pods: Pods, gpus: list[Gpu]
) -> None:
    one = tenant(pods, enforcer, gpus[0], 16)
    other = tenant(pods, enforcer, gpus[1], 16)
    short = one.container.path.name.removeprefix("cri-containerd-")[:12]
    with tool("gatesnoop", "--container", short, "--count", str(PRIME)) as snoop:
        for call in range(PRIME):
            assert other.client.refused(f"kfd-alloc {gpus[1].kfd_id} {32 * MIB}") == "ENOMEM"
            one.client.ask(f"kfd-free {one.client.kfd_alloc(gpus[0], MIB)}")
            if call % 2:
                assert one.client.refused(f"gem-create {32 * MIB} vram") == "ENOMEM"
            else:
                assert one.client.refused(f"kfd-alloc {gpus[0].kfd_id} {32 * MIB}") == "ENOMEM"
        found = rows(snoop)
    assert len(found) == PRIME
    assert {tuple(words[3:]) for words in found} == {
        (short, gpus[0].bdf, "gem-create", "32M", "ENOMEM"),
        (short, gpus[0].bdf, "kfd-alloc", "32M", "ENOMEM"),
    }
    assert sum(words[5] == "gem-create" for words in found) == PRIME // 2


@pytest.mark.dmem
def test_dmemsnoop_shows_every_charge_what_is_given_back_and_what_fails(
    container: Path, gpu: Gpu
) -> None:
    region = f"drm/{gpu.bdf}/vram"
    for parent in (CGROUP, container.parent):
        (parent / "cgroup.subtree_control").write_text("+dmem")
    render = f"/dev/dri/renderD{gpu.render}"
    with Caller(container) as caller:
        caller.do("open", render)
        before = dmem.current(container)[region]
        (container / "dmem.max").write_text(f"{region} {(before or 0) + MIB}")
        options = ("--container", ID[:12], "--gpu", gpu.bdf, "--count", str(2 * PRIME + 1))
        with tool("dmemsnoop", *options) as snoop:
            for _ in range(PRIME):
                caller.do("gem_close", render, caller.do("gem_create", render, 12 << 10))
            caller.do("gem_create", render, 2 * MIB)
            *found, failed = rows(snoop)
    assert len(found) == 2 * PRIME
    assert {tuple(words[3:]) for words in found} == {
        (ID[:12], gpu.bdf, sign + "12K", "ok") for sign in "+-"
    }
    assert sum(words[5] == "+12K" for words in found) == PRIME
    assert failed[3:] == [ID[:12], gpu.bdf, "+2M", "EAGAIN"]


def test_dmemsnoop_says_where_there_is_nothing_to_see() -> None:
    if any(name.startswith("drm/") for name in dmem.capacity(CGROUP)):
        return
    done = subprocess.run(
        [sys.executable, "-m", "bpf.tools.dmemsnoop"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no dmem controller" in done.stderr


def test_vramhist_counts_every_buffer_by_size(container: Path, gpu: Gpu) -> None:
    render = f"/dev/dri/renderD{gpu.render}"
    with Caller(container.parent.parent) as other, Caller(container) as caller:
        for each in (other, caller):
            each.do("open", render)
        options = ("--container", ID[:12], "--count", str(PRIME + 31))
        with tool("vramhist", *options) as hist:
            for call in range(PRIME):
                caller.do("gem_close", render, caller.do("gem_create", render, 4096))
                if call < 31:
                    caller.do("gem_create", render, 3 << 20)
                    other.do("gem_create", render, 4096)
            found = rows(hist)
    assert found[0] == [ID[:12], "on", f"{gpu.bdf}:", str(PRIME + 31), "buffers"]
    counts = {words[0]: int(words[3]) for words in found[1:]}
    assert {size: count for size, count in counts.items() if count} == {"4K": PRIME, "2M": 31}
    assert next(iter(counts)) == "4K"
    assert list(counts)[-1] == "2M"


def test_hipsnoop_shows_every_call_of_the_process(container: Path, tmp_path: Path) -> None:
    """Of a library with HIP's name and calls: the real one would want a real GPU."""
    (tmp_path / "hip.c").write_text(
        "int hipMalloc(void **to, unsigned long size) { return to ? 0 : 1; }"
        "int hipFree(void *from) { return from ? 0 : 2; }"
    )
    library = tmp_path / "libamdhip64.so.6"
    subprocess.run(["gcc", "-shared", "-o", library, tmp_path / "hip.c"], check=True)
    program = (
        "import ctypes, sys; hip = ctypes.CDLL(sys.argv[1]); p = ctypes.c_void_p();"
        "print('loaded', flush=True); sys.stdin.readline();"
        f"[hip.hipMalloc(ctypes.byref(p), 4096 + n) for n in range({PRIME})];"
        "[hip.hipFree(None) for n in range(31)]; sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, library],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        (container / "cgroup.procs").write_text(str(process.pid))
        assert process.stdout.readline() == "loaded\n"
        with tool("hipsnoop", "--container", ID[:12], "--count", str(PRIME + 31)) as snoop:
            process.stdin.write("go\n")
            process.stdin.flush()
            found = rows(snoop)
        process.stdin.write("end\n")
        process.stdin.flush()
    assert [(*words[3:5], words[-1]) for words in found] == [
        *(("hipMalloc", str(4096 + n), "0") for n in range(PRIME)),
        *(("hipFree", "-", "2") for _ in range(31)),
    ]
    assert {words[1] for words in found} == {str(process.pid)}
    assert {words[2] for words in found} == {ID[:12]}


def test_hipsnoop_says_where_the_library_is_not_loaded(container: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bpf.tools.hipsnoop", "--container", ID[:12]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "start the program first" in done.stderr
