# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.check import tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def _add(checkout: Path, name: str, text: str) -> Path:
    path = checkout / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    subprocess.run(["git", "-C", str(checkout), "add", name], check=True)
    return path


def test_only_files_git_tracks_and_that_exist_are_looked_at(checkout: Path) -> None:
    _add(checkout, "kept.py", "")
    _add(checkout, "sub/über name.py", "")
    _add(checkout, "gone.py", "").unlink()
    (checkout / "new.py").touch()
    assert [str(path) for path in tree.tracked(checkout)] == ["kept.py", "sub/über name.py"]


def test_outside_a_checkout_there_is_an_error_and_no_empty_list(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        tree.tracked(tmp_path)


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        ("#!/bin/sh\n", True),
        ("#!/bin/sh -e\n", True),
        ("#!/usr/bin/env bash\n", True),
        ("#! /bin/dash\n", True),
        ("#!/usr/bin/env python3\n", False),
        ("#!/usr/bin/env shiny\n", False),
        ("text = '''\n#!/bin/sh\n'''\n", False),
        ("", False),
    ],
)
def test_a_shell_script_is_known_by_its_first_line(tmp_path: Path, line: str, shell: bool) -> None:
    (tmp_path / "file").write_text(line)
    assert tree.is_shell(tmp_path / "file") is shell


def test_c_and_headers_are_listed_for_xargs(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.c", "a.cc", "include/b.h", "c.py"):
        _add(checkout, name, "")
    monkeypatch.chdir(checkout)
    assert tree.main(["c"]) == 0
    assert capsys.readouterr().out == "a.c\0a.cc\0include/b.h\0"


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.main(["rust"]) == 2
    assert "c|shell" in capsys.readouterr().err
