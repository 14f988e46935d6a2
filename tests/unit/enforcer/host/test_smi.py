# SPDX-License-Identifier: Apache-2.0
"""The lines; the descriptors that bring them are tried on the driver, in the VM."""

from pathlib import Path

import pytest

from enforcer.host.smi import SmiEvent, SmiKind, SmiListener, parse


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("1 1267:python3", SmiKind.VM_FAULT, "1267:python3"),
        ("3 2 job hang", SmiKind.PRE_RESET, "2 job hang"),
        ("4 2", SmiKind.POST_RESET, "2"),
        ("4 2 ", SmiKind.POST_RESET, "2"),
    ],
)
def test_an_event_is_read_with_what_the_driver_adds(line: str, kind: SmiKind, text: str) -> None:
    assert parse(line, 7) == SmiEvent(7, kind, text)


@pytest.mark.parametrize("line", ["", "2 1:0", "a 1 -2 3", "x 1", "ffffffffffffffffffff 1", "-3 1"])
def test_other_lines_are_passed_over(line: str) -> None:
    assert parse(line, 7) is None


def test_without_the_device_there_is_nothing_to_listen_to(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SmiListener(tmp_path / "kfd")


def test_a_node_that_is_not_kfds_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "kfd"
    path.touch()
    with SmiListener(path) as listener:
        assert list(listener.listen([7, 8])) == [7, 8]
        assert listener.descriptors == {}
