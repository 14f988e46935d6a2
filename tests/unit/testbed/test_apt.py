# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testbed import apt
from tests.testbed.apt import Distribution, Source
from tests.testbed.cache import Report, Step, StepError

if TYPE_CHECKING:
    from pathlib import Path

BOOKWORM = Distribution("debian", "bookworm")

DEB822 = """\
# written by the installer
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""

ONE_LINE = """\
# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/k.gpg] http://mirror.example/debian bookworm main # x
deb http://other.example/tools stable main
"""


def test_deb822_gives_each_binary_source_with_its_keyring() -> None:
    assert apt.parse_deb822(DEB822)[0] == Source(
        ("http://mirror.example/debian",),
        ("bookworm", "bookworm-updates"),
        ("main", "contrib"),
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    )


def test_deb822_leaves_out_disabled_and_source_only_stanzas() -> None:
    text = DEB822.replace("Types: deb deb-src", "Types: deb-src")
    text += "\nTypes: deb\nEnabled: no\nURIs: http://x\nSuites: y\nComponents: main\n"
    assert [source.suites for source in apt.parse_deb822(text)] == [("bookworm-security",)]


def test_deb822_keeps_an_embedded_key_block() -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ=\n -----END PGP PUBLIC KEY BLOCK-----"
    text = f"Types: deb\nURIs: http://x\nSuites: bookworm\nComponents: main\nSigned-By:{key}\n"
    [source] = apt.parse_deb822(text)
    assert source.signed_by == key.removeprefix("\n")
    [again] = apt.parse_deb822(apt.rewritten(source, ["sid"]))
    assert again.signed_by.split() == source.signed_by.split()


def test_one_line_takes_options_and_ignores_comments_and_source_packages() -> None:
    assert apt.parse_one_line(ONE_LINE) == [
        Source(
            ("http://mirror.example/debian",), ("bookworm",), ("main",), "/etc/apt/keyrings/k.gpg"
        ),
        Source(("http://other.example/tools",), ("stable",), ("main",)),
    ]


@given(st.text())
def test_parsers_survive_any_text(text: str) -> None:
    apt.parse_deb822(text)
    apt.parse_one_line(text)


def test_machine_sources_reads_both_kinds_and_nothing_else(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(DEB822)
    (parts / "tools.list").write_text(ONE_LINE)
    (parts / "old.sources.disabled").write_text(DEB822)
    assert len(apt.machine_sources(tmp_path)) == 4
    assert apt.machine_sources(tmp_path / "missing") == []


def test_rewriting_changes_the_suites_only() -> None:
    source = apt.distribution_source(apt.parse_deb822(DEB822), BOOKWORM)
    assert apt.rewritten(source, ("trixie", "sid")) == (
        "Types: deb\n"
        "URIs: http://mirror.example/debian\n"
        "Suites: trixie sid\n"
        "Components: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_source_packages_are_wanted_only_where_they_are_asked_for() -> None:
    source = Source(("http://x",), ("bookworm",), ("main",))
    assert apt.rewritten(source, ["sid"]).startswith("Types: deb\n")
    assert apt.rewritten(source, ["sid"], "deb deb-src").startswith("Types: deb deb-src\n")


def test_a_source_without_a_keyring_is_rewritten_without_one() -> None:
    source = Source(("http://x",), ("bookworm",), ("main",))
    assert "Signed-By" not in apt.rewritten(source, ["sid"])


def test_a_machine_without_its_own_distribution_in_its_sources_is_told_so() -> None:
    with pytest.raises(StepError, match="expected a source with suite bookworm"):
        apt.distribution_source([Source(("http://x",), ("stable",), ("main",))], BOOKWORM)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('ID=debian\nVERSION_CODENAME=bookworm\nNAME="x y"', BOOKWORM),
        ('ID="ubuntu"\nVERSION_CODENAME=noble\n', Distribution("ubuntu", "noble")),
    ],
)
def test_os_release(text: str, found: Distribution) -> None:
    assert apt.parse_os_release(text) == found


@pytest.mark.parametrize("text", ["", "ID=fedora\nVERSION_CODENAME=x", "ID=debian\n"])
def test_another_distribution_is_refused_by_name(text: str) -> None:
    with pytest.raises(StepError, match="expected Debian 12 or 13 or Ubuntu"):
        apt.parse_os_release(text)


NAMES = ["linux-source", "linux-source-6.12", "linux-source-7.2", "linux-source-7.10", "x-9.9"]
PATTERN = r"linux-source-(\d[\d.]*)"


def test_newest_compares_numbers_not_letters() -> None:
    assert apt.newest(NAMES, PATTERN) == "linux-source-7.10"


def test_newest_keeps_to_its_bounds() -> None:
    assert apt.newest(NAMES, PATTERN, line=(6, 12)) == "linux-source-6.12"
    assert apt.newest(NAMES, PATTERN, below=(7, 10)) == "linux-source-7.2"
    assert apt.newest(NAMES, PATTERN, at_least=(7, 11)) is None
    assert apt.newest([], PATTERN) is None


def test_package_takes_the_first_alternative_and_drops_versions() -> None:
    text = (
        "Package: linux-image-7.3.4\nVersion: 7.3.4-1~bpo13+1\n"
        "Depends: dracut | initramfs-tools (>= 0.1), linux-modules-7.3.4 (= 7.3.4-1), kmod\n\n"
        "Package: other\nVersion: 1\n"
    )
    package = apt.parse_package(text)
    assert package.name == "linux-image-7.3.4"
    assert package.version == "7.3.4-1~bpo13+1"
    assert package.depends == ("dracut", "linux-modules-7.3.4", "kmod")


def test_a_mirror_that_does_not_answer_is_asked_again_next_time(tmp_path: Path) -> None:
    archive = apt.Archive(tmp_path / "apt")
    step = Step("kernel", Report(write=lambda _: None), tmp_path / "log")
    nowhere = Source((f"file:{tmp_path}/no-mirror",), ("bookworm",), ("main",))
    with pytest.raises(StepError, match=r"kernel: expected the package index .*log$"):
        archive.fetch_index(apt.rewritten(nowhere, ["bookworm"]), step)
    assert archive.age_s() is None
