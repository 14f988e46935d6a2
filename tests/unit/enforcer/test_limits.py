# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.limits import cu_bits, cu_masks, gpu_shares, limits, pending_limits, pod_limits
from enforcer.model import MIB, Container, ContainerKind, Limit, PodCgroup, Share, Slice, pci_key

GPU = "0000:03:00.0"
OTHER = "0000:43:00.0"
POD = PodCgroup("uid-a", "kubepods/poda", 100)


def make(
    container: str, *shares: Share, kind: ContainerKind = ContainerKind.APP, uid: str = "uid-a"
) -> Slice:
    return Slice(uid, "default", "p", container, kind, (), shares, "2026-11-29T13:00:00Z")


def gib(size: int | None, bdf: str = GPU) -> Share:
    return Share(bdf, None if size is None else size << 30)


def running(name: str | None, *, sandbox: bool = False, number: int = 1) -> Container:
    return Container(f"{number}", POD, f"kubepods/poda/{number}", 200 + number, name, sandbox)


def test_a_pods_limit_is_the_sum_of_its_containers() -> None:
    slices = [make("a", gib(4)), make("b", gib(8))]
    assert pod_limits(slices) == {GPU: (12 << 30, 2)}


def test_a_large_init_container_lifts_the_pods_limit() -> None:
    slices = [
        make("i", gib(16), kind=ContainerKind.INIT),
        make("j", gib(6), kind=ContainerKind.INIT),
        make("a", gib(4)),
        make("s", gib(2), kind=ContainerKind.SIDECAR),
    ]
    assert pod_limits(slices) == {GPU: (16 << 30, 2)}


def test_a_small_init_container_does_not() -> None:
    slices = [make("i", gib(1), kind=ContainerKind.INIT), make("a", gib(4))]
    assert pod_limits(slices) == {GPU: (4 << 30, 1)}


def test_a_pod_with_only_an_init_container_left_is_held_to_it() -> None:
    assert pod_limits([make("i", gib(3), kind=ContainerKind.INIT)]) == {GPU: (3 << 30, 1)}


def test_a_whole_gpu_in_a_pod_lifts_its_limit_on_that_gpu_only() -> None:
    slices = [make("a", gib(None), gib(2, OTHER)), make("b", gib(8))]
    assert pod_limits(slices) == {GPU: (None, 2), OTHER: (2 << 30, 1)}


def test_shares_of_partitions_of_one_gpu_add_up() -> None:
    assert gpu_shares(make("a", gib(4), gib(4), gib(1, OTHER))) == {GPU: 8 << 30, OTHER: 1 << 30}
    assert gpu_shares(make("a", gib(4), gib(None), gib(4))) == {GPU: None}


def test_each_container_has_its_own_share() -> None:
    slices = [make("a", gib(4)), make("b", gib(8))]
    found = limits(slices, [POD], [running("a", number=1), running("b", number=2)])
    assert found == [
        Limit("kubepods/poda", 100, GPU, 12 << 30, 2),
        Limit("kubepods/poda/1", 201, GPU, 4 << 30),
        Limit("kubepods/poda/2", 202, GPU, 8 << 30),
    ]


def test_an_unnamed_container_is_held_to_the_smallest_slice_of_its_pod() -> None:
    slices = [make("a", gib(4), gib(9, OTHER)), make("b", gib(8)), make("c", gib(None))]
    found = limits(slices, [], [running(None)])
    assert [(one.bdf, one.vram_bytes) for one in found] == [(GPU, 4 << 30), (OTHER, 9 << 30)]


def test_an_unnamed_container_of_whole_gpus_is_accounted() -> None:
    found = limits([make("a", gib(None))], [], [running(None)])
    assert [one.vram_bytes for one in found] == [None]


def test_a_sandbox_has_no_limit_of_its_own() -> None:
    assert limits([make("a", gib(4))], [], [running(None, sandbox=True)]) == []


def test_a_container_that_asked_for_no_gpu_has_no_limit_of_its_own() -> None:
    assert limits([make("a", gib(4))], [], [running("logger")]) == []


