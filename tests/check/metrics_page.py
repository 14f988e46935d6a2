# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md from the metrics themselves: ``python -m tests.check.metrics_page`` writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from bpf.decode import REASONS, Counter
from enforcer.incidents import OwnReason
from enforcer.metrics.families import ENGINES, FAMILIES
from enforcer.model import Layer, LedgerSource, Why

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from enforcer.metrics.families import Family

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
RULES = Path(__file__).parents[2] / "charts/ringfence/files/rules.yaml"

_REASONS = "[troubleshoot.md](troubleshoot.md#what-does-the-reason-mean)"

_INTRO = """# Which metrics are there?

Generated from the code by `python -m tests.check.metrics_page`; the tests compare it.

The enforcer serves them on port 9394 (`--metrics-address`, chart value `metrics.port`) under
`/metrics`, in Prometheus's text format. A scrape shows the enforcer's last pass and asks the kernel
nothing. Where the numbers of usage come from, and what it means if they differ, is in
[usage.md](usage.md); what to do about them in [troubleshoot.md](troubleshoot.md). The chart has two
Grafana dashboards, for nodes and for pods (`metrics.dashboards`), and the alerts below
(`metrics.prometheusRule`); the files are in `charts/ringfence/files`.

- Sizes are bytes, times seconds. What is unknown has no series; an idle container's are 0.
- A container's series come with its cgroup and go with it. `container=""` is the pod itself: to
  add up, choose one of the two, `{container!=""}` or `{container=""}`.
- `device` is the GPU's PCI address; `ringfence_gpu_info` translates.
- `ringfence_refusals_total` and `ringfence_events_total` are the kernel's and survive the enforcer.
  Every other counter begins at 0 with the enforcer, which Prometheus takes for the restart it is; a
  container's times go on when one of its processes ends.
- Everything but what names BPF or dmem is there on a node without BPF and without dmem, from KFD,
  fdinfo and the hook.

## The same port for people

`/` on the same port is a page of the node: each GPU as a bar of VRAM and a grid of compute units,
who has which, what holds them, what was refused. It needs no script and no network but this port,
and shows what `/metrics` tells, and the last refusals with the names of their processes.
`--page off` (chart: `metrics.page: false`) switches it off.

Who may see either: by default whoever reaches the port, which is the pod's, not the host's. Names
of namespaces and pods are on it, so let a NetworkPolicy say who that is. With a file at
`--metrics-token-file` (chart: `metrics.tokenSecret`) both want the token in it: as
`Authorization: Bearer ...` from Prometheus, which the chart's monitors send, as the password of any
user from a browser. The file is read at each request, so that a Secret can be changed. The enforcer
has no rights at the API server, on purpose, and so cannot have a token reviewed there; where you
want that, put kube-rbac-proxy in front and bind to `127.0.0.1:9394`. What is served is not
encrypted.
"""


_ALERTS = """\
They count on the label `node` that the chart's monitors give to every series, also to `up`.

- An incident is told of for ten minutes from when it was, also where it is the first, its pod or
  enforcer is gone since, or the enforcer was away and read of it later. A Prometheus that was away
  for longer is not told of what happened meanwhile; `ringfence_incidents_total` has counted it.
  The clocks of nodes and Prometheus have to agree by minutes.
- `RingfenceEnforcerDown` goes on until the enforcer answers again, for three days at most, while
  there is an `up` or, from kube-state-metrics, a `kube_node_info` with the node's name: a node that
  is removed ends it. An enforcer that answers less than half of the time counts as down.
- For a rate of `ringfence_incidents_total` mind that most of its series begin with the first
  incident, at 1 or more, which `increase` and `rate` pass over; the dashboards take differences.
"""


def text() -> str:
    """The whole page."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield _INTRO
    rest = list(FAMILIES)
    for title, belongs in (
        ("HAMi's names", lambda one: one.name.startswith("hami_")),
        ("Containers and pods", lambda one: one.labels[:1] == ("container",)),
        ("GPUs", lambda one: one.labels[:1] == ("device",)),
        ("The node and the enforcer", lambda _: True),
    ):
        chosen = [one for one in rest if belongs(one)]
        rest = [one for one in rest if one not in chosen]
        yield f"## {title}\n"
        yield from _table(chosen)
        yield ""
    yield "## What labels can be\n"
    yield "No label takes its value from what a process can make up; these have closed lists.\n"
    yield "| label | values |"
    yield "|---|---|"
    yield f"| `layer` | {_list(layer.value for layer in Layer)} |"
    yield f"| `reason` of a layer | empty (on), {_list(why.value for why in Why)}, `other` |"
    yield f"| `engine` | {_list(ENGINES)}, `other` |"
    yield f"| `event` | {_list(counter.name.lower() for counter in Counter)} |"
    reasons = _list(reason.name.lower() for reason in (*REASONS, *OwnReason))
    yield f"| `reason` of an incident | {reasons}; what each is: {_REASONS} |"
    yield "| `masked` | `yes`, `no` |"
    yield f"| `source` | {_list(source.value for source in LedgerSource)} |"
    yield ""
    yield "## Alerts\n"
    yield _ALERTS
    yield "| alert | severity | after | says |"
    yield "|---|---|---|---|"
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        says = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", rule["annotations"]["summary"])
        says = re.sub(r"\{\{ \$value[^}]*\}\}", "*so much*", says)
        severity, after = rule["labels"]["severity"], rule.get("for", "")
        yield f"| `{rule['alert']}` | {severity} | {after} | {says} |"


def _table(families: Iterable[Family]) -> Iterator[str]:
    yield "| metric | type | labels | meaning | no series where |"
    yield "|---|---|---|---|---|"
    for one in families:
        labels = ", ".join(f"`{name}`" for name in one.labels)
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.text} | {one.absent} |"


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> int:
    PAGE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
