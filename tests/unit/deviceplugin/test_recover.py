# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from deviceplugin.recover import lost_slices, unlisted, whole_slices
from enforcer.model import MIB, ContainerKind, Share, Slice
from enforcer.slices import decode, encode

from .given import (
    BDF,
    CREATED,
    DEVICES,
    ID,
    NODE,
    OTHER,
    OTHER_ID,
    claim,
    junk_annotations,
    pod,
    slice_of,
)

if TYPE_CHECKING:
    from deviceplugin.pod import Pod
    from deviceplugin.podresources import PodDevices

HELD: PodDevices = {("default", "pod"): {"app": (f"{BDF}#0",)}}


def running(allocated: str, cus: str = f'{{"{ID}":"0-75"}}', **more: object) -> Pod:
    one = pod(
        ";",
        phase="Running",
        bind_phase="success",
        amd_devices_allocated=allocated,
        amd_cu_allocated=cus,
    )
    return replace(one, **more)  # type: ignore[arg-type]


ONE = running(f"{ID},T,4096,76:;")


def recover(
    one: Pod, slices: tuple[Slice, ...] = (), held: PodDevices | None = None
) -> tuple[list[Slice], list[str]]:
    return lost_slices([one], NODE, slices, DEVICES, HELD if held is None else held, CREATED)


def test_a_running_pods_slice_is_made_out() -> None:
    assert recover(ONE) == ([slice_of()], [])


def test_it_has_the_priority_it_had() -> None:
    one = replace(ONE, claims=(replace(claim(), priority=0),))
    assert recover(one) == ([replace(slice_of(), priority=0)], [])


def test_what_the_checkpoint_knows_is_left_alone() -> None:
    assert recover(ONE, (slice_of("another"),)) == ([], [])


@pytest.mark.parametrize(
    "one",
    [
        replace(ONE, phase="Succeeded"),
        replace(ONE, node="elsewhere"),
        replace(ONE, claims=()),
        replace(ONE, annotations={**ONE.annotations, "hami.io/bind-phase": "allocating"}),
        replace(ONE, annotations={**ONE.annotations, "hami.io/vgpu-node": "elsewhere"}),
    ],
)
def test_a_pod_that_was_not_served_here_has_none(one: Pod) -> None:
    assert recover(one) == ([], [])


@pytest.mark.parametrize(
    ("one", "slices", "held", "waits"),
    [
        (ONE, (), {}, True),
        (ONE, (), {("kube-system", "static"): {}}, True),
        (ONE, (), HELD, False),
        (ONE, (), {("default", "pod"): {}}, False),
        (ONE, (slice_of(),), {}, False),
        (replace(ONE, phase="Failed"), (), {}, False),
        (pod(), (), {}, False),
    ],
)
def test_a_kubelet_that_does_not_know_a_served_pod_yet_is_waited_for(
    one: Pod, slices: tuple[Slice, ...], held: PodDevices, waits: bool
) -> None:
    assert unlisted([one], NODE, slices, held) is waits


@pytest.mark.parametrize("held", [{}, {("default", "pod"): {"app": ()}}])
def test_a_pod_that_kubelet_gave_no_device_has_none(held: PodDevices) -> None:
    assert recover(ONE, held=held) == ([], [])


def test_each_container_has_its_own_and_the_cus_of_the_pod() -> None:
    one = running(
        f";{ID},T,1024,10:;;{ID},T,2048,20:{OTHER_ID},T,1,1:;",
        f'{{"{ID}":"0-29","{OTHER_ID}":"7"}}',
        claims=(claim("init", kind=ContainerKind.INIT), claim("app", 2)),
    )
    held: PodDevices = {("default", "pod"): {"app": (f"{BDF}#0", f"{OTHER}#0")}}
    (init, app), problems = recover(one, held=held)
    assert problems == []
    assert (init.container, init.kind, init.device_ids) == ("init", ContainerKind.INIT, ())
    assert init.shares == (Share(BDF, 1024 * MIB, "0-29"),)
    assert app.device_ids == (f"{BDF}#0", f"{OTHER}#0")
    assert app.shares == (Share(BDF, 2048 * MIB, "0-29"), Share(OTHER, MIB, "7"))


