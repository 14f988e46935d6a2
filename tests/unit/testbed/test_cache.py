# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.testbed.cache import Cache, Report, Step, StepError, digest, digest_files, write_whole

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def report(lines: list[str]) -> Report:
    return Report(write=lines.append)


def write_result(into: Path, _step: Step) -> None:
    (into / "result").write_text("whole")


def test_place_is_the_environment_s_choice_then_xdg_then_home() -> None:
    assert Cache.from_environment({"RINGFENCE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}).root == Path(
        "/a"
    )
    assert Cache.from_environment({"XDG_CACHE_HOME": "/b", "HOME": "/c"}).root == Path(
        "/b/ringfence"
    )
    assert Cache.from_environment({"HOME": "/c"}).root == Path("/c/.cache/ringfence")
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert Cache.from_environment({}).root == home / ".cache/ringfence"


def test_digest_tells_apart_what_joined_text_does_not() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "b") == digest("a", b"b")


def test_digest_of_files_depends_on_names_and_contents_not_on_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("1")
    second.write_text("2")
    before = digest_files([first, second], tmp_path)
    assert digest_files([second, first], tmp_path) == before
    second.rename(tmp_path / "c")
    assert digest_files([first, tmp_path / "c"], tmp_path) != before


def test_a_step_runs_once_for_one_key(cache: Cache, report: Report, lines: list[str]) -> None:
    place = cache.ensure("kind", "name", "key", report, write_result)
    assert (place / "result").read_text() == "whole"
    said = len(lines)

    def never(_into: Path, _step: Step) -> None:
        raise AssertionError("built twice")

    assert cache.ensure("kind", "name", "key", report, never) == place
    assert len(lines) == said


def test_a_failed_step_leaves_nothing_and_starts_over(cache: Cache, report: Report) -> None:
    def fail(into: Path, step: Step) -> None:
        (into / "half").write_text("half")
        raise StepError(f"{step.name}: no")

    with pytest.raises(StepError):
        cache.ensure("kind", "name", "key", report, fail)
    assert not cache.place("kind", "name", "key").exists()

    def check_clean(into: Path, step: Step) -> None:
        assert list(into.iterdir()) == []
        write_result(into, step)

    assert (cache.ensure("kind", "name", "key", report, check_clean) / "result").exists()
    assert [path.name for path in (cache.root / "kind/name").iterdir()] == ["key"]


def test_a_killed_step_starts_over(cache: Cache, report: Report) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from tests.testbed.cache import Cache, Report\n"
        "def slow(into, step):\n"
        "    (into / 'half').write_text('half'); print('building', flush=True); time.sleep(60)\n"
        "Cache(Path(sys.argv[1])).ensure('kind', 'name', 'key', Report(), slow)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(cache.root)], cwd=PROJECT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"building\n"
        process.send_signal(signal.SIGKILL)
    place = cache.ensure("kind", "name", "key", report, write_result)
    assert [path.name for path in place.iterdir()] == ["result"]


def test_a_step_waits_for_the_tools_of_one_that_was_killed(
    cache: Cache, report: Report, lines: list[str]
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.testbed.cache import Cache, Report\n"
        "def slow(into, step):\n"
        "    print('building', flush=True)\n"
        "    step.run(['sh', '-c', f'sleep 1; echo late >{into}/late'])\n"
        "Cache(Path(sys.argv[1])).ensure('kind', 'name', 'key', Report(), slow)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(cache.root)], cwd=PROJECT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"building\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    place = cache.ensure("kind", "name", "key", report, write_result)
    assert [path.name for path in place.iterdir()] == ["result"]
    assert any("waiting for it" in line for line in lines)


def test_two_at_once_build_once(cache: Cache, report: Report, lines: list[str]) -> None:
    built = []

    def slow(into: Path, step: Step) -> None:
        built.append(1)
        time.sleep(0.3)
        write_result(into, step)

    threads = [
        threading.Thread(target=cache.ensure, args=("kind", "name", "key", report, slow))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert sum("waiting for it" in line for line in lines) == 1


def test_results_that_nobody_used_for_a_week_go(cache: Cache, report: Report) -> None:
    old = cache.ensure("kind", "name", "old", report, write_result)
    recent = cache.ensure("kind", "name", "recent", report, write_result)
    long_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    cache.ensure("kind", "name", "new", report, write_result)
    assert not old.exists()
    assert recent.exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b"])
def test_a_name_that_would_leave_the_cache_is_refused(cache: Cache, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a path"):
        cache.place("kind", name, "key")


def test_a_failing_tool_is_named_with_its_log_and_last_words(
    tmp_path: Path, report: Report
) -> None:
    step = Step("kernel x", report, tmp_path / "log")
    with pytest.raises(StepError, match=r"kernel x: `sh -c .*status 3.*log\n.*the reason"):
        step.run(["sh", "-c", "echo the reason >&2; exit 3"])
    assert "the reason" in step.log.read_text()


def test_a_missing_tool_says_what_to_run(tmp_path: Path, report: Report) -> None:
    with pytest.raises(StepError, match="prepare packages"):
        Step("x", report, tmp_path / "log").run(["/no/such/tool"])


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "file"
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
