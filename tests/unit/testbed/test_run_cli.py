# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.testbed import run_cli

if TYPE_CHECKING:
    from pathlib import Path


def test_everything_after_the_dashes_is_the_command() -> None:
    options = run_cli.parse(["--kernel", "nodmem", "--gpus", "4", "--", "sh", "-c", "x --gpus 9"])
    assert options.kernel == "nodmem"
    assert options.gpus == 4
    assert options.command == ["sh", "-c", "x --gpus 9"]


def test_a_command_may_stand_without_dashes_and_have_its_own_options() -> None:
    assert run_cli.parse(["ls", "-l", "--", "x"]).command == ["ls", "-l", "--", "x"]


def test_an_empty_module_list_is_not_the_default_one() -> None:
    assert run_cli.parse(["--lsm", "", "--", "x"]).lsm == ""
    assert run_cli.parse(["--", "x"]).lsm is None


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--"],
        ["--kernel", "5.4", "--", "x"],
        ["--stock", "7", "--", "x"],
        ["--gpus", "-1", "--", "x"],
        ["--gpus", "two", "--", "x"],
        ["--timeout", "nan", "--", "x"],
        ["--timeout", "0", "--", "x"],
        ["--timeout", "soon", "--", "x"],
        ["--env", "NOEQUALS", "--", "x"],
        ["--unknown", "--", "x"],
    ],
)
def test_a_bad_command_line_ends_with_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_cli.parse(argv)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert "error:" in message
    assert "invalid _" not in message


def test_a_cache_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(run_cli, "stop_by_exception", lambda: None)
    assert run_cli.main(["--", "true"]) == run_cli.EXIT_NODE_FAILED
    message = capsys.readouterr().err
    assert message.startswith("tests/testbed/run: ")
    assert str(tmp_path / "file") in message
    assert message.count("\n") == 1
