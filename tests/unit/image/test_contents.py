# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest

from image.contents import PYTHON, SITE, SUITE, left_out, packages

DOCKERFILE = (Path(__file__).parents[3] / "image" / "Dockerfile").read_text()


def stage(name: str) -> str:
    """The instructions of one stage of the Dockerfile, continuation lines joined, no comments."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    found = re.search(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def argument(name: str) -> list[str]:
    """The words of an ARG of the Dockerfile."""
    found = re.search(rf'^ARG {name}="?([^"\n]*)"?$', DOCKERFILE, re.MULTILINE)
    assert found, name
    return found[1].split()


@pytest.mark.parametrize(("flavour", "name"), [("", "PACKAGES"), ("debug", "DEBUG_PACKAGES")])
def test_the_dockerfile_installs_the_same_packages(flavour: str, name: str) -> None:
    expected = set(packages(flavour)) - (set(packages("")) if flavour else set())
    assert set(argument(name)) == expected


def test_the_dockerfile_starts_from_the_same_suite_and_python() -> None:
    assert argument("SUITE") == [SUITE]
    assert f"/{SITE}" in DOCKERFILE
    assert f"python{PYTHON}" in DOCKERFILE


def test_the_dockerfile_runs_the_locked_wheels_and_says_the_same_of_the_container() -> None:
    last = stage("image")
    assert "--require-hashes" in DOCKERFILE
    assert "USER 65532:65532" in last
    assert 'ENTRYPOINT ["ringfence"]' in last
    assert "apt-get" not in last


@pytest.mark.parametrize(
    "path",
    [
        "usr/bin/dpkg",
        "usr/sbin/dpkg-reconfigure",
        "usr/share/man/man1/x.1.gz",
        "usr/share/doc/libc6/changelog.Debian.gz",
        f"usr/lib/python{PYTHON}/test/test_os.py",
        f"{SITE}/kubernetes/client/models/v1_pod.py",
        f"{SITE}/kubernetes/aio/__init__.py",
    ],
)
def test_left_out(path: str) -> None:
    assert left_out(path)


@pytest.mark.parametrize(
    "path",
    [
        "usr/bin/python3",
        "usr/local/bin/ringfence",
        "usr/share/doc/libc6/copyright",
        f"{SITE}/kubernetes/client/models/__init__.py",
        f"{SITE}/bpf/gate.bpf.o",
        f"{SITE}/audit_hook/libringfence-hsa.so",
    ],
)
def test_kept(path: str) -> None:
    assert not left_out(path)


def test_the_debug_flavour_has_all_of_the_other_and_a_shell() -> None:
    assert set(packages("")) < set(packages("debug"))
    assert "busybox-static" in packages("debug")
    assert not any("busybox" in name or "bpfcc" in name for name in packages(""))
