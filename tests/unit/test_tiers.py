# SPDX-License-Identifier: Apache-2.0
"""What `make test` makes of a tier's result."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from tests import tiers
from tests.testbed.cache import StepError
from tests.testbed.prepare_cli import wishes
from tests.tiers import (
    TIERS,
    Here,
    Outcome,
    Prefixed,
    Tier,
    choose,
    fits,
    main,
    needs,
    outcome,
    table,
)

if TYPE_CHECKING:
    from pathlib import Path


def junit(path: Path, **counts: int) -> Path:
    attributes = " ".join(f'{name}="{count}"' for name, count in counts.items())
    path.write_text(f"<testsuites><testsuite {attributes}/></testsuites>")
    return path


def test_a_tier_whose_tests_all_pass_is_green(tmp_path: Path) -> None:
    file = junit(tmp_path / "j", tests=3, failures=0, errors=0, skipped=0)
    assert outcome(file, 0, 1.0).green


@pytest.mark.parametrize("name", ["failures", "errors", "skipped"])
def test_one_failure_error_or_skip_is_not_green(tmp_path: Path, name: str) -> None:
    file = junit(tmp_path / "j", tests=3, **{name: 1})
    assert not outcome(file, 0 if name == "skipped" else 1, 1.0).green


def test_a_tier_without_a_test_is_not_green(tmp_path: Path) -> None:
    assert not outcome(junit(tmp_path / "j", tests=0), 5, 1.0).green


def test_a_tier_that_ended_early_is_not_green(tmp_path: Path) -> None:
    file = junit(tmp_path / "j", tests=3)
    assert outcome(file, 137, 1.0).error == "exit status 137"


@pytest.mark.parametrize("text", [None, "", "<testsuites>"])
def test_a_tier_without_a_readable_result_is_not_green(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "j").write_text(text)
    one = outcome(tmp_path / "j", 2, 1.0)
    assert not one.green
    assert "exit status 2" in one.error


def test_the_closing_line_counts_a_skip_as_a_failure() -> None:
    lines = table({"a": Outcome(passed=2), "b": Outcome(passed=1, skipped=1)}).splitlines()
    assert lines[-1] == "3 passed, 1 failed"


def test_the_tests_that_did_not_pass_are_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "j").write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1">'
        '<testcase classname="tests.a" name="test_good"/>'
        '<testcase classname="tests.a" name="test_bad"><failure message="one&#10;two"/></testcase>'
        '<testcase classname="tests.b" name="test_fell[1]"><error/></testcase>'
        '<testcase classname="tests.b" name="test_not"><skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    lines = table({"a": Outcome(passed=2), "b": outcome(tmp_path / "j", 1, 1.0)}).splitlines()
    assert lines[-5:] == [
        "b: tests.a::test_bad: failure: one",
        "b: tests.b::test_fell[1]: error: ",
        "b: tests.b::test_not: skipped: why",
        "",
        "3 passed, 2 failed",
    ]


def test_of_many_tests_that_did_not_pass_a_few_are_named() -> None:
    many = Outcome(passed=1, failed=9, red=tuple(f"test_{number}" for number in range(9)))
    named = [line for line in table({"a": many}).splitlines() if "test_" in line]
    assert named == [f"a: test_{number}" for number in range(5)]


def test_lines_carry_the_tier_s_name_however_they_come_in() -> None:
    written: list[bytes] = []
    show = Prefixed("unit", written.append)
    for chunk in (b"on", b"e\ntw", b"o\nthree"):
        show(chunk)
    show.close()
    assert b"".join(written) == b"unit: one\nunit: two\nunit: three\n"


def test_every_tier_has_its_own_name() -> None:
    assert len({tier.name for tier in TIERS}) == len(TIERS)


def test_soak_tiers_run_only_when_asked_for() -> None:
    everyday = {tier.name for tier in choose([], soak=False)}
    soak = {tier.name for tier in choose([], soak=True)}
    kinds = {"scrape", "installed", "installed-nodmem", "runtime", "update", "dmem", "nodmem"}
    kinds |= {"hook", "image", "newcomer", "fmod-ret", "fmod-ret-nodmem", "probes"}
    kinds |= {"fmod-ret-probes", "full", "dmem-7.2"}
    assert soak == {f"soak-{kind}" for kind in kinds}
    assert everyday | soak == {tier.name for tier in TIERS}
    assert not everyday & soak
    for flag in (False, True):
        assert [tier.name for tier in choose(["unit", "soak-dmem"], soak=flag)] == [
            "unit",
            "soak-dmem",
        ]


def test_a_tier_for_one_distribution_is_left_to_it() -> None:
    (hook,) = (tier for tier in TIERS if tier.name == "hook")
    (soak,) = (tier for tier in TIERS if tier.name == "soak-hook")
    assert fits(hook, {"ID": "debian", "VERSION_ID": "13"})
    assert not fits(hook, {})
    assert fits(soak, {"ID": "debian", "VERSION_ID": "12"})
    assert not fits(soak, {"ID": "debian", "VERSION_ID": "13"})
    (kubelet,) = (tier for tier in TIERS if tier.name == "guest-kubelet")
    assert fits(kubelet, {"ID": "debian", "VERSION_ID": "13"})
    assert not fits(kubelet, {"ID": "ubuntu", "VERSION_ID": "24.04"})
    assert all(fits(tier, {}) for tier in TIERS if not tier.only_on)


def test_only_what_the_tiers_need_is_prepared() -> None:
    everything = {"packages", "kernel", "driver", "stock", "kubelet", "dmem", "nodmem"}
    assert set(needs(choose([], soak=False))) == everything
    assert needs(choose(["unit", "contract", "hook"], soak=False)) == ["packages"]
    assert needs(choose(["guest-nodmem"], soak=False)) == [
        *("packages", "kernel", "nodmem", "driver", "nodmem")
    ]
    assert needs(choose(["soak-dmem-7.2"], soak=True)) == [
        *("packages", "kernel", "dmem-7.2", "driver", "dmem-7.2")
    ]
    for tier in TIERS:
        assert wishes(needs([tier]))


def test_an_unknown_tier_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such"])
    assert "no-such" in capsys.readouterr().err


def test_a_command_s_lines_and_status_come_back() -> None:
    lines: list[bytes] = []
    assert Here().run(["sh", "-c", "echo $WORD; echo two >&2; exit 3"], {"WORD": "1"}, lines.append)
    assert lines == [b"1\n", b"two\n"]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("trap 'echo cleaned up; exit 5' INT; echo up; while :; do sleep 0.1; done", 5),
        ("trap '' INT; echo up; while :; do sleep 0.1; done", -9),
    ],
    ids=["cleans up", "does not hear"],
)
def test_stopping_ends_the_command_and_begins_no_other(script: str, status: int) -> None:
    here, up = Here(), threading.Event()
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(here.run(["sh", "-c", script], {}, lambda _: up.set()))
    )
    thread.start()
    assert up.wait(10)
    here.stop(seconds=1)
    thread.join(10)
    assert found == [status]
    with pytest.raises(StepError, match="stopped"):
        here.run(["true"], {}, print)


def test_tiers_of_the_node_are_taken_from_both_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = threading.Barrier(2)
    ends: dict[str, list[str]] = {"first": [], "last": []}

    def take(end: str, tier: Tier) -> Outcome:
        if len(ends[end]) == 0:
            both.wait(10)
        ends[end].append(tier.name)
        return Outcome(passed=1)

    monkeypatch.setattr(tiers, "_outcome", lambda tier, *_: (tier.name, take("first", tier)))
    monkeypatch.setattr(tiers, "_apart", lambda tier, *_: take("last", tier))
    nodes = [tier.name for tier in TIERS if tier.node and not tier.soak and not tier.only_on]
    assert main(nodes) == 0
    assert (ends["first"][0], ends["last"][0]) == (nodes[0], nodes[-1])
    assert sorted(ends["first"] + ends["last"]) == sorted(nodes)
    assert f"{len(nodes)} passed, 0 failed" in capsys.readouterr().out


def test_a_tier_of_the_node_alone_begins_no_process_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `main` would be that process, and begin another, if its second thread were the quicker.
    begun: list[str] = []

    def apart(tier: Tier, *_: object) -> Outcome:
        begun.append(tier.name)
        return Outcome()

    class SecondThreadFirst(ThreadPoolExecutor):
        def submit(self, *arguments, **named):  # type: ignore[no-untyped-def]
            future = super().submit(*arguments, **named)
            wait([future], timeout=10)
            return future

    monkeypatch.setattr(tiers, "ThreadPoolExecutor", SecondThreadFirst)
    monkeypatch.setattr(tiers, "_outcome", lambda tier, *_: (tier.name, Outcome(passed=1)))
    monkeypatch.setattr(tiers, "_apart", apart)
    assert main(["guest-dmem"]) == 0
    assert begun == []
