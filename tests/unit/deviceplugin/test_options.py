# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from deviceplugin.options import OptionsError, parser, read_options, terms
from deviceplugin.terms import Terms

BDF = "0000:05:00.0"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("RINGFENCE_") or name == "NODE_NAME":
            monkeypatch.delenv(name)


def test_the_defaults_are_a_nodes() -> None:
    options = parser().parse_args([])
    assert options.node_name is None
    assert options.device_plugins_dir == Path("/var/lib/kubelet/device-plugins")
    assert options.kubelet_dir == Path("/var/lib/kubelet")
    assert options.state_dir == Path("/var/lib/ringfence")
    assert options.socket == Path("/run/ringfence/enforcer.sock")
    assert options.hook_dir == Path("/var/lib/ringfence-hook/current")
    assert options.split_count == 0
    assert options.health_pulse == 10
    assert options.hip_log_level == 0
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


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("socket", 107),
        ("metrics-exporter", 107),
        ("device-plugins-dir", 83),
        ("kubelet-dir", 80),
    ],
)
def test_a_path_too_long_for_a_socket_is_told_wherever_it_is_set(
    name: str, longest: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/".ljust(longest, "x")
    assert getattr(read_options([f"--{name}={path}"]), name.replace("-", "_")) == Path(path)
    with pytest.raises(SystemExit):
        read_options([f"--{name}={path}y"])
    told = f"{path}y: expected at most {longest} bytes, found {longest + 1}"
    assert f"argument --{name}: {told}" in capsys.readouterr().err
    variable = f"RINGFENCE_{name.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, f"{path}y")
    with pytest.raises(OptionsError) as error:
        read_options([])
    assert str(error.value).startswith(f"{variable}: {told}")


def config(directory: Path, text: str) -> str:
    (directory / "config.yaml").write_text(text)
    return f"--config={directory / 'config.yaml'}"


def test_a_file_sets_what_the_environment_and_flags_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = config(
        tmp_path,
        "scheduler: none\nsplit-count: 4\nfail-open: true\nmemory-scaling: 1.5\n"
        f"exclude-gpus: [card3, '{BDF}']\nstate-dir: /file\nlog-level: debug\n",
    )
    monkeypatch.setenv("RINGFENCE_SPLIT_COUNT", "5")
    monkeypatch.setenv("RINGFENCE_STATE_DIR", "/environment")
    options = read_options([flag, "--state-dir=/flag"])
    assert options.state_dir == Path("/flag")
    assert options.split_count == 5
    assert (options.scheduler, options.fail_open, options.log_level) == ("none", True, "debug")
    assert options.memory_scaling == 1.5
    assert options.exclude_gpus == {"card3", BDF}


def test_the_file_can_be_named_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(tmp_path, "split-count: 3\n")
    monkeypatch.setenv("RINGFENCE_CONFIG", str(tmp_path / "config.yaml"))
    assert read_options([]).split_count == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("split-count: many", "config.yaml: split-count: expected 0 to 1000, found 'many'"),
        ("surprise: 1", "config.yaml: surprise: expected one of allocator-policy,"),
        ("config: other", "config.yaml: config: expected one of"),
        ("memory-scaling: 0.5", "config.yaml: memory-scaling: expected 1 to 100, found '0.5'"),
        ("memory-scaling: .nan", "config.yaml: memory-scaling: expected 1 to 100"),
        ("health-pulse: 0", "config.yaml: health-pulse: expected 0.1 to 3600, found '0'"),
        ("health-pulse: .inf", "config.yaml: health-pulse: expected 0.1 to 3600"),
        ("hip-log-level: 5", "config.yaml: hip-log-level: expected 0 to 4, found '5'"),
        ("fail-open: maybe", "config.yaml: fail-open: expected true or false, found 'maybe'"),
        ("exclude-gpus: [card1, gpu2]", "exclude-gpus: [1]: expected a PCI address"),
        ("exclude-gpus: [card1, 2]", "exclude-gpus: [1]: expected text, found 2"),
        ("exclude-gpus: {a: b}", "exclude-gpus: expected one value or a list, found dict"),
        ("scheduler: kueue", "scheduler: expected one of hami, none, found 'kueue'"),
        ("operating-mode: CU", "operating-mode: expected one of cu, partition, found 'CU'"),
        ("state-dir: ''", "state-dir: expected a path, found none"),
        ("- a", "config.yaml: expected keys and values, found list"),
        ("a: [", "config.yaml: expected YAML, found: while parsing"),
    ],
)
def test_a_mistake_in_the_file_is_named_by_its_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        read_options([config(tmp_path, text)])
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_LOG_LEVEL", "loud")
    with pytest.raises(OptionsError) as caught:
        read_options([config(tmp_path, "split-count: -1\nscheduler: me\n")])
    for name in ("split-count", "scheduler", "RINGFENCE_LOG_LEVEL"):
        assert f"{name}: expected" in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "kubeconfig:\n"])
def test_an_empty_file_leaves_the_defaults(tmp_path: Path, text: str) -> None:
    found = vars(read_options([config(tmp_path, text)]))
    assert found | {"config": None} == vars(parser().parse_args([]))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"none.yaml: expected YAML, found: .*No such file"):
        read_options([f"--config={tmp_path / 'none.yaml'}"])


def test_every_flag_is_a_key_of_the_file_and_the_default_is_a_value_of_it(tmp_path: Path) -> None:
    """A default that its own rule refuses would show only on the day somebody writes it down."""
    actions = [one for one in parser()._actions if one.type is not None and one.dest != "config"]
    values = {
        one.option_strings[0].removeprefix("--"): str(one.default)
        for one in actions
        if one.default is not None
    }
    text = "".join(f"{name}: {value!r}\n" for name, value in values.items())
    found = vars(read_options([config(tmp_path, text)]))
    assert found | {"config": None} == vars(parser().parse_args([]))
    assert len(values) > 10


def test_the_terms_are_those_of_the_options() -> None:
    flags = [
        "--split-count=3",
        "--operating-mode=partition",
        "--compute-partition=cpx",
        "--resource-naming=mixed",
        "--memory-scaling=2",
        f"--exclude-gpus=card1,{BDF.upper()}",
    ]
    assert terms(read_options(flags)) == Terms(
        split_count=3,
        operating_mode="partition",
        compute_partition="cpx",
        mixed=True,
        memory_scaling=2.0,
        exclude=frozenset({"card1", BDF}),
    )
    assert terms(read_options(["--scheduler=none"])).whole
    assert terms(read_options([])) == Terms()
