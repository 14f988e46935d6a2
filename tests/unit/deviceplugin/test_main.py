# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin.main import main, parser


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "RINGFENCE_NODE_NAME", "RINGFENCE_STATE_DIR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_the_defaults_are_a_nodes() -> None:
    options = parser().parse_args([])
    assert options.node_name is None
    assert options.kubelet_dir == Path("/var/lib/kubelet")
    assert options.state_dir == Path("/var/lib/ringfence")
    assert options.socket == Path("/run/ringfence/enforcer.sock")
    assert options.hook_dir == Path("/usr/local/ringfence")
    assert options.split_count == 0
    assert options.fail_open is False


def test_the_environment_sets_what_options_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "from-kubernetes")
    monkeypatch.setenv("RINGFENCE_STATE_DIR", "/state")
    monkeypatch.setenv("RINGFENCE_SPLIT_COUNT", "4")
    monkeypatch.setenv("RINGFENCE_FAIL_OPEN", "1")
    options = parser().parse_args([])
    assert options.node_name == "from-kubernetes"
    assert options.state_dir == Path("/state")
    assert options.split_count == 4
    assert options.fail_open is True
    assert parser().parse_args(["--state-dir=/other"]).state_dir == Path("/other")


@pytest.mark.parametrize("value", ["-1", "x", "1001", ""])
def test_another_split_count_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([f"--split-count={value}"])
    assert "expected 0 to 1000" in capsys.readouterr().err


def test_a_bad_value_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_SPLIT_COUNT", "many")
    with pytest.raises(SystemExit):
        parser().parse_args([])


def test_a_start_without_a_node_name_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--state-dir={tmp_path}"]) == 1
    assert "--node-name or NODE_NAME" in capsys.readouterr().err


def test_a_start_without_an_api_server_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--node-name=n", f"--state-dir={tmp_path}"]) == 1
    assert "--kubeconfig or a service account" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_read_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slices.json").mkdir()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],'
        '"users": [{"name": "a", "user": {}}],'
        '"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],'
        '"current-context": "a"}'
    )
    options = ["--node-name=n", f"--state-dir={tmp_path}", f"--kubeconfig={kubeconfig}"]
    assert main(options) == 1
    assert "the checkpoint" in capsys.readouterr().err
