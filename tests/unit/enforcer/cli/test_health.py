# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

from enforcer import cli
from enforcer.host.heartbeat import Heartbeat


@pytest.mark.parametrize("name", ["enforcer", "device-plugin"])
def test_ready_alive_and_neither_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / "beat"
    asked = ["health", name, f"--heartbeat={file}"]

    def ask() -> tuple[int, int, str]:
        statuses = cli.main(asked), cli.main([*asked, "--live"])
        one, other = capsys.readouterr().out.splitlines()
        assert one == other
        return *statuses, one

    assert ask() == (1, 1, f"{name}: not alive: {file} is not there: it has not begun")
    heart = Heartbeat(file, 2.0)
    assert ask() == (1, 0, f"{name}: alive, not ready: starting for 0 s")
    heart.beat(well=True)
    assert ask() == (0, 0, f"{name}: ready: at work for 0 s")


def test_without_a_file_named_it_is_the_charts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "device-plugin"]) == 1
    assert "/run/ringfence-health/device-plugin is not there" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["scheduler"]])
def test_another_daemon_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["health", *argv])
    assert caught.value.code == 2


def test_it_imports_nothing_that_is_slow() -> None:
    """kubelet starts it again and again."""
    code = (
        "from enforcer.cli import main; main(['health', 'enforcer']);"
        "slow = {'dataclasses', 'importlib.metadata', 'inspect', 'logging'} & sys.modules.keys();"
        "sys.exit(', '.join(sorted(slow)) or 0)"
    )
    place = str(Path(cli.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {place!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
