# SPDX-License-Identifier: Apache-2.0
"""The alerts by Prometheus's own tool, and every query of rules and dashboards by its metrics."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.metrics.families import FAMILIES
from tests.testbed.prometheus import program
from tests.unit.charts.rendered import VARIANTS, only, render

FILES = Path(__file__).parents[3] / "charts/ringfence/files"
RULES = FILES / "rules.yaml"
CASES = Path(__file__).with_name("rules.test.yaml")
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
KUBELETS = {"kubelet_device_plugin_registration_total"}


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *words], capture_output=True, text=True, check=False
    )


def queries(dashboard: Path) -> list[str]:
    panels = json.loads(dashboard.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_rules_that_the_operator_gets_are_prometheus_rules(tmp_path: Path) -> None:
    rendered = only(render(VARIANTS["observed"]), "PrometheusRule")["spec"]
    assert rendered == yaml.safe_load(RULES.read_text())
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rendered))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_the_rules_hold_what_they_promise() -> None:
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_fire_and_to_be_silent() -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {alert["alert"] for alert in ALERTS}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} >= names


def test_every_alert_is_severe_by_degrees_and_says_what_it_is() -> None:
    for alert in ALERTS:
        assert alert["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(alert["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.name)
def test_panels_have_their_place_and_their_source(dashboard: Path) -> None:
    board = json.loads(dashboard.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_every_metric_that_is_asked_for_is_one_that_is_told() -> None:
    told = {family.name: set(family.labels) for family in FAMILIES}
    every = [alert["expr"] for alert in ALERTS]
    every += [query for dashboard in DASHBOARDS for query in queries(dashboard)]
    for query in every:
        names = set(re.findall(r"\b(?:ringfence|hami|kubelet)_\w+", query))
        assert names
        assert names <= told.keys() | KUBELETS, query
        for name, matchers in re.findall(r"\b((?:ringfence|hami)_\w+)\{([^}]*)\}", query):
            # The target's own labels are the scrape's to add.
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= told[name] | {"node"}, query
