# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from enforcer.host import pciids

DATABASE = """\
# comment
1001  Another
\t74a1  Not this one
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t740f  Aldebaran/MI200 [Instinct MI210]
\t\t1002 0c34  A subsystem
\t7550  Navi 48
C 03  Display controller
\t74a1  A class, not a device
"""


def test_the_marketing_name_in_brackets_is_meant(tmp_path: Path) -> None:
    (tmp_path / "misc").mkdir()
    (tmp_path / "misc/pci.ids").write_text(DATABASE)
    wanted = {(0x1002, 0x740F), (0x1002, 0x7550), (0x1002, 0x74A1)}
    assert pciids.device_names(tmp_path, wanted) == {
        (0x1002, 0x740F): "Instinct MI210",
        (0x1002, 0x7550): "Navi 48",
    }


def test_the_second_place_is_tried(tmp_path: Path) -> None:
    (tmp_path / "hwdata").mkdir()
    (tmp_path / "hwdata/pci.ids").write_text(DATABASE)
    assert pciids.device_names(tmp_path, {(0x1002, 0x7550)}) == {(0x1002, 0x7550): "Navi 48"}


def test_without_a_database_there_are_no_names(tmp_path: Path) -> None:
    assert pciids.device_names(tmp_path, {(0x1002, 0x7550)}) == {}


@given(st.text())
def test_any_text_is_a_database(text: str) -> None:
    assert isinstance(pciids.parse(text, {(0x1002, 0x740F)}), dict)
