# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.host.watch import Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.close()


def test_a_new_entry_and_one_that_goes_are_told(watch: Watch, tmp_path: Path) -> None:
    watch.set([tmp_path])
    assert not watch.wait(0.05)
    (tmp_path / "pod").mkdir()
    assert watch.wait(10)
    assert not watch.wait(0.05)
    (tmp_path / "pod").rmdir()
    assert watch.wait(10)


def test_several_at_once_are_told_together(watch: Watch, tmp_path: Path) -> None:
    watch.set([tmp_path])
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    assert watch.wait(10)
    assert not watch.wait(0.05)


def test_what_is_below_a_watched_directory_is_not(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "container").mkdir()
    watch.set([tmp_path])
    (tmp_path / "container" / "tenants").mkdir()
    assert not watch.wait(0.05)


def test_a_directory_that_is_no_longer_wanted_is_not_watched(watch: Watch, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    watch.set([one, other])
    watch.set([other])
    (one / "x").mkdir()
    assert not watch.wait(0.05)
    (other / "x").mkdir()
    assert watch.wait(10)


def test_a_directory_that_is_gone_is_left_out_and_taken_when_it_is_back(
    watch: Watch, tmp_path: Path
) -> None:
    path = tmp_path / "pod"
    watch.set([path])
    path.mkdir()
    watch.set([path])
    (path / "x").mkdir()
    assert watch.wait(10)


def test_a_watched_directory_may_go(watch: Watch, tmp_path: Path) -> None:
    path = tmp_path / "pod"
    path.mkdir()
    watch.set([path])
    path.rmdir()
    assert not watch.wait(0.05)
    path.mkdir()
    watch.set([path])
    (path / "container").mkdir()
    assert watch.wait(10)
