# SPDX-License-Identifier: Apache-2.0
"""Images are told apart by files made here; processes apart are tried in test_apart.py."""

import json
import multiprocessing
import resource
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from enforcer.host.apart import Answer
from enforcer.host.roots import Roots
from enforcer.images import IMAGE, LAYERS, ImageError, Images, NoImageError, look_into
from enforcer.imagestore import snapshots_pb2
from enforcer.model import Container, ImageLibc, PodCgroup
from tests.unit.enforcer.imagestore.runtime import containerd, serving

ID, OTHER = "a" * 64, "b" * 64
DIGEST = "0123456789abcdef" * 4
BANNER = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"
GLIBC = ImageLibc("glibc", "2.36", tool_loads=True, auditor_loads=True)


class Here:
    """Answers as the processes apart do, without them; keeps what it was asked."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.asked: list[str] = []
        self._answer = answer

    def ask(self, kind: str, about: list[str], _: float) -> list[Answer]:
        self.asked += about
        if kind == LAYERS:
            # Of one layer, which needs no mount.
            about = [json.loads(one)["layers"][0] for one in about]
        else:
            assert kind == IMAGE
        return [self._answer or Answer(_look(one)) for one in about]


def _look(root: str) -> str:
    # It bounds the memory of the process it is in.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(look_into, root).result(60)


def container(number: str = ID) -> Container:
    return Container(number, PodCgroup("uid", "pod", 1), "pod/c", 2, "train")


def write_image(root: Path, libc: bytes | None = BANNER) -> None:
    (root / "lib").mkdir(parents=True)
    if libc is not None:
        (root / "lib/libc.so.6").write_bytes(libc)


def write_bundle(run: Path, number: str, name: str, root: str = "rootfs") -> Path:
    bundle = run / f"containerd/io.containerd.runtime.v2.task/k8s.io/{number}"
    bundle.mkdir(parents=True)
    annotations = {"io.kubernetes.cri.image-name": name}
    (bundle / "config.json").write_text(
        json.dumps({"root": {"path": root}, "annotations": annotations})
    )
    return bundle


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(run=tmp_path / "run", proc=tmp_path / "proc")


def test_an_image_is_looked_into_where_the_runtime_has_it(roots: Roots, tmp_path: Path) -> None:
    write_image(write_bundle(roots.run, ID, "debian:12") / "rootfs")
    assert Images(roots, Here()).libc(container(), tmp_path, 5) == GLIBC  # type: ignore[arg-type]


def test_it_is_seen_through_a_process_where_the_mount_is_not(roots: Roots, tmp_path: Path) -> None:
    write_bundle(roots.run, ID, "x", "/var/lib/containers/storage/overlay/x/merged")
    write_image(roots.proc / "4711/root", None)
    (roots.proc / "4711/root/lib/ld-musl-x86_64.so.1").write_bytes(b"x")
    (tmp_path / "cgroup.procs").write_text("4712\n4711\n")
    here = Here()
    found = Images(roots, here).libc(container(), tmp_path, 5)  # type: ignore[arg-type]
    assert (found.libc, found.tool_loads) == ("musl", False)
    assert here.asked == [str(roots.proc / "4711/root")]


@pytest.mark.parametrize("name", ["docker.io/x@sha256:", "sha256:", ""])
def test_an_image_is_looked_into_once_by_its_digest(
    roots: Roots, tmp_path: Path, name: str
) -> None:
    for number in (ID, OTHER):
        write_image(write_bundle(roots.run, number, f"{name}{DIGEST}") / "rootfs")
    here = Here()
    images = Images(roots, here)  # type: ignore[arg-type]
    assert images.libc(container(), tmp_path, 5) == images.libc(container(OTHER), tmp_path, 5)
    assert len(here.asked) == 1


@pytest.mark.parametrize("name", ["docker.io/x:latest", f"docker.io/x:{DIGEST}"])
def test_a_tag_names_no_image_for_ever(roots: Roots, tmp_path: Path, name: str) -> None:
    for number in (ID, OTHER):
        write_image(write_bundle(roots.run, number, name) / "rootfs")
    here = Here()
    images = Images(roots, here)  # type: ignore[arg-type]
    for number in (ID, OTHER, ID):
        images.libc(container(number), tmp_path, 5)
    assert len(here.asked) == 2


def test_a_container_that_is_not_in_sight_is_told(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    with pytest.raises(ImageError, match=r"container train has no process, and .*no OCI bundle"):
        Images(roots, Here()).libc(container(), tmp_path, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer("does not answer within 5.0 s", silent=True), "rootfs: does not answer within"),
        (Answer('{"error": "/x: a file that is too large"}'), "a file that is too large"),
    ],
)
def test_an_image_that_cannot_be_looked_into_is_asked_for_again(
    roots: Roots, tmp_path: Path, answer: Answer, error: str
) -> None:
    write_image(write_bundle(roots.run, ID, "x") / "rootfs")
    here = Here(answer)
    images = Images(roots, here)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ImageError, match=error):
            images.libc(container(), tmp_path, 5)
    assert len(here.asked) == 2


def test_without_a_process_for_it_nothing_is_looked_into(roots: Roots, tmp_path: Path) -> None:
    write_image(write_bundle(roots.run, ID, "x") / "rootfs")
    with pytest.raises(ImageError, match="no process for it"):
        Images(roots, None).libc(container(), tmp_path, 5)


def test_an_image_no_container_is_made_of_is_looked_into_once(short_path: Path) -> None:
    roots = Roots(host=short_path)
    snapshot = short_path / "snapshots/7/fs"
    write_image(snapshot)
    runtime = containerd(snapshots_pb2.Mount(type="bind", source=str(snapshot)))
    here = Here()
    images = Images(roots, here)  # type: ignore[arg-type]
    with serving(runtime, short_path / "run/containerd/containerd.sock"):
        assert images.stored_libc("debian:12", 10) == GLIBC
        assert images.stored_libc("debian:12", 10) == GLIBC
        with pytest.raises(NoImageError, match="there is no image alpine:3"):
            images.stored_libc("alpine:3", 10)
    assert [json.loads(one) for one in here.asked] == [{"proc": "/proc", "layers": [str(snapshot)]}]
    assert (runtime.viewed, runtime.views) == (1, {})


def test_an_image_that_hangs_is_told_by_its_name(short_path: Path) -> None:
    runtime = containerd(snapshots_pb2.Mount(type="bind", source="/nowhere"))
    here = Here(Answer("does not answer within 5.0 s", silent=True))
    with (
        serving(runtime, short_path / "run/containerd/containerd.sock"),
        pytest.raises(ImageError, match=r"debian:12: does not answer within 5\.0 s"),
    ):
        Images(Roots(host=short_path), here).stored_libc("debian:12", 10)  # type: ignore[arg-type]
    assert runtime.views == {}


def test_only_an_image_that_loads_the_hook_is_kept(short_path: Path) -> None:
    snapshot = short_path / "snapshots/7/fs"
    write_image(snapshot, None)
    runtime = containerd(snapshots_pb2.Mount(type="bind", source=str(snapshot)))
    images = Images(Roots(host=short_path), Here())  # type: ignore[arg-type]
    with serving(runtime, short_path / "run/containerd/containerd.sock"):
        assert images.stored_libc("debian:12", 10).libc == "none"
        (snapshot / "lib/libc.so.6").write_bytes(BANNER)
        assert images.stored_libc("debian:12", 10) == GLIBC


def test_what_a_container_wrote_says_nothing_of_its_image(short_path: Path) -> None:
    roots = Roots(host=short_path, run=short_path / "run")
    snapshot = short_path / "snapshots/7/fs"
    write_image(snapshot, None)
    runtime = containerd(snapshots_pb2.Mount(type="bind", source=str(snapshot)))
    runtime.image = DIGEST
    write_image(write_bundle(roots.run, ID, f"docker.io/x@sha256:{DIGEST}") / "rootfs")
    images = Images(roots, Here())  # type: ignore[arg-type]
    assert images.libc(container(), short_path, 5).tool_loads
    with serving(runtime, short_path / "run/containerd/containerd.sock"):
        assert not images.stored_libc("debian:12", 10).tool_loads


def test_an_answer_is_kept_though_the_view_is_slow_to_go(short_path: Path) -> None:
    snapshot = short_path / "snapshots/7/fs"
    write_image(snapshot)
    runtime = containerd(snapshots_pb2.Mount(type="bind", source=str(snapshot)))
    here = Here()
    images = Images(Roots(host=short_path), here)  # type: ignore[arg-type]
    kept: list[ImageLibc] = []
    remove = runtime.Remove

    def slow(*arguments: Any) -> Any:
        # Another one asks meanwhile.
        kept.append(images.stored_libc("debian:12", 10))
        return remove(*arguments)

    runtime.Remove = slow  # type: ignore[method-assign]
    with serving(runtime, short_path / "run/containerd/containerd.sock"):
        images.stored_libc("debian:12", 10)
    assert (kept, len(here.asked)) == ([GLIBC], 1)


class Slow(Here):
    """Looks until it may end; two at once at the most."""

    def __init__(self) -> None:
        super().__init__()
        self.two = threading.Barrier(3)
        self.end = threading.Event()

    def ask(self, kind: str, about: list[str], seconds: float) -> list[Answer]:
        self.two.wait(30)
        self.end.wait(30)
        return super().ask(kind, about, seconds)


def test_two_images_are_looked_into_at_once_and_who_has_no_time_left_is_told(
    roots: Roots, tmp_path: Path
) -> None:
    numbers = [f"{number}" * 64 for number in range(8)]
    for number in numbers:
        write_image(write_bundle(roots.run, number, "x") / "rootfs")
    slow = Slow()
    images = Images(roots, slow)  # type: ignore[arg-type]

    def look(number: str, seconds: float) -> str:
        try:
            return images.libc(container(number), tmp_path, seconds).libc
        except ImageError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(look, number, 60) for number in numbers[:2]]
        slow.two.wait(30)
        assert "other images are being looked into" in look(numbers[2], 0.1)
        waiting = [pool.submit(look, number, 3) for number in numbers[3:7]]
        while images._asking._value:  # type: ignore[attr-defined]
            time.sleep(0.01)
        assert "too many images are being looked into" in look(numbers[7], 60)
        assert all("other images" in one.result() for one in waiting)
        slow.end.set()
        assert [one.result() for one in first] == ["glibc", "glibc"]


def _bounds(root: str) -> tuple[str, float, int]:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    answer = look_into(root)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    return (
        answer,
        signal.getitimer(signal.ITIMER_REAL)[0],
        resource.getrlimit(resource.RLIMIT_CPU)[0],
    )


def test_the_process_that_looks_is_ended_in_time(tmp_path: Path) -> None:
    write_image(tmp_path)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        answer, left, cpu = pool.submit(_bounds, str(tmp_path)).result(60)
    assert json.loads(answer)["libc"] == "glibc"
    assert 0 < left <= 10
    assert cpu == 10


def _beside(root: str, has: int) -> tuple[str, bool]:
    mine = bytearray(has)
    answer = look_into(root)
    try:
        mine += bytes(80 << 20)
    except MemoryError:
        return answer, False
    return answer, True


def test_the_process_that_looks_may_have_much_already_and_take_little_more(tmp_path: Path) -> None:
    write_image(tmp_path, BANNER + bytes(28 << 20))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        answer, more = pool.submit(_beside, str(tmp_path), 200 << 20).result(60)
    assert json.loads(answer)["libc"] == "glibc"
    assert not more


def test_what_is_told_of_an_image_is_plain_text(tmp_path: Path) -> None:
    root = tmp_path / "\x1b[2J\N{SNOWMAN}"
    write_image(root)
    (root / "lib/libc.so.6").rename(root / "lib/\x1b[1m")
    (root / "lib/libc.so.6").symlink_to("\x1b[1m")
    with (root / "lib/\x1b[1m").open("r+b") as file:
        file.truncate(8 << 30)
    error = json.loads(_look(str(root)))["error"]
    assert error.endswith(r"\x1b[2J\u2603: \x1b[1m: a file that is too large, of 8192 MiB")


def test_a_libc_larger_than_memory_is_no_danger(tmp_path: Path) -> None:
    write_image(tmp_path)
    with (tmp_path / "lib/libc.so.6").open("r+b") as file:
        file.truncate(8 << 30)
    assert "too large" in json.loads(_look(str(tmp_path)))["error"]
