# SPDX-License-Identifier: Apache-2.0
"""Packages of other suites, through an APT configuration of our own: the machine's stays as it is.

Mirror and keyring are the machine's. Which versions exist is asked, never assumed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.cache import Cache, Step, StepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INDEX_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Source:
    """One archive a machine gets packages from. `signed_by` is a path, a key block, or empty."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What /etc/os-release says: `id` is debian or ubuntu, `codename` that of the release."""

    id: str
    codename: str


def parse_os_release(text: str) -> Distribution:
    """Raises StepError for a distribution the testbed has no packages for."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {name: "".join(shlex.split(value)) for name, value in fields.items()}
    found = Distribution(values.get("ID", "unknown"), values.get("VERSION_CODENAME", ""))
    if found.id not in ("debian", "ubuntu") or not found.codename:
        raise StepError(
            f"/etc/os-release: expected Debian 12 or 13 or Ubuntu 24.04, found "
            f"{values.get('PRETTY_NAME', found.id)}; the testbed has no package list for it"
        )
    return found


def parse_deb822(text: str) -> list[Source]:
    """The enabled binary sources of a .sources file (sources.list(5), deb822 style)."""
    sources = []
    for stanza in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").strip().lower() in ("no", "false", "0"):
            continue
        sources.append(
            Source(
                tuple(fields.get("uris", "").split()),
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", "").strip("\n"),
            )
        )
    return [source for source in sources if source.uris and source.suites]


def parse_one_line(text: str) -> list[Source]:
    """The binary sources of a .list file: `deb [options] uri suite component...`."""
    sources = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)([^#]*)", line)
        if match is None:
            continue
        options, uri, suite, components = match.groups()
        named = dict(word.split("=", 1) for word in (options or "").split() if "=" in word)
        sources.append(
            Source((uri,), (suite,), tuple(components.split()), named.get("signed-by", ""))
        )
    return sources


def machine_sources(etc_apt: Path) -> list[Source]:
    """Every source the machine uses, from both kinds of file."""
    sources: list[Source] = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".list" and path.is_file():
            sources += parse_one_line(path.read_text(errors="replace"))
        elif path.suffix == ".sources" and path.is_file():
            sources += parse_deb822(path.read_text(errors="replace"))
    return sources


def distribution_source(sources: Iterable[Source], distribution: Distribution) -> Source:
    """The machine's source of the distribution itself, from which other suites are reached.

    Raises StepError if there is none.
    """
    for source in sources:
        if "main" in source.components and distribution.codename in source.suites:
            return source
    raise StepError(
        f"/etc/apt: expected a source with suite {distribution.codename} and component main, found "
        "none; the testbed takes mirror and keyring from it"
    )


def rewritten(source: Source, suites: Sequence[str], types: str = "deb") -> str:
    """A .sources file: the same archive and keyring, other suites, packages of `main`."""
    lines = [
        f"Types: {types}",
        f"URIs: {' '.join(source.uris)}",
        f"Suites: {' '.join(suites)}",
        "Components: main",
    ]
    if source.signed_by:
        lines.append(f"Signed-By: {source.signed_by}")
    return "".join(f"{line}\n" for line in lines)


def suites_in_reach(distribution: Distribution) -> tuple[str, ...]:
    """Suites of the same archive that hold the kernels wanted.

    Debian: 6.1 is bookworm's, 6.12 trixie's, and trixie-backports and sid have the newest. Ubuntu:
    its own release only (a release there has several kernel lines).
    """
    if distribution.id == "debian":
        return ("bookworm", "trixie", "trixie-backports", "sid")
    return (distribution.codename, f"{distribution.codename}-updates")


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "6.1.0-31-amd64" -> (6, 1, 0, 31)."""
    match = re.match(r"\d+(?:[.-]\d+)*", text)
    return tuple(int(part) for part in re.split("[.-]", match[0])) if match else ()


def newest(
    names: Iterable[str],
    pattern: str,
    *,
    at_least: tuple[int, ...] = (),
    below: tuple[int, ...] | None = None,
    line: tuple[int, ...] = (),
) -> str | None:
    """The package with the highest version in its name, None if there is none.

    `pattern` must match the whole name and has one group, the version. `line` demands that the
    version begins with these numbers, `at_least` that it is not lower, `below` that it is.
    """
    best: tuple[tuple[int, ...], str] | None = None
    for name in names:
        match = re.fullmatch(pattern, name)
        if match is None:
            continue
        version = numbers(match[1])
        if version < at_least or version[: len(line)] != line:
            continue
        if below is not None and version >= below:
            continue
        best = max(best, (version, name)) if best else (version, name)
    return best[1] if best else None


@dataclass(frozen=True, slots=True)
class Package:
    """A package as the index has it."""

    name: str
    version: str
    depends: tuple[str, ...]


def parse_package(text: str) -> Package:
    """One stanza as `apt-cache show` prints it. Of alternatives the first is taken."""
    fields = _fields(text.split("\n\n", 1)[0])
    depends = tuple(
        re.split(r"[\s:(|]", entry.strip(), maxsplit=1)[0]
        for entry in fields.get("depends", "").split(",")
        if entry.strip()
    )
    return Package(fields["package"].strip(), fields["version"].strip(), depends)


