# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deviceplugin.allocate import Answer, answer
from deviceplugin.devices import GONE
from deviceplugin.hold import Holder, holders_of, mistaken, renumbered, slices_to_hold
from deviceplugin.hook import Hook
from deviceplugin.record import RecordError
from enforcer.api.client import Client
from enforcer.api.errors import NotFoundError
from enforcer.api.server import Server
from enforcer.model import (
    MIB,
    ContainerKind,
    Gpu,
    HostSupport,
    ImageLibc,
    Layer,
    LayerState,
    Protection,
    Share,
    Slice,
    Snapshot,
    Why,
)

from .given import BDF, OTHER, device, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deviceplugin.devices import Device
    from deviceplugin.podresources import PodDevices

NO_LAYER = HostSupport(
    LayerState(Layer.GATE, Why.NOT_POSSIBLE), LayerState(Layer.DMEM, Why.NO_REGION), "none"
)
GLIBC = ImageLibc("glibc", "2.36", tool_loads=True, auditor_loads=True)
MUSL = ImageLibc("musl", "", tool_loads=False, auditor_loads=False, notes=("musl: no auditor",))
INSTALLED = Hook(Path("/hook"))
RUN = Path("/run/ringfence")
ON = LayerState(Layer.GATE)
OFF = LayerState(Layer.DMEM, "no dmem region for this GPU")


def protection(bdf: str, *layers: LayerState) -> tuple[Protection, bool]:
    return Protection("kubepods.slice/pod", bdf, layers), False


class Enforcer:
    """What the local API's server asks, with answers of a test."""

    def __init__(self) -> None:
        self.answer: list[tuple[Protection, bool]] | None = None
        self.asked: list[tuple[str, str]] = []
        self.support: HostSupport | None = None
        self.libc: ImageLibc | None = None
        self.images: list[tuple[str, str, str]] = []
        self.absent: set[str] = set()
        self.gpus: tuple[Gpu, ...] = ()

    def prepare(self, pod_uid: str, container: str, wait: float) -> list[tuple[Protection, bool]]:
        self.asked.append((pod_uid, container))
        if self.answer is None:
            raise NotFoundError(f"pod {pod_uid}: no cgroup after {wait:.0f} s")
        return self.answer

    def snapshot(self) -> Snapshot | None:
        return None if self.support is None else Snapshot(1.0, self.support, self.gpus, ())

    def image_libc(self, pod_uid: str, container: str, image: str, wait: float) -> ImageLibc:
        self.images.append((pod_uid, container, image))
        if self.libc is None or image in self.absent:
            raise NotFoundError(f"there is no image {image}")
        return self.libc


def not_recorded(*_: str) -> list[Answer]:
    raise RecordError("the record: cannot read")


def made(
    client: Client,
    *,
    image: Callable[[str, str], str] = lambda *_: "debian:12",
    installed: Hook | None = INSTALLED,
    recorded: Callable[[str, str], list[Answer]] = not_recorded,
) -> Holder:
    return Holder(client, image, lambda: installed, recorded, RUN)


@pytest.fixture
def enforcer(short_path: Path) -> Iterator[Enforcer]:
    one = Enforcer()
    server = Server(one, short_path / "enforcer.sock")
    server.start()
    yield one
    server.stop()


@pytest.fixture
def holder(short_path: Path) -> Iterator[Holder]:
    with Client(short_path / "enforcer.sock") as client:
        yield made(client)


def test_a_slice_is_held_by_any_layer_the_tenant_cannot_reach(
    enforcer: Enforcer, holder: Holder
) -> None:
    enforcer.answer = [protection(BDF, OFF, ON)]
    assert holder.hold([slice_of()], 5) is None
    assert enforcer.asked == [("uid-pod", "app")]


NO_VRAM = tuple(LayerState(layer, Why.SYSTEM_MEMORY) for layer in (Layer.GATE, Layer.DMEM))


@pytest.mark.parametrize(
    ("answer", "starts"),
    [
        ([protection(BDF, *NO_VRAM)], True),
        ([protection(BDF, NO_VRAM[0], OFF)], False),
        ([protection(BDF)], False),
        ([protection(OTHER, *NO_VRAM)], False),
        ([], False),
    ],
    ids=["neither layer", "dmem another time", "no layer told", "another GPU", "nothing told"],
)
def test_where_a_gpu_has_no_vram_of_its_own_the_hook_is_enough_on_any_node(
    enforcer: Enforcer, holder: Holder, answer: list[tuple[Protection, bool]], starts: bool
) -> None:
    enforcer.answer, enforcer.libc = answer, GLIBC
    enforcer.support = HostSupport(ON, LayerState(Layer.DMEM), "bo")
    item = replace(slice_of(), hook=True)
    assert (holder.hold([item], 5) is None) == starts
    enforcer.libc = MUSL
    assert holder.hold([item], 5) is not None


