# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from deviceplugin.hook import AUDITOR, TOOL, Hook, Installed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OBJECT = b"\x7fELF\2\1\1"


def test_half_a_hook_is_none(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    assert hook.missing() == (AUDITOR, TOOL)
    (tmp_path / AUDITOR).write_bytes(OBJECT)
    assert hook.missing() == (TOOL,)
    (tmp_path / TOOL).mkdir()
    assert hook.missing() == (TOOL,)
    (tmp_path / TOOL).rmdir()
    (tmp_path / TOOL).write_bytes(OBJECT)
    assert hook.missing() == ()


def test_a_file_that_is_no_object_is_no_hook(tmp_path: Path) -> None:
    (tmp_path / AUDITOR).write_bytes(OBJECT)
    (tmp_path / TOOL).touch()
    assert Hook(tmp_path).missing() == (TOOL,)
    (tmp_path / TOOL).write_text("#!/bin/sh")
    assert Hook(tmp_path).missing() == (TOOL,)
    (tmp_path / TOOL).unlink()
    os.mkfifo(tmp_path / TOOL)
    assert Hook(tmp_path).missing() == (TOOL,)


def test_the_log_is_told_of_every_change_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hook = Hook(tmp_path)
    installed = Installed(hook)
    assert installed.look() is None
    assert installed.look() is None
    (tmp_path / AUDITOR).write_bytes(OBJECT)
    assert installed.look() is None
    (tmp_path / TOOL).write_bytes(OBJECT)
    assert installed.look() is hook
    assert installed.look() is hook
    both, one, none = (record.getMessage() for record in caplog.records)
    assert f"{tmp_path}, found no {AUDITOR} and no {TOOL}: slices go without it" in both
    assert f"found no {TOOL}:" in one
    assert none == f"hook: slices get that of {tmp_path}"
