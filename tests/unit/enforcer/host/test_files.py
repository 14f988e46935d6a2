# SPDX-License-Identifier: Apache-2.0
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.host import files
from enforcer.host.files import FileError, FileVanished


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_an_integer_is_read(path: Path) -> None:
    path.write_text("4096\n")
    assert files.read_int(path) == 4096


def test_a_negative_integer_is_read(path: Path) -> None:
    path.write_text("-1\n")
    assert files.read_int(path) == -1


def test_a_hexadecimal_id_is_read_with_and_without_its_prefix(path: Path) -> None:
    path.write_text("0x74b5\n")
    assert files.read_int(path, 16) == 0x74B5
    path.write_text("8e1bb56457addd1b\n")
    assert files.read_int(path, 16) == 0x8E1BB56457ADDD1B


@pytest.mark.parametrize(
    "text", ["", "\n", "abc\n", "1 2\n", "1\n2\n", "1_000\n", "+5\n", "٣\n", "0x"]
)
def test_what_is_no_integer_names_the_file(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(FileError, match=str(path)):
        files.read_int(path)


def test_max_is_no_number_but_no_error(path: Path) -> None:
    path.write_text("max\n")
    assert files.read_int_or_max(path) is None
    path.write_text("17\n")
    assert files.read_int_or_max(path) == 17


def test_max_is_an_error_where_only_a_number_may_be(path: Path) -> None:
    path.write_text("max\n")
    with pytest.raises(FileError, match="'max'"):
        files.read_int(path)


def test_a_flat_list_may_be_empty(path: Path) -> None:
    path.write_text("\n")
    assert files.read_list(path) == ()
    path.write_text("cpu io memory\n")
    assert files.read_list(path) == ("cpu", "io", "memory")


def test_a_map_is_read(path: Path) -> None:
    path.write_text("simd_count 416\n\nunique_id 17888023871577450191\n")
    assert files.read_map(path) == {"simd_count": 416, "unique_id": 17888023871577450191}


@pytest.mark.parametrize(
    ("text", "line"), [("a 1\nb\n", 2), ("a 1\nb 2 3\n", 2), ("a x\n", 1), ("a 1\na 2\n", 2)]
)
def test_a_malformed_map_names_file_and_line(path: Path, text: str, line: int) -> None:
    path.write_text(text)
    with pytest.raises(FileError, match=f"{path}:{line}: "):
        files.read_map(path)


def test_a_missing_file_is_vanished(path: Path) -> None:
    with pytest.raises(FileVanished, match=str(path)):
        files.read_line(path)


def test_a_file_below_a_vanished_directory_is_vanished(path: Path) -> None:
    path.write_text("")
    with pytest.raises(FileVanished):
        files.read_int(path / "below")


def test_a_process_that_exits_while_being_read_is_vanished() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(FileVanished):
        files.read_text(Path(f"/proc/{pid}/cgroup"))


def test_a_directory_in_place_of_a_file_is_an_error_not_vanished(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        files.read_text(tmp_path)
    assert not isinstance(caught.value, FileVanished)


def test_bytes_that_are_no_text_survive_as_escapes(path: Path) -> None:
    path.write_bytes(b"\xff\n")
    assert files.read_line(path) == "\\xff"


def test_optional_is_none_only_for_what_is_not_there(path: Path) -> None:
    assert files.optional(files.read_int, path) is None
    path.write_text("nonsense")
    with pytest.raises(FileError):
        files.optional(files.read_int, path)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), st.integers()))
def test_every_map_of_integers_comes_back(values: dict[str, int]) -> None:
    text = "".join(f"{key} {value}\n" for key, value in values.items())
    assert files.parse_map(text, "x") == values


@given(st.text())
def test_any_text_is_a_map_or_a_file_error(text: str) -> None:
    with suppress(FileError):
        files.parse_map(text, "x")
