# SPDX-License-Identifier: Apache-2.0
"""The chart's objects, by Helm's own engine, and the sets of values that are looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import helm_python
import yaml
from helm_python import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

CHART = Path(__file__).parents[3] / "charts" / "ringfence"
Values = dict[str, Any]
Object = dict[str, Any]

VARIANTS: dict[str, Values] = {
    "defaults": {},
    "k3s": {"containerRuntime": {"containerdStateDir": "/run/k3s/containerd", "crioRunRoot": ""}},
    "k0s": {
        "kubeletDir": "/var/lib/k0s/kubelet",
        "containerRuntime": {"containerdStateDir": "/run/k0s/containerd"},
    },
    "microk8s": {
        "kubeletDir": "/var/snap/microk8s/common/var/lib/kubelet",
        "containerRuntime": {"containerdStateDir": "/var/snap/microk8s/common/run/containerd"},
    },
    "not privileged": {"enforcer": {"privileged": False}},
    "docker": {"containerRuntime": {"dockerDataRoot": "/srv/docker"}},
    "hook": {"hookDir": "/opt/ringfence"},
    "no hook": {"hookDir": ""},
    "plugin": {"devicePlugin": {"splitCount": 4, "failOpen": True, "logLevel": "debug"}},
    "whole": {"devicePlugin": {"scheduler": "none", "operatingMode": "partition"}},
    "modes": {
        "devicePlugin": {
            "operatingMode": "partition",
            "computePartition": "cpx",
            "resourceNaming": "mixed",
            "excludeGPUs": ["0000:05:00.0", "card3"],
            "memoryScaling": 1.5,
            "allocatorPolicy": "spread",
            "healthPulse": 2.5,
            "hipLogLevel": 4,
            "metricsExporterDir": "",
            "reportNodeCapacity": True,
            "cdi": {"enabled": True, "specDir": "/etc/cdi"},
        }
    },
    "cri-o": {"containerRuntime": {"containerdStateDir": ""}},
    "service monitor": {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"team": "a"}}}},
    "pod monitor": {"metrics": {"podMonitor": {"enabled": True, "interval": "1m30s"}}},
    "annotations": {
        "metrics": {"podAnnotations": True},
        "podAnnotations": {"a/b": "c"},
        "podLabels": {"team": "a"},
    },
    "observed": {
        "metrics": {
            "dashboards": {"enabled": True},
            "prometheusRule": {"enabled": True, "labels": {"team": "a"}},
        }
    },
    "token": {
        "metrics": {
            "page": False,
            "tokenSecret": {"name": "seen", "key": "by"},
            "podMonitor": {"enabled": True},
        }
    },
    "no metrics": {"metrics": {"enabled": False}},
    "on delete": {"updateStrategy": {"type": "OnDelete"}},
    "one at a time": {
        "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}
    },
    "surge": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    "account of one's own": {
        "serviceAccount": {"create": False, "name": "gpu"},
        "rbac": {"create": False},
    },
    "guarded": {
        "admissionPolicy": "on",
        "networkPolicy": {
            "enabled": True,
            "scrapers": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
    },
    "of one's own": {
        "namespace": {"create": True},
        "priorityClassName": "",
        "priorityClass": {"create": True, "value": 5},
        "nodeFeatureDiscovery": True,
        "affinity": {"podAntiAffinity": {}},
    },
    "closed network": {"metrics": {"enabled": False}, "networkPolicy": {"enabled": True}},
    "openshift": {
        "openshift": {"enabled": True},
        "containerRuntime": {"containerdStateDir": ""},
    },
    "bare": {
        "nodeSelector": {"kubernetes.io/os": None, "kubernetes.io/arch": None},
        "tolerations": [],
        "priorityClassName": "",
        "devicePlugin": {"resources": {"requests": None, "limits": None}},
        "imagePullSecrets": [{"name": "registry"}],
    },
}

REMOVED: Values = {"remove": {"enabled": True, "confirm": True}}
"""The set of values with other pods; confirmed, as there is no cluster to be asked."""


def render(
    values: Values | None = None,
    version: str | None = None,
    *,
    name: str = "rf",
    namespace: str = "gpu-system",
    apis: Sequence[str] = (),
) -> list[Object]:
    """The objects of that release for a cluster of that version of Kubernetes ("1.30"), or of the
    one that Helm's library takes for granted, and with these APIs too."""
    return [
        document
        for file, text in _rendered(values or {}, version, name, namespace, apis).items()
        if not file.endswith(".txt")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]


def notes(
    values: Values | None = None, version: str | None = None, apis: Sequence[str] = ()
) -> str:
    """What Helm says at the end of an installation or upgrade, in a cluster with these APIs too."""
    return _rendered(values or {}, version, apis=apis)["ringfence/templates/NOTES.txt"]


def _rendered(
    values: Values,
    version: str | None,
    name: str = "rf",
    namespace: str = "gpu-system",
    apis: Sequence[str] = (),
) -> dict[str, str]:
    options = {"name": name, "namespace": namespace, "api_versions": list(apis)}
    if version is not None:
        options["kube_version"] = f"v{version}"
    with helm_python.Chart.load(CHART) as chart:
        # The library takes a version; Chart.render has no argument for it.
        told = _native.call_string(
            "helm_render", chart._raw(), json.dumps(values), json.dumps(options)
        )
    templates: dict[str, str] = json.loads(told)
    return templates


def only(objects: list[Object], kind: str) -> Object:
    (found,) = [item for item in objects if item["kind"] == kind]
    return found
