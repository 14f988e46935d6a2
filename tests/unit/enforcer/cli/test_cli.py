# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from importlib.metadata import version

import pytest

from enforcer import cli


def test_help_lists_every_command_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("inventory", "enforcer", "device-plugin", "trace"))


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"{version('ringfence')}\n")


@pytest.mark.parametrize("argv", [[], ["explode"], ["--nonsense"]])
def test_an_unknown_command_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


def test_a_commands_own_options_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["inventory", "--help"])
    assert "ringfence inventory" in capsys.readouterr().out


def test_only_the_command_that_is_run_is_imported() -> None:
    code = (
        "import sys; from enforcer.cli import main; main(['inventory', '--sys', '/nowhere']);"
        "heavy = {'grpc', 'kubernetes', 'prometheus_client', 'pyroute2'} & sys.modules.keys();"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
