# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from image.debian import Deb
from image.sbom import Distribution, document

DEBS = [Deb("libbpf1", "1:1.5.0-3", "amd64", "libbpf1_1%3a1.5.0-3_amd64.deb", "ab" * 32)]


def test_each_package_has_its_version_its_hash_and_a_package_url() -> None:
    found = document("image", DEBS, [Distribution("PyYAML", "6.0.4", "MIT")], "trixie", 0)
    deb, wheel = found["packages"]
    assert (deb["name"], deb["versionInfo"]) == ("libbpf1", "1:1.5.0-3")
    assert deb["checksums"] == [{"algorithm": "SHA256", "checksumValue": "ab" * 32}]
    urls = [package["externalRefs"][0]["referenceLocator"] for package in (deb, wheel)]
    assert urls == [
        "pkg:deb/debian/libbpf1@1%3A1.5.0-3?arch=amd64&distro=trixie",
        "pkg:pypi/pyyaml@6.0.4",
    ]
    assert (deb["licenseDeclared"], wheel["licenseDeclared"]) == ("NOASSERTION", "MIT")


def test_every_package_is_described_under_an_id_of_its_own() -> None:
    found = document("image", DEBS, [Distribution("libbpf1", "1")], "trixie", 0)
    ids = [package["SPDXID"] for package in found["packages"]]
    assert len(set(ids)) == len(ids) == 2
    assert [one["relatedSpdxElement"] for one in found["relationships"]] == ids


def test_the_date_is_the_sources_and_not_todays() -> None:
    found = document("image", [], [], "trixie", 1_700_000_000)
    assert found["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert found == document("image", [], [], "trixie", 1_700_000_000)
