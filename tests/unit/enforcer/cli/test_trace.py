# SPDX-License-Identifier: Apache-2.0
import pytest

from enforcer.cli import trace


def test_the_programs_are_those_that_are_shipped() -> None:
    assert "vramsnoop" in trace.programs()


def test_an_unknown_program_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        trace.main(["nothingsnoop"])
    assert caught.value.code == 2
    assert "vramsnoop" in capsys.readouterr().err