def test_a_pod_without_slices_has_no_limits() -> None:
    stranger = PodCgroup("uid-b", "kubepods/podb", 300)
    container = Container("9", stranger, "kubepods/podb/9", 301, None)
    assert limits([make("a", gib(4))], [stranger], [container]) == []


def test_slices_of_a_pod_that_is_not_there_yet_limit_nothing() -> None:
    assert limits([make("a", gib(4))], [], []) == []


def test_two_cgroups_of_one_pod_are_both_held() -> None:
    twin = PodCgroup("uid-a", "other/poda", 400)
    assert [one.cgroup_id for one in limits([make("a", gib(4))], [POD, twin], [])] == [100, 400]


SLICES = st.lists(
    st.builds(
        lambda name, kind, size: make(name, Share(GPU, size), kind=kind),
        st.text(min_size=1, max_size=3),
        st.sampled_from(ContainerKind),
        st.none() | st.integers(MIB, 1 << 40),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda one: one.container,
)


@given(SLICES)
def test_no_container_may_hold_more_than_its_pod(slices: list[Slice]) -> None:
    (size, _) = pod_limits(slices)[GPU]
    own = [one.shares[0].vram_bytes for one in slices]
    if size is None:
        assert None in own
    else:
        assert all(one is not None and one <= size for one in own)


@given(SLICES)
def test_an_unnamed_container_never_gets_more_than_any_named_one(slices: list[Slice]) -> None:
    (unnamed,) = limits(slices, [], [running(None)])
    limited = [one.shares[0].vram_bytes for one in slices if one.shares[0].vram_bytes is not None]
    assert unnamed.vram_bytes == (min(limited) if limited else None)


def test_a_container_not_made_yet_may_hold_the_pods_smallest_share_of_each_gpu() -> None:
    slices = [make("a", gib(4), gib(None, OTHER)), make("b", gib(2)), make("x", gib(1), uid="x")]
    bare = PodCgroup("uid-b", "kubepods/podb", 101)
    assert pending_limits(slices, [POD, bare]) == [
        Limit(POD.path, 100, GPU, 2 << 30),
        Limit(POD.path, 100, OTHER, None),
    ]


def test_a_named_container_has_the_cus_of_its_own_slice() -> None:
    slices = [make("a", Share(GPU, MIB, "0-3,8")), make("b", Share(GPU, MIB, "9"))]
    masks = cu_masks(slices, [running("a", number=1), running("b", number=2)])
    assert masks == {(201, pci_key(GPU)): 0x10F, (202, pci_key(GPU)): 0x200}


@pytest.mark.parametrize("name", [None, "", "another"])
def test_of_a_container_that_is_no_slice_s_no_cus_are_known(name: str | None) -> None:
    assert cu_masks([make("a", Share(GPU, MIB, "0-3"))], [running(name)]) == {}


@pytest.mark.parametrize(
    "share", [Share(GPU, None), Share(GPU, MIB), Share(GPU, None, "0-3", partition=1)]
)
def test_a_share_of_every_cu_or_of_a_whole_partition_has_no_mask(share: Share) -> None:
    assert cu_masks([make("a", share)], [running("a")]) == {}


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_an_id_list_is_its_bits(cus: set[int]) -> None:
    assert cu_bits(",".join(map(str, sorted(cus)))) == sum(1 << cu for cu in cus)


@pytest.mark.parametrize("ids", ["", "a", "1-", "1,,2"])
def test_what_is_no_id_list_is_an_error(ids: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        cu_bits(ids)


@pytest.mark.parametrize(("ids", "bits"), [("0-3,8", 0x10F), ("3-0", 0), ("5-5", 32)])
def test_ranges_are_what_they_span(ids: str, bits: int) -> None:
    assert cu_bits(ids) == bits


def test_a_huge_range_takes_no_time() -> None:
    assert cu_bits(",".join(["0-99999"] * 500)).bit_count() == 100_000
