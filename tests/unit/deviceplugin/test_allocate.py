# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from deviceplugin.allocate import (
    Mount,
    answer,
    decide,
    given_again,
    held_cus,
    idle_xccs,
    promised_bytes,
    still_booked,
)
from deviceplugin.cu import CuLayout
from deviceplugin.devices import devices_of
from deviceplugin.hook import Hook
from deviceplugin.pending import Turn, turns
from deviceplugin.refusal import RefusalError
from deviceplugin.terms import Terms
from enforcer.model import MIB, ContainerKind, Share, Slice

from .given import (
    BDF,
    CREATED,
    DEVICES,
    ID,
    NODE,
    OTHER,
    OTHER_ID,
    claim,
    device,
    gpu,
    pod,
    slice_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deviceplugin.devices import Device
    from deviceplugin.pod import Pod

RUN = Path("/run/ringfence")
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def allocate(
    one: Pod,
    slices: Sequence[Slice] = (),
    devices: Sequence[Device] = DEVICES,
    device_ids: Sequence[str] = (f"{BDF}#0",),
) -> Slice:
    (turn,) = turns([one], NODE, slices)
    return decide(turn, device_ids, devices, slices, CREATED)


def test_a_slice_is_what_the_scheduler_booked() -> None:
    assert allocate(pod(f"{ID},AMD Instinct MI300X,4096,76:;")) == Slice(
        pod_uid="uid-pod",
        namespace="default",
        pod="pod",
        container="app",
        kind=APP,
        device_ids=(f"{BDF}#0",),
        shares=(Share(BDF, 4096 * MIB, "0-75"),),
        created=CREATED,
        hook=False,
    )


def test_everything_of_a_gpu_is_the_whole_gpu() -> None:
    item = allocate(pod(f"{ID},T,196288,304:;"))
    assert item.shares == (Share(BDF, None, None),)


def test_all_memory_with_some_cus_is_a_slice() -> None:
    assert allocate(pod(f"{ID},T,196288,303:;")).shares == (Share(BDF, 196288 * MIB, "0-302"),)


def test_some_memory_with_all_cus_is_a_slice_that_books_them() -> None:
    assert allocate(pod(f"{ID},T,4096,304:;")).shares == (Share(BDF, 4096 * MIB, "0-303"),)


def test_memory_alone_books_no_cus() -> None:
    assert allocate(pod(f"{ID},T,4096,0:;")).shares == (Share(BDF, 4096 * MIB, None),)


def test_one_sliced_gpu_of_two_makes_slices_of_both() -> None:
    one = pod(f"{ID},T,196288,304:{OTHER_ID},T,1024,10:;", claim(count=2))
    item = allocate(one, device_ids=(f"{BDF}#0", f"{OTHER}#0"))
    assert item.shares == (
        Share(BDF, 196288 * MIB, "0-303"),
        Share(OTHER, 1024 * MIB, "0-9"),
    )


def test_the_rocr_uuid_and_a_partition_suffix_name_the_gpu_too() -> None:
    assert allocate(pod("GPU-8eff74b5801bb564#spx,T,1024,10:;")).shares[0].bdf == BDF


def test_rdna_cus_are_rounded_up_to_work_group_processors() -> None:
    rdna = device(gfx_version=110000, cu_count=96)
    assert allocate(pod(f"{rdna.id},T,1024,3:;"), devices=[rdna]).shares[0].cus == "0-3"


REFUSALS = [
    ("nobody,T,4096,76:;", "expected a GPU of this node .* found 'nobody'"),
    (f"{ID},T,0,76:;", "expected 1 to 196288 MiB, found 0"),
    (f"{ID},T,-5,76:;", "expected 1 to 196288 MiB, found -5"),
    (f"{ID},T,196289,76:;", "expected 1 to 196288 MiB, found 196289"),
    (f"{ID},T,4096,-1:;", "expected at most 304, found -1"),
    (f"{ID},T,4096,305:;", "expected at most 304, found 305"),
    (f"{ID},T,much,76:;", "expected the memory in MiB, found 'much'"),
    (f"{ID},T,4096:;", "found 3 fields"),
    (f"{ID},T,4096,76:{OTHER_ID},T,1,1:;", "expected 1 GPUs as kubelet asks, found 2"),
    (
        ";",
        r"expected an entry for each of the 1 containers that ask for GPUs \(0 served\), found 0",
    ),
    ("", "found 0"),
    (f"{ID},T,1,1:;{ID},T,1,1:;", "found 2"),
    (None, "expected what to give, found none"),
]


@pytest.mark.parametrize(("devices", "complaint"), REFUSALS)
def test_what_cannot_be_used_is_refused_naming_pod_and_annotation(
    devices: str | None, complaint: str
) -> None:
    with pytest.raises(RefusalError, match=complaint) as caught:
        allocate(pod(devices))
    assert "pod default/pod, container app" in str(caught.value)
    assert "hami.io/amd-devices-to-allocate" in str(caught.value)
    assert caught.value.pod is not None


def test_one_gpu_named_twice_is_refused() -> None:
    with pytest.raises(RefusalError, match="more than once"):
        allocate(
            pod(f"{ID},T,1,1:GPU-8eff74b5801bb564,T,1,1:;", claim(count=2)),
            device_ids=(f"{BDF}#0", f"{BDF}#1"),
        )


def test_an_unhealthy_gpu_is_refused() -> None:
    with pytest.raises(RefusalError, match="is unhealthy"):
        allocate(pod(f"{ID},T,4096,76:;"), devices=[device(healthy=False)])


@hypothesis_given(st.text(max_size=60))
def test_no_annotation_whatsoever_gives_a_whole_gpu_by_accident(text: str) -> None:
    try:
        item = allocate(pod(text))
    except RefusalError:
        return
    assert all(share.vram_bytes is not None for share in item.shares)


def test_slices_of_different_pods_get_different_cus() -> None:
    other = slice_of(name="other")
    assert allocate(pod(f"{ID},T,4096,76:;"), [other]).shares[0].cus == "76-151"


def test_too_few_free_cus_are_refused_naming_who_holds_them() -> None:
    other = slice_of("app", Share(BDF, MIB, "0-302"), name="other")
    with pytest.raises(RefusalError, match=r"needs 2 CUs, but only 1 are free.*default/other"):
        allocate(pod(f"{ID},T,4096,2:;"), [other])


def test_a_slice_beside_a_whole_gpu_is_refused() -> None:
    whole = slice_of("app", Share(BDF, None), name="other")
    with pytest.raises(RefusalError, match="held by default/other"):
        allocate(pod(f"{ID},T,4096,2:;"), [whole])


def test_a_whole_gpu_beside_a_slice_is_refused() -> None:
    with pytest.raises(RefusalError, match="needs 304 CUs, but only 228 are free"):
        allocate(pod(f"{ID},T,196288,304:;"), [slice_of(name="other")])


def test_more_memory_than_the_gpu_has_is_not_promised() -> None:
    other = slice_of("app", Share(BDF, 196000 * MIB, "0"), name="other")
    with pytest.raises(RefusalError, match=r"196289 MiB would be promised.*default/other"):
        allocate(pod(f"{ID},T,289,2:;"), [other])
    assert allocate(pod(f"{ID},T,288,2:;"), [other])


def test_the_last_byte_can_be_promised_without_cus() -> None:
    other = slice_of("app", Share(BDF, 196287 * MIB, None), name="other")
    assert allocate(pod(f"{ID},T,1,304:;"), [other]).shares[0].cus == "0-303"


TWO = (claim("init", kind=INIT), claim("app"))


def test_an_app_container_takes_over_its_init_containers_cus() -> None:
    one = pod(f";{ID},T,4096,20:;", *TWO)
    init = slice_of("init", Share(BDF, 4096 * MIB, "100-109"), kind=INIT)
    item = allocate(one, [init])
    assert (item.container, item.shares[0].cus) == ("app", "0-9,100-109")


def test_a_whole_gpu_can_follow_an_init_containers_whole_gpu() -> None:
    one = pod(f";{ID},T,196288,304:;", *TWO)
    init = slice_of("init", Share(BDF, None), kind=INIT)
    assert allocate(one, [init]).shares == (Share(BDF, None),)


def test_a_sidecars_cus_are_not_its_apps() -> None:
    one = pod(f";{ID},T,4096,20:;", claim("side", kind=SIDECAR), claim("app"))
    side = slice_of("side", Share(BDF, MIB, "0-9"), kind=SIDECAR)
    assert allocate(one, [side]).shares[0].cus == "10-29"


def test_two_apps_of_a_pod_get_different_cus() -> None:
    one = pod(f";{ID},T,4096,20:;", claim("a"), claim("b"))
    assert allocate(one, [slice_of("a")]).shares[0].cus == "76-95"


def test_promises_of_a_pod_are_its_peak() -> None:
    def of(container: str, mib: int, kind: ContainerKind) -> Slice:
        return slice_of(container, Share(BDF, mib * MIB), kind=kind)

    items = [
        of("first", 10, INIT),
        of("side", 3, SIDECAR),
        of("second", 9, INIT),
        of("a", 4, APP),
        of("b", 1, APP),
    ]
    assert promised_bytes(items, DEVICES[0]) == 12 * MIB
    assert promised_bytes(items, DEVICES[1]) == 0
    assert promised_bytes([slice_of("a", Share(BDF, None))], DEVICES[0]) == 196288 * MIB


def test_what_an_init_container_had_is_booked_again_once_it_is_over() -> None:
    init = slice_of("init", Share(BDF, 196287 * MIB, "0-302"), name="a", kind=INIT)
    side = slice_of("side", Share(BDF, MIB, "0"), name="a", kind=SIDECAR)
    app = slice_of("app", Share(BDF, MIB, "1"), name="a")
    of_other = slice_of("init", Share(OTHER, None), name="b", kind=INIT)
    slices = [init, side, app, of_other]
    assert still_booked(slices, {"uid-b"}) == [init, side, app]
    booked = still_booked(slices, {"uid-a"})
    assert booked == [side, app, of_other]
    one = pod(f"{ID},T,4096,302:;")
    assert allocate(one, booked).shares[0].cus == "2-303"
    with pytest.raises(RefusalError):
        allocate(one, slices)
    with pytest.raises(RefusalError):
        allocate(pod(f"{ID},T,4096,303:;"), booked)


@pytest.mark.parametrize("cus", ["9-3", "5-", "0-99999"])
def test_a_bad_cu_list_in_the_checkpoint_costs_only_itself(cus: str) -> None:
    layout = CuLayout(304)
    assert held_cus(Share(BDF, MIB, cus), layout) in {0, layout.all}


def test_a_cu_list_of_a_larger_gpu_is_cut_to_this_one() -> None:
    assert held_cus(Share(BDF, MIB, "2-400"), CuLayout(4)) == 0b1100


def test_the_answer_of_a_slice() -> None:
    given = answer(slice_of(), DEVICES, None, RUN)
    assert given.envs == {
        "ROCR_VISIBLE_DEVICES": "GPU-8eff74b5801bb564",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-75",
        "HIP_DEVICE_MEMORY_LIMIT_0": "4096m",
    }
    assert given.devices == ("/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128")
    assert given.mounts == ()


def test_the_answer_of_a_whole_gpu_has_neither_mask_nor_limit_nor_hook(tmp_path: Path) -> None:
    given = answer(slice_of("app", Share(BDF, None)), DEVICES, Hook(tmp_path, 4), RUN)
    assert set(given.envs) == {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
    assert given.mounts == ()


def test_two_gpus_are_masked_in_the_order_they_are_visible() -> None:
    item = slice_of("app", Share(OTHER, MIB, "4-5"), Share(BDF, 2 * MIB, None))
    given = answer(item, DEVICES, None, RUN)
    assert given.envs["ROCR_VISIBLE_DEVICES"] == "GPU-1122334455667788,GPU-8eff74b5801bb564"
    assert given.envs["HIP_VISIBLE_DEVICES"] == "0,1"
    assert given.envs["HSA_CU_MASK"] == "0:4-5;1:0-303"
    assert given.envs["HIP_DEVICE_MEMORY_LIMIT_0"] == "1m"
    assert given.envs["HIP_DEVICE_MEMORY_LIMIT_1"] == "2m"


def test_a_gpu_without_unique_id_goes_by_its_rank() -> None:
    devices = [device(unique_id=None), device(OTHER)]
    item = slice_of("app", Share(OTHER, MIB), Share(BDF, MIB))
    assert answer(item, devices, None, RUN).envs["ROCR_VISIBLE_DEVICES"] == "GPU-1122334455667788,0"


def test_a_gpu_without_a_card_node_has_its_render_node() -> None:
    given = answer(slice_of(), [device(card=None)], None, RUN)
    assert given.devices == ("/dev/kfd", "/dev/dri/renderD128")


def test_the_hook_is_set_and_mounted_read_only_where_it_is_installed(tmp_path: Path) -> None:
    given = answer(replace(slice_of(), hook=True), DEVICES, Hook(tmp_path), RUN)
    assert given.envs["LD_AUDIT"] == "/usr/local/ringfence/libringfence-audit.so"
    assert given.envs["HSA_TOOLS_LIB"] == "/usr/local/ringfence/libringfence-hsa.so"
    assert given.envs["GLIBC_TUNABLES"] == "glibc.rtld.optional_static_tls=4096"
    assert given.envs["HSA_TOOLS_ROCPROFILER_V1_TOOLS"] == "1"
    own = f"{RUN}/slices/uid-pod/app"
    assert given.mounts == (
        Mount(str(tmp_path), "/usr/local/ringfence"),
        Mount(own, "/etc/ringfence"),
        Mount(f"{own}/ledger/usage.v1", "/run/ringfence/ledger/usage.v1", read_only=False),
    )


def test_the_hooks_log_level_is_set_where_it_was_asked_for(tmp_path: Path) -> None:
    item = replace(slice_of(), hook=True)
    assert answer(item, DEVICES, Hook(tmp_path, 3), RUN).envs["LIBHIP_LOG_LEVEL"] == "3"
    assert "LIBHIP_LOG_LEVEL" not in answer(item, DEVICES, Hook(tmp_path), RUN).envs
    assert "LIBHIP_LOG_LEVEL" not in answer(item, DEVICES, None, RUN).envs


def test_a_slice_given_without_the_hook_does_not_get_it_later(tmp_path: Path) -> None:
    item = replace(slice_of(), hook=False)
    assert answer(item, DEVICES, Hook(tmp_path), RUN) == answer(item, DEVICES, None, RUN)


def test_a_slice_of_which_no_more_is_known_is_given_the_hook(tmp_path: Path) -> None:
    assert "LD_AUDIT" in answer(slice_of(), DEVICES, Hook(tmp_path), RUN).envs


@pytest.mark.parametrize(
    ("before", "hooked", "after"),
    [
        ((True, True), True, (True, True)),
        ((True, True), False, (False, False)),
        ((None, None), True, (True, True)),
        ((None, None), False, (False, False)),
        ((False, True), True, (False, True)),
        ((True, False), True, (False, False)),
    ],
)
def test_what_is_given_again_is_recorded_as_it_is_given(
    before: Sequence[bool | None], hooked: bool, after: Sequence[bool], tmp_path: Path
) -> None:
    same = [replace(slice_of(name), hook=one) for name, one in zip("ab", before, strict=True)]
    again = given_again(same, hooked=hooked)
    assert tuple(item.hook for item in again) == after
    given = answer(again[-1], DEVICES, Hook(tmp_path) if hooked else None, RUN)
    assert ("LD_AUDIT" in given.envs) == again[-1].hook


def test_a_slice_records_that_it_was_given_the_hook_and_a_whole_gpu_was_not() -> None:
    for share, given in (("4096,76", True), ("196288,304", False)):
        (turn,) = turns([pod(f"{ID},T,{share}:;")], NODE, ())
        ids = [f"{BDF}#0"]
        assert decide(turn, ids, DEVICES, (), CREATED, hooked=True).hook is given
        assert not decide(turn, ids, DEVICES, (), CREATED, hooked=False).hook


def test_a_vanished_gpu_has_no_answer() -> None:
    with pytest.raises(KeyError):
        answer(slice_of(), [], None, RUN)


def test_a_turn_names_its_claim() -> None:
    assert Turn(pod(None, *TWO), 1).claim.container == "app"


SCALED, _ = devices_of([gpu(), gpu(OTHER)], Terms(memory_scaling=2))
CPX, _ = devices_of(
    [
        gpu(
            render=128 + number,
            partition=number,
            cu_count=38,
            vram_bytes=24536 * MIB,
            compute_partition="cpx",
            memory_partition="nps4",
        )
        for number in range(8)
    ],
    Terms(operating_mode="partition"),
)


def test_scaled_memory_is_given_and_marked() -> None:
    item = allocate(pod(f"{ID},T,300000,76:;"), devices=SCALED)
    assert item.shares == (Share(BDF, 300000 * MIB, "0-75"),)
    assert item.oversubscribe
    assert answer(item, SCALED, None, RUN).envs["HIP_OVERSUBSCRIBE"] == "true"
    with pytest.raises(RefusalError, match="expected 1 to 392576 MiB"):
        allocate(pod(f"{ID},T,392577,76:;"), devices=SCALED)
    with pytest.raises(RefusalError, match="has 392576 MiB, but 450000 MiB would be promised"):
        allocate(pod(f"{ID},T,150000,76:;", name="b"), [item], devices=SCALED)


def test_a_whole_gpu_with_scaled_memory_is_whole() -> None:
    item = allocate(pod(f"{ID},T,392576,304:;"), devices=SCALED)
    assert item.shares == (Share(BDF, None),)
    assert not item.oversubscribe
    assert "HIP_OVERSUBSCRIBE" not in answer(item, SCALED, None, RUN).envs


@pytest.mark.parametrize("priority", [0, 1, None])
def test_a_slice_has_the_priority_of_its_container(priority: int | None) -> None:
    one = pod(f"{ID},T,4096,76:;", replace(claim(), priority=priority))
    assert allocate(one).priority == priority


def test_without_scaling_nothing_is_oversubscribed() -> None:
    item = allocate(pod(f"{ID},T,4096,76:;"))
    assert not item.oversubscribe
    assert "HIP_OVERSUBSCRIBE" not in answer(item, DEVICES, None, RUN).envs


def test_a_partition_goes_whole_and_by_its_own_render_node() -> None:
    ids = [f"{BDF}-3#cpx", f"{BDF}-1#cpx"]
    one = pod(f"{CPX[3].id},T,24536,38:{CPX[1].id},T,24536,38:;", claim(count=2))
    item = allocate(one, devices=CPX, device_ids=ids)
    assert item.shares == (Share(BDF, None, partition=3), Share(BDF, None, partition=1))
    given = answer(item, CPX, None, RUN)
    # They share a UUID, so ROCr is told which of those it can see.
    assert given.envs == {"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0,1"}
    assert "/dev/dri/renderD131" in given.devices
    assert "/dev/dri/renderD129" in given.devices


def test_partitions_of_one_gpu_are_given_side_by_side_and_each_once() -> None:
    taken = slice_of("app", Share(BDF, None, partition=3), name="other")
    one = pod(f"{CPX[2].id},T,24536,38:;")
    assert allocate(one, [taken], CPX).shares == (Share(BDF, None, partition=2),)
    with pytest.raises(RefusalError, match="held by default/other"):
        allocate(pod(f"{CPX[3].id},T,24536,38:;"), [taken], CPX)


def test_a_slice_from_before_a_mode_change_keeps_the_whole_gpu() -> None:
    old = slice_of("app", Share(BDF, 4096 * MIB, "0-3"), name="other")
    with pytest.raises(RefusalError, match="held by default/other"):
        allocate(pod(f"{CPX[7].id},T,24536,38:;"), [old], CPX)
    part = slice_of("app", Share(BDF, None, partition=3), name="other")
    with pytest.raises(RefusalError, match="held by default/other"):
        allocate(pod(f"{ID},T,1024,10:;"), [part])


def test_a_slice_that_leaves_an_xcc_idle_is_reported() -> None:
    devices = [device(xcc_count=8)]
    few = allocate(pod(f"{ID},T,4096,3:;"), devices=devices)
    (line,) = idle_xccs(few, devices)
    assert line.startswith(
        f"GPU {BDF}: 3 CUs are on 3 of its 8 XCCs: expected at least one on each"
    )
    assert idle_xccs(allocate(pod(f"{ID},T,4096,8:;"), devices=devices), devices) == []
    assert idle_xccs(slice_of("app", Share(BDF, None)), devices) == []
    assert idle_xccs(slice_of("app", Share(BDF, 1 << 30)), devices) == []
    assert idle_xccs(few, []) == []


SMALL = (device(cu_count=16, vram_bytes=1000 * MIB), device(OTHER, cu_count=16, gfx_version=110000))
ASKS = st.tuples(st.integers(0, 1), st.integers(1, 1100), st.integers(0, 17))


@hypothesis_given(st.lists(st.one_of(ASKS, st.integers(0, 9)), max_size=14))
def test_whatever_comes_and_goes_no_gpu_is_promised_twice_and_none_is_refused_in_vain(
    steps: list[tuple[int, int, int] | int],
) -> None:
    """A step is a pod that asks (GPU, MiB, CUs), or the number of one that goes."""
    given: list[Slice] = []
    for number, step in enumerate(steps):
        if isinstance(step, int):
            del given[step : step + 1]
            continue
        which, mib, cus = step
        one = SMALL[which]
        layout = CuLayout(one.gpu.cu_count, one.gpu.cu_per_wgp, one.gpu.xcc_count or 1)
        beside = [share for item in given for share in item.shares if share.bdf == one.gpu.bdf]
        masks = [held_cus(share, layout) for share in beside]
        busy = sum(masks)
        assert busy.bit_count() == sum(mask.bit_count() for mask in masks), "they overlap"
        used = sum(one.mib * MIB if s.vram_bytes is None else s.vram_bytes for s in beside)
        assert used <= one.mib * MIB
        whole = mib >= one.mib and cus in {0, layout.count}
        wanted = layout.count if whole else cus
        free = [group for group in layout.groups() if not group & busy]
        fits = (
            0 < mib <= one.mib
            and cus <= layout.count
            and used + mib * MIB <= one.mib * MIB
            and (not busy if wanted == layout.count else len(free) * layout.group >= wanted)
        )
        asking = pod(f"{one.id},T,{mib},{cus}:;", name=f"pod-{number}")
        try:
            given.append(allocate(asking, given, SMALL))
        except RefusalError:
            assert not fits
        else:
            assert fits
