# SPDX-License-Identifier: Apache-2.0
"""What every tool has in common, and what each makes of its events."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from bpf.libbpf import BpfError
from bpf.tools import dmemsnoop, gatesnoop, gpus, hipsnoop, vramhist
from bpf.tools.probes import follow, run
from enforcer.cli import trace
from tests.testbed.trees import GpuSpec, NodeSpec, write_sys

if TYPE_CHECKING:
    from pathlib import Path

    from bpf.tools.scope import Subject

TOOLS = trace.programs()
ID = "0123456789ab" + "c" * 52
LONG = f"kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"


def tool(name: str) -> Any:
    return import_module(f"bpf.tools.{name}")


def test_these_are_the_tools() -> None:
    assert TOOLS == ["dmemsnoop", "gatesnoop", "hipsnoop", "vramhist", "vramsnoop"]


@pytest.mark.parametrize("name", TOOLS)
def test_each_filters_and_ends_by_itself(name: str) -> None:
    text = tool(name).parser().format_help()
    for option in ("--container", "--pid", "--duration", "--count"):
        assert option in text
    assert ("--gpu" in text) == (name != "hipsnoop")


@pytest.mark.parametrize("name", TOOLS)
def test_the_help_fits_a_terminal_and_its_example_is_a_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = tool(name).parser()
    lines = made.format_help().splitlines()
    assert max(map(len, lines)) < 80
    command = lines[lines.index("example:") + 1]
    assert command.startswith(f"# ringfence trace {name}")
    made.parse_args(command.split()[4:])


@pytest.mark.parametrize("name", TOOLS)
def test_without_bcc_each_names_the_package(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bcc", None)
    assert tool(name).main([]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"{name}: BCC's Python module is missing")
    assert "python3-bpfcc" in message
    assert message.count("\n") == 1


LONGEST: dict[str, Subject] = {
    "gatesnoop": gatesnoop.Event(4194304, "c" * 15, LONG, "0000:c1:00.0", "prime-import", 192 << 30,
                                 "EOPNOTSUPP"),
    "dmemsnoop": dmemsnoop.Event(4194304, "c" * 15, LONG, "0000:c1:00.0", -(192 << 30), "EAGAIN"),
    "hipsnoop": hipsnoop.Event(4194304, LONG, "hipExtMallocWithFlags", 10**11 - 1, 1e8, 709),
}  # fmt: skip


@pytest.mark.parametrize("name", LONGEST)
def test_a_line_stays_below_80_columns_at_its_longest(name: str) -> None:
    assert len(tool(name).line(LONGEST[name], "23:59:59")) < 80
    assert len(tool(name).HEADER) < 80
    assert len(tool(name).HEADER.split()) == len(tool(name).line(LONGEST[name], "x").split())


class Probe:
    """A program of BCC's whose ring has one event at every poll."""

    def __init__(self) -> None:
        self.lost: dict[int, Any] = {}
        self.told: Any = None

    def __getitem__(self, table: str) -> Any:
        return self if table == "events" else self.lost

    def open_ring_buffer(self, told: Any) -> None:
        self.told = told

    def ring_buffer_poll(self, _timeout: int) -> None:
        self.told(None, 0, 0)

    def ring_buffer_consume(self) -> None:
        pass


def test_a_process_cannot_move_the_readers_cursor_by_its_name() -> None:
    event = gatesnoop.Event(7, "a\x1b[2J\nb", "x/\udcff", "0000:c1:00.0", "kfd-alloc", 4, "ENOMEM")
    out = io.StringIO()
    options = gatesnoop.parser().parse_args(["--count", "1"])
    follow(Probe(), options, lambda _: event, gatesnoop.line, gatesnoop.HEADER, out)
    head, line = out.getvalue().splitlines()
    assert head == gatesnoop.HEADER
    assert line.isprintable()
    assert "a?[2J?b" in line


def test_nor_by_the_names_of_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise BpfError("/proc/7/root/\x1b[2J\nlibamdhip64.so exports none of the calls")

    assert run("hipsnoop", fail) == 1
    assert capsys.readouterr().err == (
        "hipsnoop: /proc/7/root/?[2J?libamdhip64.so exports none of the calls\n"
    )


