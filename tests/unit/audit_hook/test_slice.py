# SPDX-License-Identifier: Apache-2.0
"""What Python writes into a slice file is what the hook reads, and it reads nothing else."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audit_hook.slice import GpuShare, SliceFile, format_slice, write_slice
from enforcer.model import pci_bdf, pci_key
from tests.unit.audit_hook.c_hook import MAX_GPUS, UNKNOWN, UNLIMITED, Mask, Slice, bits

if TYPE_CHECKING:
    from pathlib import Path

GPU = "0000:03:00.0"

bdfs = st.builds(
    lambda domain, rest: pci_bdf(domain << 16 | rest),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
)
minors = st.none() | st.integers(0, 2**32 - 2)


@st.composite
def cu_lists(draw: st.DrawFn) -> tuple[str, set[int]]:
    """A CU list and the ids it means."""
    cuts = sorted(draw(st.sets(st.integers(0, 1023), min_size=1, max_size=8)))
    parts, ids = [], set()
    for low, next_low in zip(cuts, [*cuts[1:], 1024], strict=True):
        high = draw(st.integers(low, next_low - 1))
        parts.append(str(low) if high == low else f"{low}-{high}")
        ids |= set(range(low, high + 1))
    return ",".join(draw(st.permutations(parts))), ids


shares = st.builds(
    GpuShare,
    bdf=bdfs,
    vram_bytes=st.none() | st.integers(0, 2**64 - 2),
    cus=st.none() | cu_lists().map(lambda pair: pair[0]),
    kfd_id=minors,
    render=minors,
    card=minors,
)
slices = st.builds(
    SliceFile,
    gpus=st.lists(shares, min_size=1, max_size=MAX_GPUS, unique_by=lambda gpu: gpu.bdf).map(tuple),
    kernel_refuses=st.booleans(),
    priority=st.sampled_from([None, 0, 1]),
    oversubscribe=st.booleans(),
)


def parse(hook: ctypes.CDLL, text: bytes) -> tuple[int, Slice]:
    parsed = Slice()
    line = hook.rf_slice_parse(text, len(text), ctypes.byref(parsed))
    return line, parsed


def unknown(value: int) -> int | None:
    return None if value == UNKNOWN else value


@given(slices)
def test_the_hook_reads_what_the_node_writes(hook: ctypes.CDLL, content: SliceFile) -> None:
    text = format_slice(content).encode()
    line, parsed = parse(hook, text)
    assert line == 0
    assert parsed.kernel_refuses == content.kernel_refuses
    assert parsed.oversubscribe == content.oversubscribe
    assert parsed.priority == (-1 if content.priority is None else content.priority)
    assert parsed.gpu_count == len(content.gpus)
    for gpu, share in zip(parsed.gpus, content.gpus, strict=False):
        assert gpu.pci == pci_key(share.bdf)
        assert gpu.vram == (UNLIMITED if share.vram_bytes is None else share.vram_bytes)
        assert [unknown(value) for value in (gpu.kfd, gpu.render, gpu.card)] == [
            share.kfd_id, share.render, share.card
        ]  # fmt: skip
        assert gpu.masked == (share.cus is not None)
        if share.cus is not None:
            start = ctypes.string_at(gpu.cu_list, gpu.cu_list_length)
            assert start == share.cus.encode()


@given(cu_lists())
def test_a_cu_list_means_its_ids(hook: ctypes.CDLL, pair: tuple[str, set[int]]) -> None:
    mask = Mask()
    text = pair[0].encode()
    assert hook.rf_parse_cu_list(text, len(text), ctypes.byref(mask))
    assert bits(mask) == pair[1]


@given(slices, st.data())
def test_a_slice_cut_short_anywhere_is_not_taken(
    hook: ctypes.CDLL, content: SliceFile, data: st.DataObject
) -> None:
    text = format_slice(content).encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    assert parse(hook, text[:cut])[0] > 0


@given(st.binary(max_size=400))
@example(b"")
@example(b"ringfence-slice 1\nrefuse hook\nend\n")
def test_no_bytes_crash_the_parser(hook: ctypes.CDLL, text: bytes) -> None:
    line, _ = parse(hook, text)
    assert 0 < line <= text.count(b"\n") + 1


@given(slices, st.data())
def test_no_changed_byte_crashes_the_parser(
    hook: ctypes.CDLL, content: SliceFile, data: st.DataObject
) -> None:
    text = bytearray(format_slice(content).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    line, parsed = parse(hook, bytes(text))
    if line == 0:
        # A digit became another one; nothing larger than its field came of it.
        assert parsed.gpu_count <= MAX_GPUS


HEAD = "ringfence-slice 1\nrefuse hook\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ringfence-slice 2\n", 1),
        ("ringfence-slice 1 \n", 1),
        ("ringfence-slice 1\r\n", 1),
        ("ringfence-slice 1\nrefuse nobody\n", 2),
        ("ringfence-slice 1\nrefuse hook\nrefuse hook\n", 3),
        (f"{HEAD}gpu {GPU}\n", 3),
        (f"{HEAD}gpu {GPU} vram=-1\n", 3),
        (f"{HEAD}gpu {GPU} vram=18446744073709551615\n", 3),
        (f"{HEAD}gpu {GPU} vram=18446744073709551616\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 vram=2\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 cus=\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 cus=3-1\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 cus=1,1\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 cus=1024\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 kfd=4294967295\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 colour=red\n", 3),
        (f"{HEAD}gpu {GPU} vram=1 \n", 3),
        (f"{HEAD}gpu 0000:03:00.8 vram=1\n", 3),
        (f"{HEAD}gpu 0000:03:20.0 vram=1\n", 3),
        (f"{HEAD}gpu {GPU} vram=1\ngpu {GPU} vram=1\n", 4),
        (f"{HEAD}gpu {GPU} vram=1\npriority 2\n", 4),
        (f"{HEAD}gpu {GPU} vram=1\nend\nend\n", 5),
        (f"{HEAD}end\n", 3),
        (f"ringfence-slice 1\ngpu {GPU} vram=1\nend\n", 3),
        (f"{HEAD}gpu {GPU} vram=1\nend", 4),
    ],
)
def test_the_first_wrong_line_is_named(hook: ctypes.CDLL, text: str, line: int) -> None:
    assert parse(hook, text.encode())[0] == line


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1", 1), ("1k", 1 << 10), ("4096M", 4096 << 20), ("3g", 3 << 30),
        ("2T", 2 << 40), ("18446744073709551615", 2**64 - 1), ("16777215T", 16777215 << 40),
    ],
)  # fmt: skip
def test_sizes_are_powers_of_1024(hook: ctypes.CDLL, text: str, size: int) -> None:
    value = ctypes.c_uint64()
    assert hook.rf_parse_size(text.encode(), len(text), ctypes.byref(value))
    assert value.value == size


@pytest.mark.parametrize(
    "text",
    ["", "m", "-1", "+1", " 1", "1 ", "1.5G", "1MB", "0x10", "1e3", "16777216T",
     "18446744073709551616", "1\n"],
)  # fmt: skip
def test_a_size_that_is_not_one_is_not_read_as_one(hook: ctypes.CDLL, text: str) -> None:
    value = ctypes.c_uint64()
    assert not hook.rf_parse_size(text.encode(), len(text), ctypes.byref(value))


@pytest.mark.parametrize(
    ("text", "gpu", "expected"),
    [
        ("0:0-3", 0, {0, 1, 2, 3}),
        ("0:0-3", 1, None),
        ("0-1:2;3:5", 1, {2}),
        ("0-1:2;3:5", 3, {5}),
        (" 0 : 0x F0 ", 0, {4, 5, 6, 7}),
        ("0:0X1_", 0, -1),
        ("0:0x0", 0, -1),
        ("0:zz", 0, -1),
        ("0:1,1", 0, -1),
        ("0:1;0:2", 0, -1),
        ("0:1;", 0, -1),
        ("", 0, -1),
        ("0:1;1:zz", 0, -1),
        ("0:" + "1" * 5000, 0, -1),
    ],
)
def test_hsa_cu_mask_is_read_as_rocr_does_but_not_in_part(
    hook: ctypes.CDLL, text: str, gpu: int, expected: set[int] | int | None
) -> None:
    mask = Mask()
    result = hook.rf_cumask_from_variable(text.encode(), gpu, ctypes.byref(mask))
    assert result == (1 if isinstance(expected, set) else expected or 0)
    if isinstance(expected, set):
        assert bits(mask) == expected


@given(st.sets(st.integers(0, 1023)), st.integers(0, 1100), st.booleans())
def test_a_fitted_mask_has_only_cus_of_the_gpu_and_whole_pairs(
    hook: ctypes.CDLL, ids: set[int], cu_count: int, pairs: bool
) -> None:
    mask = Mask()
    for number in ids:
        mask[number // 32] |= 1 << number % 32
    kept = hook.rf_cumask_fit(ctypes.byref(mask), cu_count, pairs)
    expected = {number for number in ids if number < cu_count}
    if pairs:
        expected = {number for number in expected if number ^ 1 in expected}
    assert bits(mask) == expected
    assert kept == bool(expected)


@pytest.mark.parametrize(
    "content",
    [
        SliceFile((), False),
        SliceFile((GpuShare("03:00.0", 1),), False),
        SliceFile((GpuShare(GPU, -1),), False),
        SliceFile((GpuShare(GPU, 2**64 - 1),), False),
        SliceFile((GpuShare(GPU, 1), GpuShare(GPU, 2)), False),
        SliceFile((GpuShare(GPU, 1, cus="all of them"),), False),
        SliceFile((GpuShare(GPU, 1, render=-1),), False),
        SliceFile((GpuShare(GPU, 1),), False, priority=3),
        SliceFile(
            tuple(
                GpuShare(pci_bdf(i << 8), 1, cus=",".join(map(str, range(512)))) for i in range(32)
            ),
            False,
        ),
    ],
)
def test_what_the_hook_would_not_take_is_not_written(content: SliceFile) -> None:
    with pytest.raises(ValueError, match=r"expected|twice"):
        format_slice(content)


def test_the_file_is_replaced_whole_and_readable_by_everyone(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for vram in (1, 2):
            write_slice(SliceFile((GpuShare(GPU, vram),), False), directory)
    finally:
        os.close(directory)
    assert (tmp_path / "slice").read_text() == format_slice(SliceFile((GpuShare(GPU, 2),), False))
    assert (tmp_path / "slice").stat().st_mode & 0o777 == 0o444
    assert [path.name for path in tmp_path.iterdir()] == ["slice"]


def test_a_link_in_the_new_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".slice.new").symlink_to(tmp_path / "elsewhere")
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="symbolic"):
            write_slice(SliceFile((GpuShare(GPU, 1),), False), directory)
    finally:
        os.close(directory)
    assert not (tmp_path / "elsewhere").exists()
