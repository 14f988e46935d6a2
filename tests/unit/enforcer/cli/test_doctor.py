# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from enforcer.cli import doctor
from enforcer.cli.checks import Finding, State
from enforcer.cli.doctor import host_root, on_host, told
from tests.unit.enforcer.cli.test_checks import make_socket

_KUBELET = ("device-plugins-dir", "kubelet-dir")


def test_findings_are_a_table_of_80_columns() -> None:
    findings = [
        Finding("kernel", State.OK, "6.18"),
        Finding("GPUs", State.PROBLEM, "none " * 30, "look " * 30),
        Finding("dmem", State.NOTE, "none"),
    ]
    lines = list(told(findings))
    assert lines[0] == "ok      kernel          6.18"
    assert lines[1].startswith("PROBLEM GPUs            none none")
    assert max(map(len, lines)) <= 80
    assert sum(line.lstrip().startswith("->") for line in lines) == 1
    assert lines[-1] == "1 problems, 1 notes, 1 ok"


def test_nothing_that_others_named_moves_the_cursor() -> None:
    lines = list(told([Finding("slices", State.NOTE, "a\x1b[2J\udcff", "b\nc\x9b")]))
    assert all(line.isprintable() for line in lines)
    assert "a?[2J?" in lines[0]


def _options(path: Path) -> list[str]:
    names = ("sys", "proc", "run", "dev", "cgroup-root", "socket", "state-dir")
    return [f"--{name}={path / name}" for name in (*names, *_KUBELET)]


def test_a_machine_without_anything_is_told_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.main(_options(tmp_path)) == 1
    text = capsys.readouterr().out
    assert "PROBLEM GPUs" in text
    assert "no AMD GPU" in text


def test_json_is_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--json", *_options(tmp_path)]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert {"name", "state", "found", "cure"} == set(findings[0])


def test_an_enforcer_that_does_not_answer_is_a_finding(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (short_path / "socket").touch()
    assert doctor.main(_options(short_path)) == 1
    assert "unavailable" in capsys.readouterr().out


def test_no_problem_is_exit_status_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "examine", lambda _: [Finding("x", State.NOTE, "y")])
    assert doctor.main(_options(tmp_path)) == 0


def test_in_a_container_the_host_is_seen_through_its_first_process(tmp_path: Path) -> None:
    assert host_root(tmp_path) == Path("/")
    (tmp_path / "1").mkdir()
    (tmp_path / "1/root").symlink_to("/")
    assert host_root(tmp_path) == Path("/")
    (tmp_path / "1/root").unlink()
    (tmp_path / "1/root").symlink_to(tmp_path)
    assert host_root(tmp_path) == tmp_path / "1/root"


@pytest.mark.parametrize(
    ("root", "link"),
    [
        ("var/lib/kubelet", None),
        ("var/lib/k0s/kubelet", None),
        ("var/snap/microk8s/common/var/lib/kubelet", None),
        ("var/snap/microk8s/common/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"),
        ("data/kubelet", "../../data/kubelet"),
    ],
)
def test_the_hosts_kubelet_is_found_from_within_a_container(
    short_path: Path, capsys: pytest.CaptureFixture[str], root: str, link: str | None
) -> None:
    host = short_path / "host"
    (host / "var/lib").mkdir(parents=True)
    if link is not None:
        (host / "var/lib/kubelet").symlink_to(link)
    make_socket(host / root / "pod-resources/kubelet.sock")
    plugins = host / (f"{root}/device-plugins" if link else "var/lib/kubelet/device-plugins")
    make_socket(plugins / "kubelet.sock")
    (short_path / "proc/1").mkdir(parents=True)
    (short_path / "proc/1/root").symlink_to(host)
    options = [one for one in _options(short_path) if not one[2:].startswith(_KUBELET)]
    doctor.main(["--json", *options])
    findings = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert findings["kubelet"]["state"] == findings["PodResources"]["state"] == "ok"
    seen = short_path / "proc/1/root"
    assert findings["PodResources"]["found"] == str(seen / root / "pod-resources/kubelet.sock")
    assert str(seen / "var/lib/ringfence-hook/current") in findings["hook"]["found"]


def test_a_name_on_the_host_is_followed_below_its_root_alone(tmp_path: Path) -> None:
    root = tmp_path / "host"
    (root / "a").mkdir(parents=True)
    (root / "a/absolute").symlink_to("/b/c")
    (root / "a/up").symlink_to("../../../../b")
    (root / "a/round").symlink_to("round")
    assert on_host(root, "/a/absolute/d") == root / "b/c/d"
    assert on_host(root, "/a/up") == root / "b"
    assert on_host(root, "/a/round/d") == root / "a/round/d"
    assert on_host(root, "/a/none/d") == root / "a/none/d"
    (root / "a/file").touch()
    assert on_host(root, "/a/file/d") == root / "a/file/d"


def test_in_a_container_the_hosts_devices_are_looked_at_and_not_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = tmp_path / "host"
    (host / "dev").mkdir(parents=True)
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/root").symlink_to(host)
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    options = [one for one in _options(tmp_path) if not one.startswith("--dev")]

    def state() -> str:
        doctor.main(["--json", *options])
        findings = json.loads(capsys.readouterr().out)
        (found,) = [one["state"] for one in findings if one["name"] == "/dev/kfd"]
        return str(found)

    assert state() == State.PROBLEM
    (host / "dev/kfd").touch()
    assert state() == State.OK


def test_the_hook_is_looked_for_where_the_chart_says_it_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/root").symlink_to(tmp_path / "host")
    (tmp_path / "host/opt/hook/current").mkdir(parents=True)
    (tmp_path / "host/opt/hook/current/libringfence-audit.so").touch()
    monkeypatch.setenv("RINGFENCE_HOOK_DIR", "/opt/hook/current")
    doctor.main(["--json", *_options(tmp_path)])
    findings = json.loads(capsys.readouterr().out)
    found = " ".join(one["found"] for one in findings if one["name"] == "hook")
    assert "proc/1/root/opt/hook/current/libringfence-hsa.so is missing" in found
