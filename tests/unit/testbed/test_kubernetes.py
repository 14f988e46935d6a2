# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.testbed import kubernetes
from tests.testbed.cache import Cache, StepError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("package", "own"),
    [
        ("1.20.5+really1.20.2-1.1+deb12u1", "1.20.2"),
        ("1.32.3-2", "1.32.3"),
    ],
)
def test_the_version_that_a_package_really_has_is_taken(package: str, own: str) -> None:
    assert kubernetes.release(package) == own


@pytest.mark.parametrize("package", ["", "1.20-1", "really1.20.2", "1.20.5+really1.20-1"])
def test_a_package_without_a_version_is_refused_by_name(package: str) -> None:
    with pytest.raises(StepError, match=f"package kubernetes: .* found {re.escape(package)}$"):
        kubernetes.release(package)


def test_described_packages_are_those_marked_where_they_are_imported_from(tmp_path: Path) -> None:
    mark = "// +k8s:openapi-gen=true\npackage v1\n"
    for path, text in {
        "pkg/apis/abac/v0/doc.go": mark,
        "pkg/apis/core/doc.go": "package core\n",
        "staging/src/k8s.io/api/core/v1/doc.go": mark,
        "staging/src/k8s.io/api/core/v1/types.go": mark,
        "staging/src/k8s.io/sample-apiserver/v1/doc.go": mark,
        "staging/src/k8s.io/apimachinery/testdata/v1/doc.go": mark,
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert kubernetes.described(tmp_path) == ["pkg/apis/abac/v0", "vendor/k8s.io/api/core/v1"]


@pytest.mark.parametrize("record", [None, "", "[]", "{}", '{"kubernetes": "1"}'], ids=str)
def test_nothing_is_ready_without_a_record_of_what_is_there(
    tmp_path: Path, record: str | None
) -> None:
    if record is not None:
        (tmp_path / "kubernetes").mkdir()
        (tmp_path / "kubernetes/versions.json").write_text(record)
    assert kubernetes.ready(Cache(tmp_path)) is None


def test_what_was_built_is_found_without_asking_anybody(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    versions = {"kubernetes": "1.20.2-1", "containerd": "1.6-1"}
    place = cache.place("kubernetes", kubernetes.SUITE, kubernetes.key(versions))
    place.mkdir(parents=True)
    (tmp_path / "kubernetes/versions.json").write_text(json.dumps(versions))
    assert kubernetes.ready(cache) == kubernetes.Kubernetes(place)


def test_only_debian_has_the_source() -> None:
    assert kubernetes.obtainable({"ID": "debian"})
    assert not kubernetes.obtainable({"ID": "ubuntu"})
    assert not kubernetes.obtainable({})
