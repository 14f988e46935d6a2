# SPDX-License-Identifier: Apache-2.0
"""The pods that take everything off a node, before an uninstall."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import helm_python
import pytest

from audit_hook import remove as remove_hook
from deviceplugin.cdi import FILE
from deviceplugin.codec import ALLOCATED, NODE_REGISTER
from deviceplugin.node import GROUPS
from enforcer.daemon import _parser as enforcer_parser
from tests.unit.charts.rendered import CHART, REMOVED, VARIANTS, Object, Values, notes, only, render

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def spec(values: dict[str, object] | None = None) -> Object:
    found: Object = only(render(values), "DaemonSet")["spec"]
    return found


def steps(values: Values | None = None) -> dict[str, Object]:
    pod = spec({**REMOVED, **(values or {})})["template"]["spec"]
    return {item["name"]: item for item in pod["initContainers"]}


def test_it_takes_the_place_of_the_daemons_on_every_node_at_once() -> None:
    assert spec(REMOVED)["selector"] == spec()["selector"]
    assert spec(REMOVED)["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    (left,) = spec(REMOVED)["template"]["spec"]["containers"]
    # What waits to be uninstalled has no right at all.
    assert left["securityContext"]["runAsNonRoot"]
    assert left["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumeMounts" not in left


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_it_is_on_the_nodes_where_the_daemons_are_and_as_welcome_there(values: Values) -> None:
    ours, theirs = spec({**values, **REMOVED})["template"], spec(values)["template"]
    for part in ("nodeSelector", "affinity", "tolerations", "imagePullSecrets"):
        assert ours["spec"].get(part) == theirs["spec"].get(part)
    assert ours["metadata"]["labels"] == theirs["metadata"]["labels"]
    annotations = ours["metadata"].get("annotations", {})
    assert values.get("podAnnotations", {}).items() <= annotations.items()


def test_the_programs_are_taken_out_first_by_the_enforcers_own_word() -> None:
    assert list(steps()) == ["unload", "clean", "remove-hook"]
    command = steps()["unload"]["command"]
    assert command[:2] == ["ringfence", "enforcer"]
    options = enforcer_parser().parse_args([*command[2:], *steps()["unload"]["args"]])
    assert options.unload
    assert str(options.bpffs) == "/sys/fs/bpf/ringfence"
    seen = {mount["mountPath"] for mount in steps()["unload"]["volumeMounts"]}
    assert seen == {"/sys/fs/bpf", str(options.cgroup_root), str(options.socket.parent)}


def test_then_what_is_in_our_directories_goes_and_nothing_beside(tmp_path: Path) -> None:
    container = steps()["clean"]
    script, *places = container["args"]
    assert places == ["/var/lib/ringfence", "/run/ringfence"]
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


def test_of_the_hooks_directory_goes_what_was_installed_there() -> None:
    values = {"hookDir": "/usr/local/vgpu"}
    container, clean = steps(values)["remove-hook"], steps(values)["clean"]
    assert container["command"] == ["python3", "-I", "-m", remove_hook.__name__]
    assert container["args"] == ["/usr/local/vgpu"]
    assert container["volumeMounts"] == [{"name": "hook", "mountPath": "/usr/local/vgpu"}]
    assert container["securityContext"] == clean["securityContext"]
    assert "remove-hook" not in steps({"hookDir": ""})


def test_of_the_directory_with_cdi_specs_only_ours_goes(tmp_path: Path) -> None:
    container = steps(VARIANTS["modes"])["clean"]
    script, *_, ours = container["args"]
    assert ours == f"/etc/cdi/{FILE}"
    assert container["volumeMounts"][-1] == {"name": "cdi", "mountPath": "/etc/cdi"}
    spec, other = tmp_path / FILE, tmp_path / "other.json"
    spec.write_text("{}")
    other.write_text("{}")
    for _ in ("there", "gone"):
        subprocess.run([sys.executable, *container["command"][1:], script, spec], check=True)
        assert [*tmp_path.iterdir()] == [other]


def test_what_unloads_has_the_right_to_bpf_alone_where_the_enforcer_is_not_privileged() -> None:
    assert steps()["unload"]["securityContext"]["privileged"]
    reduced = steps(VARIANTS["not privileged"])["unload"]["securityContext"]
    assert reduced["privileged"] is False
    assert reduced["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert reduced["seccompProfile"] == {"type": "RuntimeDefault"}


def test_what_is_left_to_do_is_told_at_the_end() -> None:
    told = notes(REMOVED)
    assert "rollout status daemonset/rf-ringfence\n  helm uninstall rf -n gpu-system\n" in told
    assert f"kubectl annotate nodes --all {NODE_REGISTER}- {GROUPS}-" in told
    assert "is installed" not in told
    assert "uninstall" not in notes()


def pod(name: str, phase: str, *, gpu: bool = True) -> Object:
    annotations = {ALLOCATED: "GPU-1,AMD Instinct MI300X,4096,76:;"} if gpu else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "annotations": annotations},
        "status": {"phase": phase},
    }


DEFAULT: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
"""What every cluster has."""


@contextmanager
def cluster(*pods: Object, namespaces: Sequence[Object] = ()) -> Iterator[helm_python.Config]:
    """An API server of which Helm can ask for pods and namespaces."""
    answers = {
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [
                {"name": "pods", "namespaced": True, "kind": "Pod", "verbs": ["list"]},
                {"name": "namespaces", "namespaced": False, "kind": "Namespace", "verbs": ["get"]},
            ],
        },
        **{f"/api/v1/namespaces/{one['metadata']['name']}": one for one in namespaces},
        "/api/v1/pods": {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Nothing is to be said."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            ],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
            "current-context": "c",
        }
        try:
            with helm_python.Config(kubeconfig_content=json.dumps(kubeconfig)) as config:
                yield config
        finally:
            server.shutdown()


def remove(config: helm_python.Config, values: Values) -> dict[str, str]:
    with helm_python.Chart.load(CHART) as chart:
        return config.render(chart, {"remove": values}, name="ringfence", namespace="gpu-system")


def test_it_is_refused_while_pods_would_lose_their_limit_and_names_them() -> None:
    pods = pod("a", "Running"), pod("b", "Pending"), pod("c", "Succeeded")
    with cluster(pod("other", "Running", gpu=False), *pods, namespaces=[DEFAULT]) as config:
        with pytest.raises(helm_python.HelmRenderError) as caught:
            remove(config, {"enabled": True})
        assert "2 pods would lose their limit: team/a, team/b;" in str(caught.value)
        assert "set remove.confirm" in str(caught.value)
        assert remove(config, {"enabled": True, "confirm": True})
        # An upgrade that removes nothing asks nobody.
        assert remove(config, {})


def test_it_is_not_refused_once_they_have_ended() -> None:
    pods = pod("other", "Running", gpu=False), pod("c", "Failed")
    with cluster(*pods, namespaces=[DEFAULT]) as config:
        assert remove(config, {"enabled": True})


def test_it_has_to_be_confirmed_where_there_is_no_cluster_to_be_asked() -> None:
    """An answer without pods would be taken for a cluster without any."""
    with pytest.raises(helm_python.HelmRenderError) as caught:
        render({"remove": {"enabled": True}})
    assert "no cluster to ask which pods would lose their limit (helm template," in str(
        caught.value
    )
    assert "annotation hami.io/amd-devices-allocated yourself" in str(caught.value)
    assert render({"remove": {"enabled": True, "confirm": True}})
