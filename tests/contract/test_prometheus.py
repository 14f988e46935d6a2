# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a real enforcer whose containers come and go."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, TypeVar

from tests.testbed.crowd import GPUS, Crowd
from tests.testbed.prometheus_server import Prometheus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = float(os.environ.get("RINGFENCE_CHURN_SECONDS", "12"))
CONTAINERS = 200
LIMITS = 'ringfence_vram_limit_bytes{container!=""}'
_T = TypeVar("_T")


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def shown(prometheus: Prometheus) -> set[str]:
    return {labels["pod"] for labels, _ in prometheus.query(LIMITS)}


def test_containers_that_come_and_go_leave_no_gap_no_duplicate_and_no_stale_series(
    tmp_path: Path,
    short_path: Path,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Crowd(short_path / "node", port) as crowd:
        crowd.add(CONTAINERS)
        with Prometheus(tmp_path / "prometheus", {crowd.address: "crowd"}) as prometheus:
            wait_for(lambda: shown(prometheus) == set(crowd.pods))
            began, gone = time.time(), set()
            while time.time() < began + SECONDS:
                gone.add(crowd.remove())
                crowd.add()
                time.sleep(0.05)
            wait_for(lambda: shown(prometheus) == set(crowd.pods))
            span = f"{int(time.time() - began)}s"
            up = f'up{{job="ringfence"}}[{span}]'
            assert prometheus.query(f"min_over_time({up})")[0][1] == 1
            assert prometheus.query(f"count_over_time({up})")[0][1] >= SECONDS - 3
            counts = f"count({LIMITS})"
            most = prometheus.query(f"max_over_time({counts}[{span}:1s])")[0][1]
            least = prometheus.query(f"min_over_time({counts}[{span}:1s])")[0][1]
            assert CONTAINERS - 1 <= least <= most <= CONTAINERS + 1
            for wrong in (
                "sample_duplicate_timestamp",
                "sample_out_of_order",
                "exceeded_sample_limit",
            ):
                wait_for(lambda name=wrong: bool(  # type: ignore[misc]
                    prometheus.query(f"prometheus_target_scrapes_{name}_total")
                ))  # fmt: skip
                assert prometheus.query(f"prometheus_target_scrapes_{wrong}_total")[0][1] == 0
            assert len(gone) > SECONDS
            assert not gone & shown(prometheus)
            held = prometheus.query('sum by (pod) (ringfence_vram_observed_bytes{container!=""})')
            assert {value for _, value in held} == {3 << 20}
            for sensor in ("temperature_celsius", "power_usage_watts"):
                assert len(prometheus.query(f"hami_host_gpu_{sensor}")) == len(GPUS)
