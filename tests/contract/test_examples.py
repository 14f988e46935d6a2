# SPDX-License-Identifier: Apache-2.0
"""Each example of the docs, as HAMi's webhook and scheduler leave it, gets what it asks for."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from enforcer.model import MIB
from tests.contract.conftest import NODE, REGISTER, REPOSITORY, eventually
from tests.contract.peers import hami

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.conftest import Bench

PRIORITY = "amd.com/priority"
EXAMPLES = sorted((REPOSITORY / "docs/examples").glob("*.yaml"))


def asked(container: dict[str, Any], gpu: dict[str, Any]) -> tuple[int, int]:
    """MiB and CUs of one GPU, as the scheduler reckons them from a container's limits."""
    limits = container["resources"]["limits"]
    percent = limits.get("amd.com/gpumem-percentage", 100)
    mib = limits.get("amd.com/gpumem", gpu["devmem"] * percent // 100)
    return int(mib), gpu["devcore"] * int(limits.get("amd.com/gpucores", 100)) // 100


def place(bench: Bench, path: Path) -> dict[str, Any]:
    """The pod of an example, bound to the bench's node."""
    item: dict[str, Any] = yaml.safe_load(path.read_text())
    item["metadata"] |= {"namespace": "default", "uid": str(uuid.uuid4())}
    item["metadata"].setdefault("annotations", {})
    gpus = json.loads(bench.api.node_annotations(NODE)[REGISTER])
    entries = []
    for container in item["spec"]["containers"]:
        if (priority := container["resources"]["limits"].get(PRIORITY)) is not None:
            container.setdefault("env", []).append(
                {"name": "AMD_TASK_PRIORITY", "value": str(priority)}
            )
        chosen = gpus[: container["resources"]["limits"]["amd.com/gpu"]]
        shares = [(gpu, *asked(container, gpu)) for gpu in chosen]
        entries.append(
            "".join(f"{gpu['id']},{gpu['type']},{mib},{cus}:" for gpu, mib, cus in shares)
        )
    return hami.bind(bench.api, item, NODE, ";".join([*entries, ""]))


def test_each_example_gets_what_it_asks_for(bench: Bench) -> None:
    bench.start()
    eventually(lambda: REGISTER in bench.api.node_annotations(NODE))
    gpu = json.loads(bench.api.node_annotations(NODE)[REGISTER])[0]
    for path in EXAMPLES:
        pod = place(bench, path)
        admitted = bench.admit(pod)
        given = {item.container: item for item in bench.slices}
        for container in pod["spec"]["containers"]:
            name, limits = container["name"], container["resources"]["limits"]
            whole = set(limits) == {"amd.com/gpu"}
            mib, _ = asked(container, gpu)
            envs = admitted[name].response.envs
            assert len(given[name].shares) == limits["amd.com/gpu"], path.stem
            assert given[name].priority == limits.get(PRIORITY), path.stem
            for share in given[name].shares:
                assert share.vram_bytes == (None if whole else mib * MIB), path.stem
            assert ("HSA_CU_MASK" in envs) == (not whole), path.stem
            assert len(envs["ROCR_VISIBLE_DEVICES"].split(",")) == limits["amd.com/gpu"]
        eventually(partial(bench.settled, path.stem))
        bench.end(pod)
        eventually(lambda: bench.slices == [])
