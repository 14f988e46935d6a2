# SPDX-License-Identifier: Apache-2.0
"""Facts to decide on, built by hand."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from deviceplugin.devices import Device, devices_of
from deviceplugin.pod import Claim, Pod
from deviceplugin.terms import Terms
from enforcer.model import MIB, ContainerKind, Gpu, Share, Slice

NODE = "gpu-node"
BDF = "0000:05:00.0"
OTHER = "0000:65:00.0"
CREATED = "2026-01-02T03:04:05.000006Z"


def gpu(bdf: str = BDF, **more: object) -> Gpu:
    """An MI300X, unless said otherwise."""
    values: dict[str, object] = {
        "bdf": bdf,
        "kfd_id": 4001,
        "card": 0 if bdf == BDF else 1,
        "render": 128 if bdf == BDF else 129,
        "name": "AMD Instinct MI300X",
        "vram_bytes": 196288 * MIB,
        "cu_count": 304,
        "gfx_version": 90402,
        "device_id": 0x74A1,
        "unique_id": 0x8EFF74B5801BB564 if bdf == BDF else 0x1122334455667788,
        "numa_node": 0 if bdf == BDF else 1,
        "compute_queues": 24,
    }
    return Gpu(**(values | more))  # type: ignore[arg-type]


def device(bdf: str = BDF, *, healthy: bool = True, **more: object) -> Device:
    ((one,), _) = devices_of([gpu(bdf, **more)], Terms())
    return Device(one.gpu, one.id, one.slots, healthy)


DEVICES = (device(), device(OTHER))
ID, OTHER_ID = (one.id for one in DEVICES)


def claim(container: str = "app", count: int = 1, kind: ContainerKind = ContainerKind.APP) -> Claim:
    return Claim(container, kind, count)


def pod(
    devices: str | None = None,
    *claims: Claim,
    name: str = "pod",
    phase: str = "Pending",
    bind_phase: str = "allocating",
    **annotations: str,
) -> Pod:
    """A pod that a scheduler is binding to the node."""
    known = {"hami.io/vgpu-node": NODE, "hami.io/bind-phase": bind_phase}
    if devices is not None:
        known["hami.io/amd-devices-to-allocate"] = devices
    known |= {f"hami.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return Pod(
        namespace="default",
        name=name,
        uid=f"uid-{name}",
        resource_version="7",
        node=NODE,
        phase=phase,
        deleted=False,
        claims=claims or (claim(),),
        annotations=known,
    )


def slice_of(
    container: str = "app",
    *shares: Share,
    name: str = "pod",
    kind: ContainerKind = ContainerKind.APP,
    device_ids: tuple[str, ...] = (f"{BDF}#0",),
    created: str = CREATED,
) -> Slice:
    return Slice(
        pod_uid=f"uid-{name}",
        namespace="default",
        pod=name,
        container=container,
        kind=kind,
        device_ids=device_ids,
        shares=shares or (Share(BDF, 4096 * MIB, "0-75"),),
        created=created,
    )


def junk_annotations() -> st.SearchStrategy[dict[str, str]]:
    """What a pod's author can write, as keywords of ``pod``: near what is meant, and far off."""
    entry = st.sampled_from(
        [f"{ID},T,1,1:", f"{OTHER_ID},T,4096,304:", f"{ID},T,{'9' * 5000},1:", "x,T,1,1:", "", ","]
    )
    cus = st.sampled_from(["0-3", "9-0", "0-99999", "1" * 5000, "\u0663", "\ud800", "0,,1"])
    text = st.one_of(
        st.text(max_size=20),
        st.sampled_from(["[" * 5000, "9" * 5000, "NaN", "null", "{", "[{}]", "x" * 100_000]),
        st.lists(entry, max_size=3).map(";".join),
        cus.map(lambda one: json.dumps({ID: one, OTHER_ID: [one]})),
    )
    keys = ["devices", "amd_devices_allocated", "amd_cu_allocated", "bind_phase", "vgpu_node"]
    known = st.sampled_from([NODE, "allocating", "success", "failed"])
    return st.dictionaries(st.sampled_from(keys), text | known)
