# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.testbed.prometheus import VARIABLE, program


def test_the_programs_are_where_the_variable_says(tmp_path: Path) -> None:
    (tmp_path / "promtool").touch()
    assert program("promtool", {VARIABLE: str(tmp_path)}) == tmp_path / "promtool"


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="prometheus: no such program"):
        program("prometheus", {VARIABLE: str(tmp_path)})
