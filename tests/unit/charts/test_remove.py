# SPDX-License-Identifier: Apache-2.0
"""The pods that take everything off a node, before an uninstall."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from enforcer.daemon import _parser as enforcer_parser
from tests.unit.charts.rendered import REMOVED, Object, only, render

if TYPE_CHECKING:
    from pathlib import Path


def spec(values: dict[str, object] | None = None) -> Object:
    found: Object = only(render(values), "DaemonSet")["spec"]
    return found


def steps() -> dict[str, Object]:
    return {item["name"]: item for item in spec(REMOVED)["template"]["spec"]["initContainers"]}


def test_it_takes_the_place_of_the_daemons_on_every_node_at_once() -> None:
    assert spec(REMOVED)["selector"] == spec()["selector"]
    assert spec(REMOVED)["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    (left,) = spec(REMOVED)["template"]["spec"]["containers"]
    # What waits to be uninstalled has no right at all.
    assert left["securityContext"]["runAsNonRoot"]
    assert left["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumeMounts" not in left


def test_the_programs_are_taken_out_first_by_the_enforcers_own_word() -> None:
    first, second = steps()
    assert (first, second) == ("unload", "clean")
    command = steps()["unload"]["command"]
    assert command[:2] == ["ringfence", "enforcer"]
    options = enforcer_parser().parse_args([*command[2:], *steps()["unload"]["args"]])
    assert options.unload
    assert str(options.bpffs) == "/sys/fs/bpf/ringfence"


def test_then_what_is_in_our_directories_goes_and_nothing_beside(tmp_path: Path) -> None:
    container = steps()["clean"]
    script, *places = container["args"]
    assert places == ["/var/lib/ringfence", "/run/ringfence", "/var/lib/ringfence-hook"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == set(places)
    inside, beside = tmp_path / "ringfence", tmp_path / "other"
    (inside / "old").mkdir(parents=True)
    (inside / "old/file").write_text("")
    (inside / ".hidden").write_text("")
    (inside / "current").symlink_to(beside)
    beside.mkdir()
    (beside / "file").write_text("")
    subprocess.run([sys.executable, *container["command"][1:], script, inside], check=True)
    assert list(inside.iterdir()) == []
    assert (beside / "file").exists()
