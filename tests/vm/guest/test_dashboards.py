# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus beside a real enforcer runs every query of dashboards and alerts."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enforcer.host import dmem
from enforcer.model import MIB
from tests.testbed.prometheus_server import Prometheus
from tests.vm.guest.services import CGROUP, wait_for
from tests.vm.guest.test_limit import tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enforcer.model import Gpu
    from tests.vm.guest.node import Pods
    from tests.vm.guest.services import Enforcer

FILES = Path(__file__).parents[3] / "charts/ringfence/files"
KUBELET = b"""\
# TYPE kubelet_device_plugin_registration_total counter
kubelet_device_plugin_registration_total{resource_name="amd.com/gpu"} 1
"""
VARIABLES = {"$node": ".*", "$namespace": ".*", "$pod": ".*", "$__rate_interval": "1m"}


NO_SENSOR = {"hami_host_gpu_temperature_celsius", "hami_host_gpu_power_usage_watts"}
"""The simulated GPU has none; tests/contract/test_prometheus.py has these answered."""


NEEDS_DMEM = {"ringfence_vram_escaped_bytes"}
"""Absent where no controller charges anything to the root cgroup."""


class Kubelet(BaseHTTPRequestHandler):
    """What a kubelet tells of its plugins."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(KUBELET)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Nothing to say."""


@pytest.fixture
def kubelet() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def panels(dashboard: Path) -> list[tuple[str, str]]:
    board = json.loads(dashboard.read_text())
    found = [
        (f"{board['title']}: {panel['title']}", target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    for variable in board["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert match is not None
        found.append(
            (f"{board['title']}: ${variable['name']}", f"count by ({match[2]}) ({match[1]})")
        )
    return found


def filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def test_every_query_of_dashboards_and_alerts_has_an_answer(
    enforcer: Enforcer, pods: Pods, gpus: list[Gpu], kubelet: str, tmp_path: Path
) -> None:
    one, _ = (tenant(pods, enforcer, gpu, 64) for gpu in gpus[:2])
    one.client.kfd_alloc(gpus[0], 63 * MIB)
    address = enforcer.metrics_url.removeprefix("http://").partition("/")[0]
    rules = FILES / "rules.yaml"
    with Prometheus(tmp_path, {address: "vm", kubelet: "vm"}, rules, "5s") as prometheus:
        seen = f'ringfence_vram_observed_bytes{{pod="{one.pod.name}",container="main"}} > 0'
        wait_for("the first scrape", lambda: bool(prometheus.query(seen)), 120)
        for _ in range(7):
            assert one.client.refused(f"kfd-alloc {gpus[0].kfd_id} {32 * MIB}") == "ENOMEM"
        risen = f'increase(ringfence_incidents_total{{pod="{one.pod.name}"}}[1m]) > 0'
        wait_for("the refusals", lambda: bool(prometheus.query(risen)), 120)
        asked = [
            pair for path in sorted((FILES / "dashboards").glob("*.json")) for pair in panels(path)
        ]
        assert len(asked) > 40

        def empty() -> list[tuple[str, str]]:
            return [
                (title, query)
                for title, query in asked
                if not NO_SENSOR & set(re.findall(r"\w+", query))
                and not prometheus.query(filled(query))
            ]

        # A scrape that a loaded machine let run late leaves nothing for its interval.
        deadline = time.monotonic() + 120
        while (missing := empty()) and time.monotonic() < deadline:
            time.sleep(1)
        assert missing == []
        wait_for(
            "the alert",
            lambda: any(
                rule["name"] == "RingfenceRefusals" and rule["state"] == "firing"
                for rule in prometheus.rules()
            ),
            60,
        )
        evaluated = prometheus.rules()
        assert [rule["name"] for rule in evaluated if rule["health"] != "ok"] == []
        told = {
            name
            for rule in evaluated
            for name in re.findall(r"\b(?:ringfence|hami|kubelet)_\w+", rule["query"])
        }
        if not dmem.capacity(CGROUP):
            told -= NEEDS_DMEM
        for name in sorted(told):
            wait_for(name, lambda name=name: bool(prometheus.query(name)), 60)  # type: ignore[misc]
        assert {rule["name"] for rule in evaluated if rule["state"] == "firing"} <= {
            "RingfenceRefusals",
            "RingfenceProblems",
        }