@dataclass(frozen=True, slots=True)
class Archive:
    """The distribution's archive, seen through a private configuration below `root`."""

    root: Path

    def names(self, pattern: str) -> list[str]:
        """Package names that match an extended regular expression, from the stored index."""
        found = self._cache("search", "--names-only", pattern)
        return [line.split(" ", 1)[0] for line in found.splitlines()]

    def show(self, name: str) -> Package:
        """The candidate version of a package. Raises StepError if the index has none."""
        text = self._cache("show", "--no-all-versions", name)
        if not text:
            raise StepError(f"package {name}: not in the archive's index")
        return parse_package(text)

    def show_source(self, name: str) -> Package:
        """A source package; `depends` is empty. Raises StepError if the index has none."""
        text = self._cache("showsrc", "--only-source", name)
        if not text:
            raise StepError(f"source package {name}: not in the archive's index")
        return parse_package(text)

    def download_source(self, package: Package, into: Path, step: Step) -> Path:
        """Fetch a source package (verified against the signed index); its .dsc file."""
        into.mkdir(parents=True, exist_ok=True)
        wanted = f"{package.name}={package.version}"
        step.say(f"downloading the source of {wanted}")
        fetch = ["apt-get", "source", "--download-only", "--only-source", wanted]
        step.run(fetch, cwd=into, env=self._environment())
        return _file_of(into, package.name, "dsc")

    def download_original(self, package: Package, into: Path, step: Step) -> Path:
        """Fetch a source as its authors released it, without the distribution's changes."""
        into.mkdir(parents=True, exist_ok=True)
        wanted = f"{package.name}={package.version}"
        step.say(f"downloading the original source of {wanted}")
        fetch = ["apt-get", "source", "--download-only", "--only-source", "--tar-only", wanted]
        step.run(fetch, cwd=into, env=self._environment())
        return _file_of(into, package.name, "orig.tar.*")

    def download(self, names: Sequence[str], into: Path, step: Step) -> list[Path]:
        """Fetch packages (verified against the signed index) without installing them."""
        into.mkdir(parents=True, exist_ok=True)
        step.say(f"downloading {' '.join(names)}")
        try:
            step.run(["apt-get", "download", *names], cwd=into, env=self._environment())
        except StepError as error:
            raise StepError(
                f"{error}\n    if the archive has newer versions by now: "
                "tests/testbed/prepare --refresh kernel stock"
            ) from error
        return [_file_of(into, name.partition("=")[0]) for name in names]

    def age_s(self) -> float | None:
        """Seconds since the index was fetched, None if it never was."""
        try:
            return time.time() - (self.root / "fetched").stat().st_mtime
        except FileNotFoundError:
            return None

    def fetch_index(self, source: str, step: Step) -> None:
        """Write the configuration and fetch the index of every suite that the mirror has.

        Raises StepError if there is none, neither fetched now nor before.
        """
        parts = self.root / "sources.list.d"
        for path in (parts, self.root / "lists" / "partial", self.root / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        (parts / "testbed.sources").write_text(source)
        (self.root / "apt.conf").write_text(_configuration(self.root))
        step.say("fetching the package index of other suites")
        try:
            step.run(["apt-get", "update"], env=self._environment())
        except StepError as error:
            # A mirror may lack one suite; whether what we want is there shows when it is asked for.
            step.say(f"not every suite could be fetched: {str(error).splitlines()[-1].strip()}")
        # apt-get takes a mirror that does not answer for a warning.
        if not any((self.root / "lists").glob("*_Packages*")):
            raise StepError(
                f"{step.name}: expected the package index of a suite, found none at the mirror; "
                f"does `apt-get update` work here? What it said is in {step.log}"
            )
        (self.root / "fetched").touch()

    def _environment(self) -> dict[str, str]:
        return {"APT_CONFIG": str(self.root / "apt.conf"), "LC_ALL": "C"}

    def _cache(self, *words: str) -> str:
        return subprocess.run(
            ["apt-cache", *words],
            env={**os.environ, **self._environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            text=True,
        ).stdout


def open_archive(
    cache: Cache,
    step: Step,
    *,
    refresh: bool,
    root: Path = Path("/"),
    name: str = "apt",
    suites: Sequence[str] = (),
    types: str = "deb",
) -> Archive:
    """The machine's archive with an index no older than a day, or fetched now if `refresh`.

    `suites` are others than the kernels' own, in an index of that `name`; `types` "deb deb-src" has
    their source packages too.
    """
    if shutil.which("apt-get") is None:
        raise StepError("apt-get is not there: the testbed needs Debian or Ubuntu")
    archive = Archive(cache.root / name)
    with cache.lock(name, step) as holding:
        age = archive.age_s()
        if refresh or age is None or age > _INDEX_AGE_S:
            distribution = parse_os_release((root / "etc/os-release").read_text())
            source = distribution_source(machine_sources(root / "etc/apt"), distribution)
            wanted = suites or suites_in_reach(distribution)
            archive.fetch_index(rewritten(source, wanted, types), holding)
    return archive


def unpack(package: Path, into: Path, step: Step) -> None:
    """The files of a package, below `into`. Nothing is installed, no script runs."""
    into.mkdir(parents=True, exist_ok=True)
    step.run(["dpkg-deb", "--extract", package, into])


def _configuration(root: Path) -> str:
    """The sandbox user of APT could not read a cache in a home directory."""
    options: Mapping[str, str] = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{root}/sources.list.d",
        "Dir::State::lists": f"{root}/lists",
        "Dir::Cache": str(root),
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return "".join(f'{name} "{value}";\n' for name, value in options.items())


def _fields(stanza: str) -> dict[str, str]:
    """The fields of one deb822 stanza, names in lower case, continuation lines kept."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.split("\n"):
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t"):
            if name:
                fields[name] += "\n" + line
            continue
        key, colon, value = line.partition(":")
        if colon:
            name = key.strip().lower()
            fields[name] = value.strip()
    return fields


def _file_of(directory: Path, name: str, kind: str = "deb") -> Path:
    found = sorted(directory.glob(f"{name}_*.{kind}"))
    if len(found) != 1:
        raise StepError(f"{directory}: expected one file {name}_*.{kind}, found {len(found)}")
    return found[0]
