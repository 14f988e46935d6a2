# SPDX-License-Identifier: Apache-2.0
"""``python -m image.lock``: write requirements.txt anew, with the newest versions and their hashes.

For every architecture of the image at once; a review sees what changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from typing import Any

from image.contents import ARCHITECTURES, NOT_INSTALLED, PYTHON
from image.python import LOCK, PLATFORMS

_SOURCE_ONLY = "cgroupspy"
"""Published as a source archive; Python files only."""
_HEAD = f"""\
# SPDX-License-Identifier: Apache-2.0
# The wheels of the image, for Python {PYTHON} on {" and ".join(ARCHITECTURES)}.
# Written by `python -m image.lock`.
"""


def requirements(reports: list[dict[str, Any]]) -> str:
    """The lock's lines from pip's installation reports. Raises ValueError if versions differ."""
    hashes: dict[str, set[str]] = defaultdict(set)
    versions: dict[str, str] = {}
    for report in reports:
        for item in report["install"]:
            name = item["metadata"]["name"].lower().replace("_", "-")
            version = item["metadata"]["version"]
            if versions.setdefault(name, version) != version:
                raise ValueError(f"{name}: {versions[name]} for one architecture, {version} for "
                                 "another; pin it in pyproject.toml")  # fmt: skip
            hashes[name].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    return "".join(
        f"{name}=={versions[name]}"
        + "".join(f" \\\n    --hash=sha256:{one}" for one in sorted(hashes[name]))
        + "\n"
        for name in sorted(versions)
        if name not in NOT_INSTALLED
    )


def main() -> int:
    """Ask pip for every architecture and write the lock."""
    project = tomllib.loads((LOCK.parents[1] / "pyproject.toml").read_text())["project"]
    wishes = project["dependencies"]
    binary = [wish for wish in wishes if not wish.startswith(_SOURCE_ONLY)]
    source = [wish for wish in wishes if wish.startswith(_SOURCE_ONLY)]
    target = ("--only-binary=:all:", "--target=/nonexistent", "--implementation=cp")
    reports = [
        _report("--no-deps", *source),
        *(
            _report(
                *(*target, f"--python-version={PYTHON}"),
                *(f"--platform={tag}_{arch.machine}" for tag in PLATFORMS),
                *binary,
            )
            for arch in ARCHITECTURES.values()
        ),
    ]
    LOCK.write_text(_HEAD + requirements(reports))
    return 0


def _report(*words: str) -> dict[str, Any]:
    pip = (sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet")
    answer = subprocess.run(
        [*pip, "--report=-", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


if __name__ == "__main__":
    sys.exit(main())
