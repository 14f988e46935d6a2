# SPDX-License-Identifier: Apache-2.0
"""On a fresh Debian what the README says to type works, from top to bottom.

All of it is built there, which takes an hour or two. ``RINGFENCE_NEWCOMER_GIVEN`` names folders of
the machine's own cache that it is given (``kernel stock kubernetes``), ``RINGFENCE_NEWCOMER_TIERS``
the tiers that ``make test`` is to run instead of all, ``RINGFENCE_NEWCOMER_SUITES`` the releases.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.newcomer.root import PROJECT, Root, give, make, readme_commands
from tests.testbed.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMANDS = readme_commands((PROJECT / "README.md").read_text())
SUITES = os.environ.get("RINGFENCE_NEWCOMER_SUITES", "bookworm trixie").split()
GIVEN = os.environ.get("RINGFENCE_NEWCOMER_GIVEN", "").split()
TIERS = os.environ.get("RINGFENCE_NEWCOMER_TIERS", "")
SECONDS = 6 * 3600

pytestmark = pytest.mark.timeout(SECONDS)


@pytest.fixture(scope="module")
def logs() -> Path:
    folder = Cache.from_environment(os.environ).root / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module", params=SUITES)
def root(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, logs: Path
) -> Iterator[Root]:
    path = tmp_path_factory.mktemp(request.param)
    made = make(request.param, path, logs / f"newcomer-{request.param}.log")
    give(made, Cache.from_environment(os.environ).root, GIVEN)
    yield made
    shutil.rmtree(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fresh_root_does_what_the_readme_says(root: Root, command: str, logs: Path) -> None:
    words = command.split()
    if words[-1] == "test" and TIERS:
        words.append(f"TIERS={TIERS}")
    log = logs / f"newcomer-{root.path.name}-{words[1]}.log"
    started = time.monotonic()
    status = root.run(words, log)
    end = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    print(f"{root.path.name}: {' '.join(words)}: {time.monotonic() - started:.0f} s\n{end}")
    assert status == 0, f"status {status}; all of it is in {log}\n{end}"
