# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deviceplugin.hook import AUDITOR, TOOL, Hook, Installed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_half_a_hook_is_none(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    assert hook.missing() == (AUDITOR, TOOL)
    (tmp_path / AUDITOR).touch()
    assert hook.missing() == (TOOL,)
    (tmp_path / TOOL).mkdir()
    assert hook.missing() == (TOOL,)
    (tmp_path / TOOL).rmdir()
    (tmp_path / TOOL).touch()
    assert hook.missing() == ()


def test_the_log_is_told_of_every_change_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hook = Hook(tmp_path)
    installed = Installed(hook)
    assert installed.look() is None
    assert installed.look() is None
    (tmp_path / AUDITOR).touch()
    assert installed.look() is None
    (tmp_path / TOOL).touch()
    assert installed.look() is hook
    assert installed.look() is hook
    both, one, none = (record.getMessage() for record in caplog.records)
    assert f"{tmp_path}, found no {AUDITOR} and no {TOOL}: slices go without it" in both
    assert f"found no {TOOL}:" in one
    assert none == f"hook: slices get that of {tmp_path}"