def test_a_whole_gpu_is_whole() -> None:
    assert recover(running(f"{ID},T,196288,304:;"))[0][0].shares == (Share(BDF, None),)


@pytest.mark.parametrize(
    "cus",
    [
        "",
        "[]",
        "7",
        '{"x":"1"}',
        f'{{"{ID}":7}}',
        f'{{"{ID}":"0-303"}}',
        f'{{"{ID}":"{"9" * 5000}"}}',
        f'{{"{ID}":Infinity}}',
        "[" * 5000,
        "9" * 5000,
        f'{{"{ID}":"\\ud800"}}',
    ],
)
def test_a_forged_record_of_cus_books_none(cus: str) -> None:
    ((item,), _) = recover(running(f"{ID},T,4096,76:;", cus))
    assert item.shares == (Share(BDF, 4096 * MIB, None),)


def test_no_more_memory_than_the_gpu_has_is_believed() -> None:
    ((item,), _) = recover(running(f"{ID},T,999999,76:;"))
    assert item.shares[0].vram_bytes == 196288 * MIB


@pytest.mark.parametrize(
    "allocated", ["", "garbage;", "nobody,T,1,1:;", f"{ID},T,0,1:;", f"{ID},T,1,1:;{ID},T,1,1:;"]
)
def test_what_cannot_be_made_out_is_reported_with_the_pod(allocated: str) -> None:
    found, problems = recover(running(allocated))
    assert found == []
    assert "pod default/pod: runs with GPUs" in problems[0]


def test_one_bad_pod_costs_only_itself() -> None:
    bad = replace(running("garbage;"), name="bad", uid="bad")
    held: PodDevices = {**HELD, ("default", "bad"): {"app": (f"{BDF}#5",)}}
    for pods in ([bad, ONE], [ONE, bad]):
        found, problems = lost_slices(pods, NODE, [], DEVICES, held, CREATED)
        assert found == [slice_of()]
        assert len(problems) == 1


def plain(**more: object) -> Pod:
    """A pod of a cluster without a scheduler of ours."""
    return replace(pod(phase="Running", bind_phase=""), annotations={}, **more)  # type: ignore[arg-type]


def whole(one: Pod, slices: tuple[Slice, ...] = (), held: PodDevices | None = None) -> list[Slice]:
    return whole_slices([one], slices, DEVICES, HELD if held is None else held, CREATED)


def test_whole_gpus_are_those_of_kubelets_record() -> None:
    assert whole(plain()) == [slice_of("app", Share(BDF, None))]


def test_a_container_that_is_known_is_left_alone() -> None:
    assert whole(plain(), (slice_of("app", Share(BDF, None)),)) == []
    two = plain(claims=(claim("app"), claim("more")))
    held: PodDevices = {("default", "pod"): {"app": (f"{BDF}#0",), "more": (f"{OTHER}#0",)}}
    (found,) = whole(two, (slice_of("app", Share(BDF, None)),), held)
    assert (found.container, found.shares) == ("more", (Share(OTHER, None),))


@pytest.mark.parametrize("phase", ["Pending", "Failed", "Succeeded"])
def test_a_pod_that_does_not_run_may_not_be_the_one_of_its_name(phase: str) -> None:
    assert whole(plain(phase=phase)) == []


@pytest.mark.parametrize("ids", [(), ("0000:99:00.0#0",), (f"{BDF}#0", "0000:99:00.0#0")])
def test_devices_that_are_not_offered_make_no_slice(ids: tuple[str, ...]) -> None:
    assert whole(plain(), held={("default", "pod"): {"app": ids}}) == []
    assert whole(plain(), held={("default", "other"): {"app": (f"{BDF}#0",)}}) == []


@given(junk_annotations())
def test_nothing_in_a_pods_annotations_costs_another_its_slice(junk: dict[str, str]) -> None:
    bad = pod(phase="Running", name="bad", **{"bind_phase": "success", **junk})
    held: PodDevices = {**HELD, ("default", "bad"): {"app": (f"{BDF}#5",)}}
    found, problems = lost_slices([bad, ONE], NODE, [], DEVICES, held, CREATED)
    assert found[-1] == slice_of()
    assert all(len(problem) < 1000 for problem in problems)
    assert decode(encode(found)) == (found, [])
