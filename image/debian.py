# SPDX-License-Identifier: Apache-2.0
"""Debian packages with all they depend on, fetched by apt and unpacked: none of their scripts runs.

The mirror and the keyring are the machine's; the suite is the image's.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import tarfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from image.contents import SUITE
from tests.testbed import apt
from tests.testbed.cache import Cache, Step, StepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_INDEX_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Deb:
    """A package file as the signed index has it. ``file`` is apt's name for it on disk."""

    name: str
    version: str
    architecture: str
    file: str
    sha256: str


def sources(machine: Iterable[apt.Source], distribution: apt.Distribution) -> str:
    """A .sources file with the image's suite wherever the machine's own is named.

    Raises StepError on a machine without Debian's archive.
    """
    if distribution.id != "debian":
        raise StepError(
            f"image: expected Debian's archive among the machine's sources, found "
            f"{distribution.id}'s; build the image on Debian, or from image/Dockerfile"
        )
    own = re.compile(rf"{re.escape(distribution.codename)}(-updates|-security)?")
    stanzas = [
        apt.rewritten(source, [suite.replace(distribution.codename, SUITE) for suite in found])
        for source in machine
        if (found := [suite for suite in source.suites if own.fullmatch(suite)])
    ]
    if not stanzas:
        raise StepError(
            f"/etc/apt: expected a source with suite {distribution.codename}, found none; the "
            "image takes mirror and keyring from it"
        )
    return "\n".join(stanzas)


class Archive:
    """Debian's archive for one architecture, seen through a configuration below ``root``."""

    def __init__(self, root: Path, architecture: str) -> None:
        self._root = root
        self._options = [
            f"APT::Architecture={architecture}",
            f"APT::Architectures={architecture}",
            "APT::Install-Recommends=false",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            "Dir::Etc::sourcelist=/dev/null",
            f"Dir::Etc::sourceparts={root}/sources.list.d",
            f"Dir::State={root}/state",
            # Nothing is installed, so everything needed is fetched.
            f"Dir::State::status={root}/status",
            f"Dir::Cache={root}/cache",
        ]

    def update(self, text: str, step: Step, *, refresh: bool) -> None:
        """Fetch the index, unless it is less than a day old. Raises StepError."""
        stamp = self._root / "fetched"
        sources_file = self._root / "sources.list.d/image.sources"
        if (
            not refresh
            and stamp.exists()
            and time.time() - stamp.stat().st_mtime < _INDEX_AGE_S
            and sources_file.read_text() == text
        ):
            return
        for path in (
            "sources.list.d",
            "nothing/partial",
            "state/lists/partial",
            "cache/archives/partial",
        ):
            (self._root / path).mkdir(parents=True, exist_ok=True)
        sources_file.write_text(text)
        (self._root / "status").write_text("")
        step.say(f"fetching the index of {SUITE}")
        # A mirror that does not answer must be an error: what it would offer is unknown.
        step.run(self._apt("apt-get", "-o", "APT::Update::Error-Mode=any", "update"))
        stamp.touch()

    def resolve(self, names: Sequence[str]) -> list[Deb]:
        """The packages and all they depend on, by name. Raises StepError."""
        answer = subprocess.run(
            # Elsewhere than where files are kept: what is there already would not be named.
            self._apt(
                *("apt-get", "install", "--yes", "--print-uris", *names),
                *("-o", f"Dir::Cache::archives={self._root}/nothing"),
            ),
            check=False,
            capture_output=True,
            text=True,
        )
        if answer.returncode != 0:
            raise StepError(f"image: apt-get cannot resolve {' '.join(names)}: {answer.stderr}")
        return self._described([line.split()[1] for line in _uris(answer.stdout)])

    def download(self, names: Sequence[str], step: Step) -> Path:
        """Fetch what ``resolve`` named (verified against the index); the directory it is in."""
        step.say(f"downloading {' '.join(names)} and what they depend on")
        step.run(self._apt("apt-get", "install", "--yes", "--download-only", *names))
        return self._root / "cache/archives"

    def _described(self, files: Sequence[str]) -> list[Deb]:
        # apt's own file name: <name>_<version, colons as %3a>_<architecture>.deb
        wanted = {}
        for file in files:
            name, version, _ = file.removesuffix(".deb").split("_")
            wanted[f"{name}={version.replace('%3a', ':')}"] = file
        text = subprocess.run(
            self._apt("apt-cache", "show", *wanted), check=True, capture_output=True, text=True
        ).stdout
        found = {}
        for stanza in text.strip().split("\n\n"):
            fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.MULTILINE))
            key = f"{fields['Package']}={fields['Version']}"
            found[key] = Deb(
                fields["Package"],
                fields["Version"],
                fields["Architecture"],
                wanted[key],
                fields["SHA256"],
            )
        if missing := set(wanted) - set(found):
            raise StepError(f"image: the index does not describe {', '.join(sorted(missing))}")
        return sorted(found.values(), key=lambda deb: deb.name)

    def _apt(self, program: str, *words: str) -> list[str]:
        options = [word for option in self._options for word in ("-o", option)]
        return ["env", "LC_ALL=C", program, "--quiet", *options, *words]


def files(deb: Path) -> Iterator[str]:
    """What a package has besides directories, relative to the root."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        yield from (posixpath.normpath(entry.name) for entry in archive if not entry.isdir())


def open_archive(
    cache: Cache, architecture: str, step: Step, root: Path, *, refresh: bool
) -> Archive:
    """The archive with a fresh index. ``root`` is the machine's. Raises StepError."""
    archive = Archive(cache.root / "apt-image" / architecture, architecture)
    distribution = apt.parse_os_release((root / "etc/os-release").read_text())
    text = sources(apt.machine_sources(root / "etc/apt"), distribution)
    archive.update(text, step, refresh=refresh)
    return archive


def _uris(text: str) -> list[str]:
    """The lines of ``--print-uris``: quoted URI, file name, size, hash."""
    return [line for line in text.splitlines() if line.startswith("'")]
