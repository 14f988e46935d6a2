# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.codec import (
    AnnotationError,
    DeviceShare,
    NodeLock,
    RegisteredGpu,
    blank_entries,
    decode_cus,
    decode_devices,
    decode_lock,
    decode_register,
    encode_cu_allocated,
    encode_cus,
    encode_devices,
    encode_lock,
    encode_register,
)

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
PLAIN = st.text(
    st.characters(exclude_characters=",:;", exclude_categories=["Cs"]), min_size=1, max_size=20
)
SHARES = st.builds(DeviceShare, id=PLAIN, type=PLAIN | st.just(""), mib=INT32, cus=INT32)
ENTRIES = st.lists(st.lists(SHARES, max_size=3).map(tuple), max_size=5).map(tuple)


@given(ENTRIES)
def test_entries_survive_the_way_there_and_back_empty_ones_included(
    entries: tuple[tuple[DeviceShare, ...], ...],
) -> None:
    text = encode_devices(entries)
    assert decode_devices(text) == entries
    assert encode_devices(decode_devices(text)) == text


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        (";", ((),)),
        (";;", ((), ())),
        ("u,T X,4096,76:;", ((DeviceShare("u", "T X", 4096, 76),),)),
        (";u,T,1,2:;", ((), (DeviceShare("u", "T", 1, 2),))),
        (
            "u1,T,1,2:u2,T,3,4:;;",
            ((DeviceShare("u1", "T", 1, 2), DeviceShare("u2", "T", 3, 4)), ()),
        ),
        ("u,T,1,2,more,fields:;", ((DeviceShare("u", "T", 1, 2),),)),
        ("u,,1,2:", ((DeviceShare("u", "", 1, 2),),)),
    ],
)
def test_a_schedulers_annotation_is_read(
    text: str, entries: tuple[tuple[DeviceShare, ...], ...]
) -> None:
    assert decode_devices(text) == entries


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("u,T,1:;", "entry 1: expected id,type,MiB,CUs, found 3 fields"),
        (";garbage;", "entry 2: expected id,type,MiB,CUs, found 1 fields"),
        (",T,1,2:;", "entry 1: expected a device id"),
        ("u,T,many,2:;", "entry 1: expected the memory in MiB, found 'many'"),
        ("u,T,1,2.5:;", "entry 1: expected the count of CUs, found '2.5'"),
        ("u,T,2147483648,2:;", "entry 1: expected the memory in MiB, found '2147483648'"),
        ("u,T,1, 2:;", "entry 1: expected the count of CUs, found ' 2'"),
        ("u,T,\u0661,2:;", "entry 1: expected the memory in MiB"),
        ("u,T,1,2:;u,T,,2:;", "entry 2: expected the memory in MiB, found ''"),
    ],
)
def test_an_unreadable_annotation_names_the_field(text: str, complaint: str) -> None:
    with pytest.raises(AnnotationError, match=complaint.replace("(", r"\(")):
        decode_devices(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = decode_devices(text)
    except AnnotationError:
        return
    assert all(share.id for entry in entries for share in entry)


@pytest.mark.parametrize(
    "share",
    [
        DeviceShare("a;b", "T", 1, 1),
        DeviceShare("", "T", 1, 1),
        DeviceShare("a", "T,U", 1, 1),
        DeviceShare("a", "T", 1 << 31, 1),
    ],
)
def test_what_would_not_survive_is_not_written(share: DeviceShare) -> None:
    with pytest.raises(AnnotationError):
        encode_devices([(share,)])


@given(ENTRIES, st.integers(0, 6))
def test_blanking_empties_the_first_entries_and_keeps_the_count(
    entries: tuple[tuple[DeviceShare, ...], ...], count: int
) -> None:
    blanked = decode_devices(blank_entries(encode_devices(entries), count))
    filled = [index for index, entry in enumerate(entries) if entry]
    expected = [() if index in filled[:count] else entry for index, entry in enumerate(entries)]
    assert list(blanked) == expected


def test_blanking_leaves_every_other_byte_as_it_was() -> None:
    assert blank_entries(";a,T,1,2:;b,T,3,4,extra:", 1) == ";;b,T,3,4,extra:"


MI300X = RegisteredGpu(
    id="u",
    index=0,
    count=10,
    devmem=196288,
    devcore=304,
    type="AMD Instinct MI300X VF",
    numa=0,
    mode="",
    health=True,
    pci_bdf="0000:05:00.0",
    cu_per_wgp=1,
)


def test_a_register_annotation_leaves_out_what_is_zero() -> None:
    assert encode_register([MI300X]) == (
        '[{"id":"u","count":10,"devmem":196288,"devcore":304,"type":"AMD Instinct MI300X VF",'
        '"health":true,"devicevendor":"amd",'
        '"custominfo":{"cuPerWGP":1,"pciBDF":"0000:05:00.0"}}]'
    )


REGISTERED = st.builds(
    RegisteredGpu,
    id=PLAIN,
    index=st.integers(0, 255),
    count=st.integers(0, 100),
    devmem=st.integers(0, (1 << 31) - 1),
    devcore=st.integers(0, 1000),
    type=PLAIN,
    numa=st.integers(-1, 8),
    mode=st.sampled_from(["", "spx"]),
    health=st.booleans(),
    pci_bdf=PLAIN,
    cu_per_wgp=st.integers(1, 2),
    compute_queues=st.integers(0, 64),
    xgmi_peers=st.lists(PLAIN, max_size=3).map(lambda peers: tuple(sorted(peers))),
    partition_profile=st.sampled_from(["", "cpx_nps4"]),
)


@given(st.lists(REGISTERED, max_size=4).map(tuple))
def test_a_register_annotation_survives_the_way_there_and_back(
    gpus: tuple[RegisteredGpu, ...],
) -> None:
    text = encode_register(gpus)
    assert decode_register(text) == gpus
    for item in json.loads(text):
        assert all(item.values())


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"id":7}]', '[{"custominfo":[]}]', '[{"health":1}]', "[{]"]
)
def test_another_register_annotation_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError, match=r"hami.io/node-amd-register"):
        decode_register(text)


