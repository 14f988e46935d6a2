# SPDX-License-Identifier: Apache-2.0
"""The bill of materials, in SPDX 2.3 (JSON): every package of the image, with version and hash."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from image.debian import Deb

_UNKNOWN = "NOASSERTION"


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Python distribution in the image; ``licence`` is an SPDX expression or None."""

    name: str
    version: str
    licence: str | None = None


def date(epoch: int) -> str:
    """Seconds since 1970 as RFC 3339 has them, in UTC."""
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def document(
    name: str,
    debs: Sequence[Deb],
    distributions: Iterable[Distribution],
    suite: str,
    epoch: int,
) -> dict[str, Any]:
    """The document. ``epoch`` (seconds) is its date: the same image has the same document."""
    packages = [_debian(deb, suite) for deb in debs]
    packages += [_python(one) for one in sorted(distributions, key=lambda one: one.name)]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{quote(name)}-{epoch}",
        "creationInfo": {"created": date(epoch), "creators": ["Tool: ringfence make image"]},
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": package["SPDXID"],
            }
            for package in packages
        ],
    }


def _debian(deb: Deb, suite: str) -> dict[str, Any]:
    version, architecture = quote(deb.version, safe=""), deb.architecture
    url = f"pkg:deb/debian/{deb.name}@{version}?arch={architecture}&distro={suite}"
    return {
        **_package("deb", deb.name, deb.version, url),
        "checksums": [{"algorithm": "SHA256", "checksumValue": deb.sha256}],
    }


def _python(one: Distribution) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", one.name).lower()
    package = _package("pypi", name, one.version, f"pkg:pypi/{name}@{quote(one.version)}")
    return {**package, "licenseDeclared": one.licence or _UNKNOWN}


def _package(kind: str, name: str, version: str, url: str) -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-{kind}-{re.sub('[^A-Za-z0-9.-]', '-', name)}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseDeclared": _UNKNOWN,
        "licenseConcluded": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": url,
            }
        ],
    }
