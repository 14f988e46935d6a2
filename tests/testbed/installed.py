# SPDX-License-Identifier: Apache-2.0
"""What `helm install` needs: the image, and the chart's objects for a few sets of values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from image.build import Release, build
from tests.testbed.cache import digest, digest_files

if TYPE_CHECKING:
    from tests.testbed.cache import Cache, Report, Step

_PROJECT = Path(__file__).resolve().parents[2]
_CHART = _PROJECT / "charts" / "ringfence"
_SOURCES = ("enforcer", "deviceplugin", "bpf", "audit_hook", "image", "charts")
_FILES = ("pyproject.toml", "setup.py", "Makefile", "tests/testbed/installed.py")
_GENERATED = (".o", ".so", ".pyc", ".pyi")

NAMESPACE: Final = "gpu-system"

IMAGES: Final = {"image.tar": Release(), "next.tar": Release("99.0.0", optimise="-O3")}
"""By file name. As between two releases, both the BPF programs and the hook differ."""

_REMOVE: Final = {"enabled": True, "confirm": True}
"""Nobody is asked here which pods would lose their limit."""

VALUES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "removed": {"remove": _REMOVE},
    "removed, not privileged": {"remove": _REMOVE, "enforcer": {"privileged": False}},
}
"""The sets of values, by the name of the file their objects are in."""


def prepare(cache: Cache, report: Report) -> Path:
    """A directory with the images and a <name>.json per set of values. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        for name, release in IMAGES.items():
            built = build(cache, report, into, release=release)
            built.archive.rename(into / name)
        for name, values in VALUES.items():
            (into / f"{name}.json").write_text(json.dumps(rendered(values)))

    sources = [path for top in _SOURCES for path in (_PROJECT / top).rglob("*") if _is_source(path)]
    sources += [_PROJECT / name for name in _FILES]
    key = digest(digest_files(sources, _PROJECT))
    return cache.ensure("installed", "node", key, report, make, unused_after_s=3600)


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The chart's objects, by Helm's own engine."""
    # Only here: the guest, which imports the names above, has no Helm.
    import helm_python  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    with helm_python.Chart.load(_CHART) as chart:
        manifests = chart.render(values, name="ringfence", namespace=NAMESPACE)
    return [
        document
        for name, text in manifests.items()
        if not name.endswith(".txt")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]


def _is_source(path: Path) -> bool:
    generated = path.suffix in _GENERATED or "_pb2" in path.name
    return path.is_file() and not generated and "__pycache__" not in path.parts
