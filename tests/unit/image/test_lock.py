# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from image.contents import NOT_INSTALLED
from image.lock import requirements
from image.python import LOCK

ROOT = Path(__file__).parents[3]


def report(version: str, sha256: str, name: str = "Some_Name") -> dict[str, Any]:
    hashes = {"archive_info": {"hashes": {"sha256": sha256}}}
    return {"install": [{"metadata": {"name": name, "version": version}, "download_info": hashes}]}


def test_one_line_per_wheel_with_a_hash_for_each_architecture() -> None:
    assert requirements([report("1", "bb"), report("1", "aa"), report("1", "aa")]) == (
        "some-name==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    )


def test_architectures_that_would_get_other_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="some-name: 1 for one architecture, 2 for another"):
        requirements([report("1", "a"), report("2", "b")])


def test_what_nothing_of_ours_imports_is_left_out() -> None:
    assert requirements([report("1", "a", name=name) for name in NOT_INSTALLED]) == ""


def test_the_lock_has_every_dependency_at_a_version_the_project_takes() -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)", LOCK.read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wish in project["dependencies"]:
        name, least = wish.split(">=")
        found = locked[name.lower().replace("_", "-")]
        assert numbers(found) >= numbers(least), wish


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.rstrip(".").split("."))