@given(st.sets(st.integers(0, 303), min_size=1))
def test_a_cu_list_survives_the_way_there_and_back(cus: set[int]) -> None:
    assert decode_cus(encode_cus(cus), 304) == cus


def test_a_cu_list_is_spelled_as_rocm_reads_it() -> None:
    assert encode_cus([8, 0, 1, 2, 3]) == "0-3,8"
    assert encode_cus([5]) == "5"
    assert encode_cus([0, 2, 4]) == "0,2,4"


def test_an_empty_cu_list_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least one CU"):
        encode_cus([])


@pytest.mark.parametrize(
    "text", ["", "3-1", "304", "0-304", "a", "1-2-3", "1,,2", "-1", "0x1", "²"]
)
def test_another_cu_list_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError, match="CU list"):
        decode_cus(text, 304)


def test_cu_allocated_is_compact_and_sorted() -> None:
    assert encode_cu_allocated({"b": "1", "a": "0-3,8"}) == '{"a":"0-3,8","b":"1"}'


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("2026-01-02T03:04:05Z,default,pod", ("default", "pod")),
        ("2026-01-02T03:04:05.123456789+08:00,ns,p", ("ns", "p")),
        ("2026-01-02T03:04:05-07:00", None),
    ],
)
def test_a_lock_names_its_pod(text: str, owner: tuple[str, str] | None) -> None:
    assert decode_lock(text).owner == owner


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-02T03:04:05Z,a",
        "2026-01-02T03:04:05Z,a,b,c",
        ",a,b",
        "2026,a,b",
        "2026-13-02T03:04:05Z,a,b",
        "2026-01-02T03:04:05Z,,b",
    ],
)
def test_another_lock_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError, match=r"hami.io/mutex.lock"):
        decode_lock(text)


def test_a_lock_survives_the_way_there_and_back() -> None:
    lock = NodeLock(datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC), ("default", "pod"))
    assert decode_lock(encode_lock(lock)) == lock
    assert lock.names("default", "pod")
    assert not lock.names("other", "pod")
