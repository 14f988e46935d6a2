# SPDX-License-Identifier: Apache-2.0
"""Against the real libbpf; what needs a kernel that takes our programs is in tests/vm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bpf.libbpf import BpfError, Libbpf, unpreempted

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def library() -> Libbpf:
    return Libbpf()


def one_line(error: pytest.ExceptionInfo[BpfError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_missing_library_names_the_package() -> None:
    with pytest.raises(BpfError) as error:
        Libbpf("libbpf.so.99")
    assert one_line(error).startswith("libbpf.so.99: ")
    assert "package libbpf1" in one_line(error)


def test_a_library_without_our_calls_is_too_old() -> None:
    with pytest.raises(BpfError, match=r"expected libbpf 1\.0 or newer"):
        Libbpf("libc.so.6")


def test_a_missing_object_says_how_to_build_it(library: Libbpf, tmp_path: Path) -> None:
    with pytest.raises(BpfError) as error:
        library.open_object(tmp_path / "gate.bpf.o", tmp_path)
    assert one_line(error) == (
        f"{tmp_path}/gate.bpf.o: no such BPF object; `make generate` builds it"
    )


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not an object" * 100])
def test_a_broken_object_is_named_with_libbpfs_own_words(
    library: Libbpf, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "gate.bpf.o"
    path.write_bytes(content)
    with pytest.raises(BpfError) as error:
        library.open_object(path, tmp_path)
    assert one_line(error).startswith(f"{path}: not a BPF object we can open: ")
    assert "elf:" in one_line(error)


def test_words_of_an_earlier_failure_are_not_repeated(library: Libbpf, tmp_path: Path) -> None:
    for name in ("first.o", "second.o"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(BpfError) as error:
            library.open_object(tmp_path / name, tmp_path)
    assert "first.o" not in one_line(error)


def test_a_map_that_is_not_pinned_is_named(library: Libbpf, tmp_path: Path) -> None:
    with pytest.raises(BpfError) as error:
        library.open_pinned(tmp_path / "limits")
    assert one_line(error).startswith(f"{tmp_path}/limits: cannot open the pinned map: ")


def test_possible_cpus_are_at_least_one(library: Libbpf) -> None:
    assert library.possible_cpus() >= 1


class TestUnpreempted:
    def test_no_ordinary_task_comes_between_and_afterwards_all_is_as_before(self) -> None:
        before = os.sched_getscheduler(0)
        with unpreempted() as ours:
            assert ours
            assert os.sched_getscheduler(0) == os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        assert os.sched_getscheduler(0) == before

    def test_an_error_inside_ends_it_as_well(self) -> None:
        before = os.sched_getscheduler(0)
        with pytest.raises(BpfError), unpreempted():
            raise BpfError("inside")
        assert os.sched_getscheduler(0) == before

    def test_without_the_right_it_goes_on_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        before = os.sched_getscheduler(0)
        monkeypatch.setattr(os, "sched_setscheduler", refused)
        with unpreempted() as ours:
            assert not ours
            assert os.sched_getscheduler(0) == before

    def test_a_task_that_is_real_time_already_keeps_its_priority(self) -> None:
        before = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
        try:
            with unpreempted() as ours:
                assert ours
                assert os.sched_getparam(0).sched_priority == 2
            assert os.sched_getparam(0).sched_priority == 2
        finally:
            os.sched_setscheduler(0, before, os.sched_param(0))
