# SPDX-License-Identifier: Apache-2.0
"""The alerts by Prometheus's own tool, and every query of rules and dashboards by its metrics."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bpf.decode import REASONS
from enforcer.corrections import Correction
from enforcer.metrics.families import FAMILIES, View
from enforcer.metrics.families import render as exposition
from enforcer.model import Snapshot, Why
from enforcer.overruns import Overrun
from tests.testbed.prometheus import program
from tests.unit.charts.rendered import VARIANTS, only, render
from tests.unit.enforcer import sample

FILES = Path(__file__).parents[3] / "charts/ringfence/files"
RULES = FILES / "rules.yaml"
CASES = Path(__file__).with_name("rules.test.yaml")
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
BY_GATE = sorted(reason.name.lower() for reason in REASONS)
BY_ENFORCER = sorted(
    event.reason.name.lower()
    for event in (
        Overrun(0.0, 1, 2, 3, 4, killed=True),
        Overrun(0.0, 1, 2, 3, 4, killed=False),
        Correction(0.0, 1, 2, 3),
    )
)
NOT_THE_TENANTS = {"unfollowed", "ledger_corrected"}
"""Of the ledger: told in the log and as an Event, and nothing to be called for."""
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


def scraped(snapshots: list[Snapshot]) -> list[dict[str, str]]:
    """What Prometheus has after one scrape a minute, as promtool reads it."""
    values: dict[str, list[str]] = {}
    for minute, snapshot in enumerate(snapshots):
        for family in text_string_to_metric_families(exposition(View(snapshot, "n", "1"), "1")):
            for one in family.samples:
                labels = ",".join(f"{name}={json.dumps(it)}" for name, it in one.labels.items())
                series = values.setdefault(f"{one.name}{{{labels}}}", [])
                series += ["_"] * (minute - len(series)) + [str(one.value)]
    return [{"series": series, "values": " ".join(them)} for series, them in values.items()]


def promises(tmp_path: Path, *expectations: dict[str, Any]) -> None:
    """Five scrapes of a node without incidents, and 30 after three of each kind."""
    quiet = replace(sample.SNAPSHOT, incidents=())
    incidents = tuple(
        replace(sample.INCIDENT, time=290.0, reason=reason, count=3)
        for reason in (*BY_GATE, *BY_ENFORCER)
    )
    test = {
        "interval": "1m",
        "input_series": scraped([quiet] * 5 + [replace(quiet, incidents=incidents)] * 30),
        "promql_expr_test": list(expectations),
    }
    cases = tmp_path / "cases.yaml"
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    cases.write_text(yaml.safe_dump(whole))
    done = promtool("test", "rules", cases)
    assert done.returncode == 0, done.stdout + done.stderr


def by_reason(minute: int, query: str, value: int, reasons: list[str]) -> dict[str, Any]:
    return {
        "expr": f"sum by (reason) ({query})",
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{reason="{one}"}}', "value": value} for one in reasons],
    }


def test_the_first_incident_of_any_kind_is_told_by_what_the_exporter_writes_of_it(
    tmp_path: Path,
) -> None:
    refused = [one for one in BY_GATE if one.startswith("refused_")]
    tricks = sorted({*BY_GATE, *BY_ENFORCER} - {*refused} - NOT_THE_TENANTS)
    assert {"refused_limit", "refused_passed"} < {*refused}
    assert {"switched_killed", "switched_spared", "overran", "overrun_killed"} < {*tricks}
    promises(
        tmp_path,
        *(
            by_reason(
                minute,
                f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                1,
                reasons if minute == 5 else [],
            )
            for minute in (4, 5, 30)
            for alert, reasons in (
                ("RingfenceRefusals", refused),
                ("RingfenceArgumentsSwitched", tricks),
            )
        ),
    )


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.name)
def test_a_panel_shows_the_first_incidents_of_any_kind_and_shows_them_once(
    dashboard: Path, tmp_path: Path
) -> None:
    (query,) = (one for one in queries(dashboard) if "ringfence_incidents_total" in one)
    query = query.replace("$__rate_interval", "2m")
    for variable in ("$namespace", "$node", "$pod"):
        query = query.replace(variable, ".*")
    every = sorted((*BY_GATE, *BY_ENFORCER))
    promises(
        tmp_path,
        by_reason(4, query, 0, ["refused_limit"]),
        by_reason(6, query, 3, every),
        by_reason(7, query, 0, every),
    )


def test_what_a_node_never_had_is_told_apart_by_reasons_there_are() -> None:
    (rule,) = (alert for alert in ALERTS if alert["alert"] == "RingfenceLayerOff")
    match = re.search(r'reason!~"([^"]+)"', rule["expr"])
    assert match is not None
    assert {*match[1].split("|")} <= {why.value for why in Why}


def test_no_query_takes_the_rise_of_a_series_that_begins_above_0() -> None:
    every = [alert["expr"] for alert in ALERTS]
    every += [query for dashboard in DASHBOARDS for query in queries(dashboard)]
    for query in every:
        assert not re.search(r"\b(?:increase|i?rate|i?delta)\(ringfence_incidents_total\b", query)


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
