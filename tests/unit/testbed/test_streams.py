# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testbed.streams import Control, MarkedStream

END = b"<end 0123>"


def chunks_of(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]
    return [*chunks, data]


@given(
    output=st.lists(st.sampled_from([b"<", b"<end", b"<end 0123", b"x", b"\0", b"\n"])).map(
        b"".join
    ),
    after=st.binary(max_size=5),
    sizes=st.lists(st.integers(0, 6)),
)
def test_output_is_all_before_the_mark_however_it_is_cut(
    output: bytes, after: bytes, sizes: list[int]
) -> None:
    if END in output:
        output = output.replace(END, b"")
    expected = (output + END).partition(END)[0]
    stream = MarkedStream(END)
    got = b"".join(stream.feed(chunk) for chunk in chunks_of(output + END + after, sizes))
    assert got == expected
    assert stream.ended


def test_output_that_cannot_be_the_mark_is_given_at_once() -> None:
    stream = MarkedStream(END)
    assert stream.feed(b"live\n") == b"live\n"
    assert stream.feed(b"a<end") == b"a"
    assert stream.feed(b"x") == b"<endx"


def test_a_stream_cut_short_gives_what_it_held() -> None:
    stream = MarkedStream(END)
    assert stream.feed(b"a<end ") == b"a"
    assert stream.rest() == b"<end "
    assert stream.rest() == b""
    assert not stream.ended


@pytest.mark.parametrize("status", [0, 1, 127, 255])
def test_exit_status_is_carried(status: int) -> None:
    control = Control()
    for byte in f"started\nexit {status}\n".encode():
        control.feed(bytes([byte]))
    assert control.started
    assert control.status == status
    assert control.failure is None


def test_a_line_counts_only_when_it_is_complete() -> None:
    control = Control()
    control.feed(b"exit 1")
    assert control.status is None
    control.feed(b"2\n")
    assert control.status == 12


def test_failure_carries_its_reason() -> None:
    control = Control()
    control.feed(b"failed cannot mount bpffs\n")
    assert control.failure == "cannot mount bpffs"


@pytest.mark.parametrize(
    "line", [b"", b"exit", b"exit x", b"exit 256", b"exit -1", b"started now", b"\xff"]
)
def test_a_line_that_means_nothing_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match="guest control port"):
        Control().feed(line + b"\n")
