# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.testbed import venv
from tests.testbed.cache import Cache, Report

if TYPE_CHECKING:
    from pathlib import Path

WISHES = """
[project]
version = "1"
dependencies = ["one"]
"""


def checkout(path: Path, wishes: str = WISHES) -> Path:
    (path / "enforcer").mkdir(parents=True)
    (path / "enforcer/__init__.py").write_text(f"NAME = {path.name!r}")
    (path / "pyproject.toml").write_text(wishes)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An environment with a checkout that is not there any more."""
    place = tmp_path / "venv"
    subprocess.run([venv.PYTHON, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python3*/site-packages")
    gone = checkout(tmp_path / "gone")
    (packages / "__editable___gone_finder.py").write_text(f"import sys; sys.path.append('{gone}')")
    (packages / "__editable__.gone.pth").write_text("import __editable___gone_finder")
    command = place / "bin/command"
    command.write_text(f"#!{place}/bin/python\nfrom enforcer import NAME\nprint(NAME)\n")
    command.chmod(0o755)
    return place


def said(place: Path, where: Path) -> str:
    return subprocess.run(
        [place / "bin/command"], cwd=where, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_each_checkout_uses_itself_and_elsewhere_there_is_none(place: Path, tmp_path: Path) -> None:
    one, other = checkout(tmp_path / "one"), checkout(tmp_path / "other")
    assert said(place, one) == "gone"
    venv.use_here(place)
    assert (said(place, one), said(place, other)) == ("one", "other")
    with pytest.raises(subprocess.CalledProcessError):
        said(place, tmp_path)


def test_it_is_made_once_for_checkouts_that_want_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr("tests.testbed.cache.Step.run", lambda _, argv: made.append(argv))
    one, other = checkout(tmp_path / "one"), checkout(tmp_path / "other")
    cache, report = Cache(tmp_path / "cache"), Report(lambda _: None)
    for project in (one, other, one):
        venv.prepare(cache, project, report)
    assert len(made) == 2, "one environment and what is installed in it"
    shutil.rmtree(other)
    venv.prepare(cache, checkout(tmp_path / "other", WISHES.replace("one", "two")), report)
    assert len(made) == 4
