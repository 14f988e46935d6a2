# SPDX-License-Identifier: Apache-2.0
"""Layers of an image that is mounted nowhere, seen as one tree by a process apart."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import pytest

from enforcer.host import overlay
from enforcer.host.apart import Apart
from enforcer.images import LAYERS, look_into_layers
from enforcer.imagestore.client import ImageStore
from tests.unit.enforcer.imagestore.runtime import Runtime, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BANNER = b"GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36."

STAYS = "stays"
CONFINED = "confined"


def stay(about: str) -> str:
    """Linger in a copy of the host's mounts until it has let go of one."""
    place = Path(about)
    overlay.enter_mounts(Path("/proc"))
    (place / "entered").touch()
    deadline = time.monotonic() + 20
    while f"{place}/volume" in Path("/proc/self/mountinfo").read_text():
        if time.monotonic() > deadline:
            return "still mounted"
        time.sleep(0.05)
    return "let go"


def look_without_chroot(about: str) -> str:
    """As ``look_into_layers``, with all capabilities but the one that the chart leaves out."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    for index in range(3):
        sets[index] &= ~(1 << 18)
    assert libc.capset(header, sets) == 0
    return look_into_layers(about)


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    one = Apart({LAYERS: look_into_layers, STAYS: stay, CONFINED: look_without_chroot})
    yield one
    one.close()


def look(apart: Apart, layers: Sequence[PurePath], kind: str = LAYERS) -> dict[str, object]:
    about = json.dumps({"proc": "/proc", "layers": [str(layer) for layer in layers]})
    (answer,) = apart.ask(kind, [about], 60)
    assert not answer.silent, answer
    found: dict[str, object] = json.loads(answer.text)
    return found


def layer(root: Path, name: str) -> Path:
    found = root / name / "fs"
    (found / "lib").mkdir(parents=True)
    return found


def libc(root: Path, name: str) -> Path:
    found = layer(root, name)
    (found / "lib/libc.so.6").write_bytes(BANNER)
    return found


def musl(root: Path, name: str) -> Path:
    found = layer(root, name)
    (found / "lib/ld-musl-x86_64.so.1").write_bytes(b"musl")
    return found


def test_what_an_upper_layer_hides_is_not_there(apart: Apart, tmp_path: Path) -> None:
    upper = musl(tmp_path, "2")
    below = libc(tmp_path, "1")
    assert look(apart, [upper, below])["libc"] == "glibc"
    os.mknod(upper / "lib/libc.so.6", stat.S_IFCHR, os.makedev(0, 0))
    assert look(apart, [upper, below])["libc"] == "musl"


def test_one_layer_is_looked_into_where_it_is(apart: Apart, tmp_path: Path) -> None:
    assert look(apart, [libc(tmp_path, "1")])["version"] == "2.36"


def test_as_many_layers_as_an_image_may_have(apart: Apart, tmp_path: Path) -> None:
    layers = [layer(tmp_path, f"{number}") for number in range(126)]
    assert look(apart, [*layers, libc(tmp_path, "libc")])["libc"] == "glibc"


def test_a_layer_that_is_gone_is_told(apart: Apart, tmp_path: Path) -> None:
    found = look(apart, [libc(tmp_path, "1"), tmp_path / "gone"])
    assert "No such file" in str(found["error"])


def test_without_the_right_to_the_hosts_mounts_it_is_told_what_that_takes(
    apart: Apart, tmp_path: Path
) -> None:
    error = look(apart, [libc(tmp_path, "1")], CONFINED)["error"]
    assert str(error).endswith("takes CAP_SYS_CHROOT: set enforcer.privileged to true")


def test_a_link_leads_to_the_image_s_own_files(apart: Apart, tmp_path: Path) -> None:
    below = layer(tmp_path, "1")
    (below / "lib").rmdir()
    (below / "lib").symlink_to("/usr/lib")
    (below / "usr").mkdir()
    upper = tmp_path / "2/fs"
    (upper / "usr/lib").mkdir(parents=True)
    (upper / "usr/lib/ld-musl-x86_64.so.1").write_bytes(b"musl")
    assert look(apart, [upper, below])["libc"] == "musl"


def test_nothing_stays_mounted(apart: Apart, tmp_path: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    look(apart, [musl(tmp_path, "2"), libc(tmp_path, "1")])
    assert Path("/proc/self/mountinfo").read_text() == before


def test_a_volume_that_the_host_unmounts_is_let_go(apart: Apart, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    mount("--bind", tmp_path, tmp_path)
    mount("--make-shared", tmp_path)
    try:
        mount("-t", "tmpfs", "none", volume)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(apart.ask, STAYS, [str(tmp_path)], 60)
            deadline = time.monotonic() + 30
            while not (tmp_path / "entered").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            subprocess.run(["umount", volume], check=True)
            (answer,) = asked.result()
        assert answer.text == "let go"
    finally:
        subprocess.run(["umount", "--recursive", tmp_path], check=True)


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def test_a_process_that_reads_without_end_is_ended(apart: Apart, tmp_path: Path) -> None:
    lib = layer(tmp_path, "1") / "lib"
    (lib / "libc.so.6").write_bytes(b"GNU C Library " * (2 << 20))
    for number in range(15):
        directory = lib / f"m{number}-linux-gnu"
        directory.mkdir()
        (directory / "libc.so.6").hardlink_to(lib / "libc.so.6")
    about = json.dumps({"proc": "/proc", "layers": [str(lib.parent)]})
    (answer,) = apart.ask(LAYERS, [about], 60)
    assert answer.failed
    assert answer.text.startswith("ended without an answer, by signal ")


def test_a_store_as_cri_o_keeps_it_names_its_layers(apart: Apart, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    layers: list[str] = []
    for number, one in enumerate((libc, layer, musl)):
        archive = tmp_path / f"{number}.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(one(tmp_path, f"{number}"), ".")
            if one is musl:
                tar.addfile(tarfile.TarInfo("./lib/.wh.libc.so.6"))
        layers.append(storage(graph, "import-layer", "-f", str(archive), *layers[-1:]))
    # Where the store is, seen from the host's root.
    host = tmp_path / "host"
    host.mkdir()
    (host / "tmp").symlink_to("/tmp")
    for top, kind in zip(layers, ("glibc", "glibc", "musl"), strict=True):
        image = storage(graph, "create-image", top)
        runtime = Runtime(str(graph / "overlay-images"), {}, [], image)
        with serving(runtime, host / "run/crio/crio.sock"):
            store = ImageStore(host)
            with store.layers(store.find("debian:12", 30), 30) as found:
                assert look(apart, found)["libc"] == kind


def storage(graph: Path, *words: str) -> str:
    """Does that to a store as its own library does; the first word of what it says."""
    run = graph.with_name("run")
    options = ["--graph", str(graph), "--run", str(run), "--storage-driver", "overlay"]
    said = subprocess.run(
        ["containers-storage", *options, *words], check=True, capture_output=True, text=True
    ).stdout
    return said.split()[0]