def test_a_slice_that_nothing_holds_says_why(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = [protection(BDF, OFF)]
    why = holder.hold([slice_of()], 5)
    assert why is not None
    assert why.startswith("pod default/pod, container app: nothing holds its limit on GPU")
    assert "dmem off: no dmem region" in why


def test_a_gpu_the_enforcer_is_silent_about_is_not_held(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = [protection(BDF, ON)]
    both = slice_of("app", Share(BDF, MIB), Share(OTHER, MIB))
    assert f"said nothing of its limit on GPU {OTHER}" in (holder.hold([both], 5) or "")


def test_a_whole_gpu_needs_no_layer(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = []
    assert holder.hold([slice_of("app", Share(BDF, None))], 5) is None


def test_a_pod_the_enforcer_does_not_find_is_not_waited_for_twice(
    enforcer: Enforcer, holder: Holder
) -> None:
    assert "no cgroup" in (holder.hold([slice_of()], 5) or "")
    assert len(enforcer.asked) == 1


def test_every_slice_must_be_held(enforcer: Enforcer, holder: Holder) -> None:
    enforcer.answer = [protection(BDF, ON)]
    other = slice_of("other", Share(OTHER, MIB))
    assert "container other" in (holder.hold([slice_of(), other], 5) or "")


def test_an_enforcer_that_is_away_ends_the_wait_in_time(holder: Holder) -> None:
    started = time.monotonic()
    why = holder.hold([slice_of()], 1.0)
    assert why is not None
    assert "ringfence enforcer" in why
    assert time.monotonic() - started < 3


def test_an_enforcer_that_comes_back_holds(holder: Holder, short_path: Path) -> None:
    one = Enforcer()
    one.answer = [protection(BDF, ON)]
    server = Server(one, short_path / "enforcer.sock")
    timer = threading.Timer(0.5, server.start)
    timer.start()
    assert holder.hold([slice_of()], 10) is None
    server.stop()


def test_kubelets_ids_mean_every_slice_of_the_last_pod_that_has_them() -> None:
    ids = (f"{BDF}#0",)
    before = slice_of(name="before", device_ids=ids)
    init = slice_of("init", kind=ContainerKind.INIT, device_ids=ids)
    app = slice_of("app", device_ids=ids)
    other = replace(app, container="other", device_ids=(f"{BDF}#1",))
    assert slices_to_hold([before, init, app, other], ids) == [init, app]
    assert slices_to_hold([other], ids) == []
    assert slices_to_hold([], []) == []


def test_the_order_of_the_ids_does_not_matter() -> None:
    app = slice_of(device_ids=("a#0", "b#0"))
    assert slices_to_hold([app], ["b#0", "a#0"]) == [app]


IDS = (f"{BDF}#0",)


@pytest.mark.parametrize(
    "held",
    [
        None,
        {},
        {("default", "pod"): {"app": IDS}},
        {("default", "other"): {"app": (f"{OTHER}#0",)}},
        # Older kubelets list pods that are over.
        {("default", "old"): {"app": IDS}, ("default", "pod"): {"app": IDS}},
        {("default", "pod"): {"app": (f"{BDF}#1", *IDS)}},
    ],
)
def test_a_slice_is_held_for_its_pod_or_where_kubelets_record_says_nothing(
    held: PodDevices | None,
) -> None:
    assert mistaken([slice_of(device_ids=IDS)], holders_of(IDS, held)) is None


def test_a_slice_is_not_held_for_another_pod() -> None:
    holders = holders_of(IDS, {("other", "thief"): {"app": IDS}})
    why = mistaken([slice_of(device_ids=IDS)], holders)
    assert why is not None
    assert why.startswith("kubelet starts pod other/thief with the devices that were given for pod")


def of(*names: str) -> Answer:
    """What kubelet was told once: nodes, or CDI names."""
    paths = tuple(f"/dev/dri/{name}" for name in names if "=" not in name)
    return Answer({}, ("/dev/kfd", *paths), names=tuple(name for name in names if "=" in name))


TODAY = (device(), device(OTHER))
"""The first is card0 and renderD128, the second card1 and renderD129."""
LOST = replace(TODAY[0], healthy=False, why=GONE)
CDI = "amd.com/gpu=card"


@pytest.mark.parametrize(
    ("given", "devices", "starts"),
    [
        ([of("card0", "renderD128")], TODAY, True),
        ([of(f"{CDI}0")], TODAY, True),
        ([of("card1", "renderD129")], TODAY, False),
        ([of("card0", "renderD129")], TODAY, False),
        ([of("card0", "renderD130")], TODAY, False),
        ([of(f"{CDI}1")], TODAY, False),
        # The card node came later.
        ([of("renderD128")], TODAY, True),
        # Nothing is recorded yet, or nothing of a GPU.
        ([], TODAY, True),
        ([of()], TODAY, True),
        ([Answer({}, ("/dev/dri",)), Answer({}, (), names=("vendor/nic=card1",))], TODAY, True),
        # Of two resources one answer is this slice's.
        ([of("card1", "renderD129"), of("card0", "renderD128")], TODAY, True),
        # Its GPU is gone, or not offered: a number that is nobody's says nothing.
        ([of("card0", "renderD128")], (LOST, TODAY[1]), True),
        ([of("card1", "renderD129")], (LOST, TODAY[1]), False),
        ([of("card1", "renderD129")], TODAY[1:], False),
        ([of(f"{CDI}1")], TODAY[1:], False),
        ([of("card0", "renderD128")], (), True),
        # Its own is kept back with the numbers it had.
        ([of("card0", "renderD128")], (TODAY[0], device(OTHER, card=0, render=128)), False),
    ],
)
@pytest.mark.parametrize("share", [Share(BDF, None), Share(BDF, MIB, "0-3")])
def test_a_container_does_not_start_with_what_is_another_gpu_by_now(
    given: list[Answer], devices: tuple[Device, ...], starts: bool, share: Share
) -> None:
    assert (renumbered(slice_of("app", share), devices, given) is None) is starts


def test_it_says_what_it_was_and_what_it_is(holder: Holder, short_path: Path) -> None:
    with Client(short_path / "enforcer.sock") as client:
        moved = made(client, recorded=lambda *_: [of("card1", "renderD129")])
        why = moved.renumbered([slice_of()], TODAY)
    assert why == (
        "pod default/pod, container app: its GPU has another number since: kubelet gives it "
        "/dev/dri/card1, /dev/dri/renderD129, and GPU 0000:05:00.0 is /dev/dri/card0, "
        "/dev/dri/renderD128 now: delete this pod"
    )
    assert holder.renumbered([slice_of()], TODAY) is None, "a record that cannot be read"


def test_its_numbers_are_those_that_the_enforcer_knows_by_now(
    enforcer: Enforcer, holder: Holder, short_path: Path
) -> None:
    assert holder is not None
    given = [of("card0", "renderD128")]
    with Client(short_path / "enforcer.sock") as client:
        one = made(client, recorded=lambda *_: given)
        assert one.renumbered([slice_of()], TODAY) is None
        # The driver was loaded anew, and the next look at the devices is yet to come.
        own, other = (device.gpu for device in TODAY)
        enforcer.support = NO_LAYER
        enforcer.gpus = (
            replace(own, card=other.card, render=other.render),
            replace(other, card=own.card, render=own.render),
        )
        why = one.renumbered([slice_of()], TODAY) or ""
    assert "kubelet gives it /dev/dri/card0, /dev/dri/renderD128" in why


def hooked(name: str = "app") -> Slice:
    return replace(slice_of(name), hook=True)


@pytest.fixture
def bare(enforcer: Enforcer) -> Enforcer:
    """An enforcer on a kernel that can hold nothing."""
    enforcer.answer = [protection(BDF, OFF)]
    enforcer.support = NO_LAYER
    return enforcer


def test_without_a_kernel_layer_an_image_that_loads_the_hook_starts(
    bare: Enforcer, holder: Holder, caplog: pytest.LogCaptureFixture
) -> None:
    bare.libc = GLIBC
    assert holder.hold([hooked()], 5) is None
    assert bare.images == [("uid-pod", "app", "debian:12")]
    assert "the hook alone holds it, in image debian:12 with glibc 2.36" in caplog.text


def test_without_a_kernel_layer_an_image_that_cannot_load_the_hook_does_not_start(
    bare: Enforcer, holder: Holder
) -> None:
    bare.libc = MUSL
    why = holder.hold([hooked()], 5) or ""
    assert "nothing holds its limit" in why
    assert "image debian:12 cannot load the hook: musl: no auditor" in why


def test_an_image_nothing_is_known_of_does_not_start(bare: Enforcer, holder: Holder) -> None:
    assert "not known: enforcer at" in (why := holder.hold([hooked()], 5) or "")
    assert "there is no image debian:12" in why


def test_a_container_must_have_been_given_the_hook_and_have_an_image(
    bare: Enforcer, holder: Holder, short_path: Path
) -> None:
    bare.libc = GLIBC
    without = replace(slice_of(), hook=False)
    assert "it was given no hook" in (holder.hold([without], 5) or "")
    with Client(short_path / "enforcer.sock") as client:
        nameless = made(client, image=lambda *_: "")
        assert "its image is not known" in (nameless.hold([hooked()], 5) or "")
        bare.libc = GLIBC
        gone = made(client, installed=None)
        assert "is not installed any more" in (gone.hold([hooked()], 5) or "")
    assert bare.images == []


def given(hook: Hook | None = INSTALLED, run: Path = RUN, name: str = "app") -> Answer:
    return answer(slice_of(name), [device()], hook, run)


OTHERS_SLICE = given(name="other")


@pytest.mark.parametrize(
    ("answers", "starts"),
    [
        ([given()], True),
        ([given(Hook(Path("/hook"), log_level=4))], True),
        # For another resource it was given no hook.
        ([given(None), given()], True),
        ([], False),
        ([given(None)], False),
        ([given(Hook(Path("/elsewhere")))], False),
        ([replace(given(), envs=given(None).envs)], False),
        ([replace(given(), mounts=given().mounts[:-1])], False),
        ([OTHERS_SLICE], False),
        # HAMi's plugin has a hook of its own.
        ([Answer({"LD_PRELOAD": "/usr/local/vgpu/libvgpu.so"}, ())], False),
    ],
)
def test_where_it_is_not_known_kubelets_record_says_whether_it_was_given_the_hook(
    bare: Enforcer, short_path: Path, answers: list[Answer], starts: bool
) -> None:
    bare.libc = GLIBC
    asked: list[tuple[str, ...]] = []

    def recorded(*about: str) -> list[Answer]:
        asked.append(about)
        return answers

    with Client(short_path / "enforcer.sock") as client:
        why = made(client, recorded=recorded).hold([slice_of()], 5)
    assert asked == [("uid-pod", "app")]
    assert (why is None) == starts
    assert starts or "kubelet gives it no hook of this installation: a new pod" in (why or "")


def test_where_kubelets_record_is_not_known_either_it_does_not_start_and_says_what_to_do(
    bare: Enforcer, holder: Holder
) -> None:
    bare.libc = GLIBC
    why = holder.hold([slice_of()], 5) or ""
    assert "whether it was given the hook is not known: the record: cannot read: " in why
    assert why.endswith("delete this one")


@pytest.mark.parametrize("layer", ["gate", "dmem"])
def test_where_the_kernel_has_a_layer_the_hook_makes_up_for_none(
    bare: Enforcer, holder: Holder, layer: str
) -> None:
    bare.support = replace(NO_LAYER, **{layer: LayerState(Layer(layer))})
    bare.libc = GLIBC
    assert "nothing holds its limit" in (holder.hold([hooked()], 5) or "")
    assert bare.images == []


def test_every_container_needs_an_image_that_loads_the_hook(
    bare: Enforcer, short_path: Path
) -> None:
    names = {"app": "debian:12", "side": ""}
    bare.libc = GLIBC
    with Client(short_path / "enforcer.sock") as client:
        holder = made(client, image=lambda _, container: names[container])
        why = holder.hold([hooked("app"), hooked("side")], 5) or ""
    assert why.startswith("pod default/pod, container side: ")


@pytest.mark.parametrize(
    ("gate", "dmem"),
    [
        (Why.NOT_LOADED, Why.NO_REGION),
        (Why.NOT_PROVEN, Why.NO_REGION),
        (Why.NO_LEDGER, Why.NO_REGION),
        (Why.SWITCHED_OFF, Why.NO_REGION),
        (Why.NOT_POSSIBLE, Why.SWITCHED_OFF),
        (Why.NOT_POSSIBLE, Why.BUSY),
        (Why.NOT_POSSIBLE, Why.DENIED),
    ],
)
def test_the_hook_makes_up_for_no_layer_that_failed(
    bare: Enforcer, holder: Holder, gate: Why, dmem: Why
) -> None:
    bare.support = HostSupport(LayerState(Layer.GATE, gate), LayerState(Layer.DMEM, dmem), "none")
    bare.libc = GLIBC
    assert "nothing holds its limit" in (holder.hold([hooked()], 5) or "")
    assert bare.images == []


def test_an_init_container_does_not_wait_for_the_image_of_what_follows_it(
    bare: Enforcer, short_path: Path
) -> None:
    bare.libc = GLIBC
    with Client(short_path / "enforcer.sock") as client:
        holder = made(client, image=lambda _, container: container)
        items = [hooked("init"), hooked("app")]
        for absent in ("app", "init"):
            bare.absent = {absent}
            assert holder.hold(items, 5) is None
        bare.absent = {"init", "app"}
        assert "there is no image init" in (holder.hold(items, 5) or "")
        bare.absent = {"app"}
        bare.libc = MUSL
        assert "image init cannot load the hook" in (holder.hold(items, 5) or "")
        # Of a whole GPU's container no image is asked for: it says nothing of the others.
        bare.libc = GLIBC
        whole = slice_of("whole", Share(BDF, None))
        assert "there is no image app" in (holder.hold([whole, hooked("app")], 5) or "")
