# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deviceplugin.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "RINGFENCE_NODE_NAME", "RINGFENCE_STATE_DIR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def kubeconfig(directory: Path) -> Path:
    """One that leads nowhere."""
    path = directory / "kubeconfig"
    path.write_text(
        '{"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],'
        '"users": [{"name": "a", "user": {}}],'
        '"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],'
        '"current-context": "a"}'
    )
    return path


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
    options = [f"--state-dir={tmp_path}", f"--kubeconfig={kubeconfig(tmp_path)}"]
    assert main(["--node-name=n", *options]) == 1
    assert "the checkpoint" in capsys.readouterr().err


def test_bad_options_end_the_start_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text("split-count: many\n")
    assert main([f"--config={tmp_path / 'config'}"]) == 2
    assert "config: split-count: expected 0 to 1000, found 'many'" in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_made_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    options = [f"--state-dir={tmp_path / 'file/state'}", f"--kubeconfig={kubeconfig(tmp_path)}"]
    assert main(["--node-name=n", *options]) == 1
    assert "the state directory" in capsys.readouterr().err
