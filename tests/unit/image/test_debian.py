# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from image import debian
from tests.testbed.apt import Distribution, Source
from tests.testbed.cache import StepError

if TYPE_CHECKING:
    from pathlib import Path

BOOKWORM = Distribution("debian", "bookworm")
MAIN = Source(("http://mirror/debian",), ("bookworm", "bookworm-updates"), ("main",), "/key.gpg")
SECURITY = Source(("http://mirror/security",), ("bookworm-security",), ("main",), "/key.gpg")
OTHER = Source(("http://elsewhere",), ("nodistro",), ("main",))


def test_the_images_suite_takes_the_place_of_the_machines_and_security_comes_along() -> None:
    text = debian.sources([OTHER, MAIN, SECURITY], BOOKWORM)
    assert "Suites: trixie trixie-updates\n" in text
    assert "URIs: http://mirror/security\nSuites: trixie-security\n" in text
    assert "elsewhere" not in text
    assert text.count("Signed-By: /key.gpg") == 2


def test_without_debians_archive_the_message_says_what_to_do() -> None:
    with pytest.raises(StepError, match=r"found ubuntu's; .* image/Dockerfile"):
        debian.sources([MAIN], Distribution("ubuntu", "noble"))
    with pytest.raises(StepError, match="expected a source with suite bookworm, found none"):
        debian.sources([OTHER], BOOKWORM)


def test_the_files_of_a_package_are_named_without_its_directories(tmp_path: Path) -> None:
    root = tmp_path / "package"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n"
    )
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/x").write_text("")
    (root / "usr/bin/y").symlink_to("x")
    subprocess.run(["dpkg-deb", "--build", root, tmp_path / "x.deb"], check=True)
    assert sorted(debian.files(tmp_path / "x.deb")) == ["usr/bin/x", "usr/bin/y"]
