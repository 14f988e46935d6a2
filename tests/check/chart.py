# SPDX-License-Identifier: Apache-2.0
"""The chart passes Helm's own linter; a warning fails as an error does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import helm_python

_WARNING = 2
_OLDEST = "v1.25.0"  # Chart.yaml's kubeVersion


def problems(report: dict[str, Any]) -> list[str]:
    """The lines of a lint report that are more than advice."""
    messages = [
        f"{message['path']}: {message['error']}"
        for message in report["messages"]
        if message["severity"] >= _WARNING
    ]
    return messages or list(report["errors"])


def main() -> int:
    found = problems(helm_python.lint(Path("charts/ringfence"), strict=True, kube_version=_OLDEST))
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
