# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.testbed import packages
from tests.testbed.cache import Cache, Report, StepError

if TYPE_CHECKING:
    from pathlib import Path


def test_only_an_installed_package_counts() -> None:
    status = "gcc installed\nmake config-files\nbison:amd64 installed\nflex not-installed\n\n"
    assert packages.missing(["gcc", "make", "bison", "flex", "kmod"], status) == [
        "make",
        "flex",
        "kmod",
    ]


def test_without_root_the_message_is_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "PACKAGES", {"test": ("no-such-package-here",)})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        StepError, match=r"needs root; run: .* && sudo apt-get install .*no-such-package-here$"
    ):
        packages.prepare(Cache(tmp_path), Report())
