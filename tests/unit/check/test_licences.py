# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.check import licences

TAG = "SPDX-License-" + "Identifier: "  # in two, or this file would name two licences


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("enforcer/a.py", f"# {TAG}Apache-2.0\n", None),
        ("tool", f"#!/bin/sh\n# {TAG}Apache-2.0\n", None),
        ("bpf/gate.bpf.c", f"// {TAG}GPL-2.0-only\n", None),
        ("tests/bench/decide.bpf.c", f"// {TAG}GPL-2.0-only\n", None),
        ("bpf/include/a.h", f"/* {TAG}GPL-2.0-only */\n", None),
        ("bpf/loader.py", f"# {TAG}Apache-2.0\n", None),
        ("tests/testbed/driver/Kbuild", f"# {TAG}GPL-2.0-only\n", None),
        ("audit_hook/a.c", f"// {TAG}Apache-2.0\n", None),
        ("enforcer/a.py", "", "no SPDX-License-Identifier"),
        ("enforcer/a.py", "\n" * 5 + f"# {TAG}Apache-2.0\n", "first 5 lines"),
        ("enforcer/a.py", f"# {TAG}GPL-2.0-only\n", "expected Apache-2.0"),
        ("enforcer/a.py", f"# {TAG}Apache-2.0 OR MIT\n", "is Apache-2.0 OR MIT"),
        ("bpf/gate.bpf.c", f"// {TAG}Apache-2.0\n", "expected GPL-2.0-only"),
        ("bpf/loader.py", f"# {TAG}GPL-2.0-only\n", "expected Apache-2.0"),
        ("tests/testbed/driver/amdgpu.c", f"// {TAG}GPL-2.0\n", "expected GPL-2.0-only"),
    ],
)
def test_a_source_file_names_the_licence_of_its_place(
    tmp_path: Path, name: str, head: str, words: str | None
) -> None:
    path = Path(name)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(head)
    found = licences.problem(tmp_path, path)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.parametrize(
    ("name", "text", "needed"),
    [
        ("a.py", "", True),
        ("Makefile", "", True),
        ("run", "#!/usr/bin/env python3\n", True),
        ("run", "plain text\n", False),
        ("README.md", "", False),
        ("data.json", "{}", False),
        ("fixture.txt", "#!/bin/sh\n", False),
    ],
)
def test_source_is_known_by_its_name_or_as_a_script(
    tmp_path: Path, name: str, text: str, needed: bool
) -> None:
    (tmp_path / name).write_text(text)
    assert licences.needs_licence(tmp_path, Path(name)) is needed


def test_the_check_fails_on_the_one_file_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "good.py").write_text(f"# {TAG}Apache-2.0\n")
    (tmp_path / "bad.py").write_text("import os\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    monkeypatch.chdir(tmp_path)
    assert licences.main() == 1
    assert "bad.py" in capsys.readouterr().err
    (tmp_path / "bad.py").unlink()
    assert licences.main() == 0


def test_the_check_fails_when_it_finds_nothing_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    assert licences.main() == 1