def test_a_call_that_makes_vram_has_a_name_and_any_other_its_number() -> None:
    assert gatesnoop.call_name(226 << 20 | 128, 0xC0206440) == "gem-create"
    assert gatesnoop.call_name(235 << 20, 0xC0284B16) == "kfd-alloc"
    assert gatesnoop.call_name(235 << 20, 0xC0284B40) == "nr 0x40"


def test_a_region_of_a_gpu_is_that_gpu() -> None:
    assert dmemsnoop.region_gpu("drm/0000:c1:00.0/vram") == "0000:c1:00.0"
    assert dmemsnoop.region_gpu("something/else") == "something/else"


def test_a_result_is_named() -> None:
    assert [dmemsnoop.result(one) for one in (0, -11, -4095)] == ["ok", "EAGAIN", "-4095"]


def test_a_histogram_has_every_class_between_the_first_and_the_last() -> None:
    assert list(vramhist.histogram({12: 40, 14: 1})) == [
        f"          4K - 8K        40 |{'*' * 40}|",
        f"         8K - 16K         0 |{' ' * 40}|",
        f"        16K - 32K         1 |{'*':<40}|",
    ]
    assert max(map(len, vramhist.histogram({9: 10**9, 41: 1}))) < 80


def test_gpus_are_told_by_minor_and_by_kfd_id(tmp_path: Path) -> None:
    write_sys(tmp_path, NodeSpec((GpuSpec("0000:03:00.0", 5, 1, 128),)))
    assert gpus.by_minor(tmp_path) == {1: "0000:03:00.0", 128: "0000:03:00.0"}
    assert gpus.by_kfd_id(tmp_path) == {5: "0000:03:00.0"}


@pytest.mark.parametrize("broken", ["gpu_id", "properties"])
def test_a_node_that_cannot_be_read_is_left_out(tmp_path: Path, broken: str) -> None:
    write_sys(tmp_path, NodeSpec((GpuSpec("0000:03:00.0", 5, 1, 128),)))
    (tmp_path / f"class/kfd/kfd/topology/nodes/1/{broken}").write_text("?\n")
    assert gpus.by_kfd_id(tmp_path) == {}


def test_the_major_of_kfd_is_known_where_there_is_one(tmp_path: Path) -> None:
    assert gpus.kfd_major(tmp_path) is None
    path = tmp_path / "class/kfd/kfd/dev"
    path.parent.mkdir(parents=True)
    path.write_text("235:0\n")
    assert gpus.kfd_major(tmp_path) == 235


def test_hips_library_is_that_of_the_process(tmp_path: Path) -> None:
    assert hipsnoop.library_of(tmp_path, 7) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_bytes(
        b"7f00-7f01 r-xp 00000000 08:01 11 /tmp/\xff\x1c\n"
        b"7f01-7f02 rw-p 00000000 00:00 0 \n"
        b"7f02-7f03 r-xp 00000000 08:01 12 /opt/rocm lib/libamdhip64.so.6.2\n"
    )
    found = hipsnoop.library_of(tmp_path, 7)
    assert found == tmp_path / "7/root/opt/rocm lib/libamdhip64.so.6.2"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name a container"),
        (["--pid", "7"], "none of 1 processes has libamdhip64 loaded"),
        (["--container", "f" * 12], "none of 0 processes"),
        (["--library", "/nowhere/libamdhip64.so"], "no such file"),
    ],
)
def test_without_a_library_hipsnoop_says_what_to_do(
    tmp_path: Path, argv: list[str], words: str
) -> None:
    options = hipsnoop.parser().parse_args(argv)
    with pytest.raises(hipsnoop.BpfError, match=words):
        hipsnoop.find_library(options, tmp_path, tmp_path)


def test_the_calls_are_numbered_as_in_the_program() -> None:
    source = (hipsnoop.Path(hipsnoop.__file__).with_suffix(".c")).read_text()
    numbers = [int(text.partition(",")[0]) for text in source.split("\nCALL(")[1:]]
    assert numbers == list(range(len(hipsnoop.CALLS)))
