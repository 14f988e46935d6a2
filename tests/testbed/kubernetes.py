# SPDX-License-Identifier: Apache-2.0
"""A real kubelet and API server, built from Debian's source package, and a runtime beside them.

Everything comes from one Debian release: the last whose `kubernetes` source is whole (later ones
hold kubectl alone), with the Go compiler, containerd and etcd of the same. Nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.testbed import apt
from tests.testbed.cache import Cache, Report, Step, StepError, digest, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUITE = "bookworm"

_RECIPE = "1"
_SOURCE = "kubernetes"
_BUILT = ("kubelet", "kube-apiserver")
_COMPILER = "golang-go"
_UNPACKED = {
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "etcd-server": ("etcd",),
}
"""Programs taken as they are, by package; runc is among the machine's own packages."""

_IMPORT_PATH = "k8s.io/kubernetes"
_STAMPED = f"{_IMPORT_PATH}/vendor/k8s.io/component-base/version"
_GENERATOR = "vendor/k8s.io/kube-openapi/cmd/openapi-gen"
_DESCRIBED = b"+k8s:openapi-gen=true"
_LEFT_OUT = re.compile("/(code-generator|sample-[a-z]+|testdata|generators)/")
_CERTIFICATE_DAYS = 3650


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """`directory` holds the programs, and `server.crt` and `server.key` for 127.0.0.1."""

    directory: Path


def obtainable(os_release: Mapping[str, str]) -> bool:
    """Whether the machine with these fields of os-release has an archive that holds the source."""
    return os_release.get("ID") == "debian"


def ready(cache: Cache) -> Kubernetes | None:
    """What was built before, if it still would be built like that. Asks no network."""
    try:
        versions = json.loads(_record(cache).read_text())
        place = cache.place("kubernetes", SUITE, key({str(k): str(v) for k, v in versions.items()}))
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return Kubernetes(place) if place.is_dir() else None


def prepare(cache: Cache, report: Report, *, refresh: bool = False) -> Kubernetes:
    """Build and unpack all of it unless it is there. Raises StepError.

    An interrupted build goes on where it was: what is compiled already is kept.
    """
    if not refresh and (found := ready(cache)):
        return found
    step = cache.step("kubernetes", report, "kubernetes-packages.log")
    archive = apt.open_archive(
        cache, step, refresh=refresh, name="apt-sources", suites=(SUITE,), types="deb deb-src"
    )
    source = archive.show_source(_SOURCE)
    compiler = _compiler(archive)
    packages = [*compiler, *map(archive.show, _UNPACKED)]
    versions = {one.name: one.version for one in (source, *packages)}
    compiled = cache.root / "kubernetes" / "go-build"

    def make(into: Path, step: Step) -> None:
        download = into / "download"
        wanted = [f"{one.name}={one.version}" for one in packages]
        for file in archive.download(wanted, download, step):
            apt.unpack(file, into / "root", step)
        _take_programs(into)
        description = archive.download_source(source, download, step)
        _tree(into).parent.mkdir(parents=True)
        step.run(["dpkg-source", "--no-check", "-x", description, _tree(into)])
        _build(into, release(source.version), compiled, step)
        for part in (download, into / "root", into / "go"):
            shutil.rmtree(part)
        _certify(into, step)

    place = cache.ensure("kubernetes", SUITE, key(versions), report, make)
    write_whole(_record(cache), json.dumps(versions) + "\n")
    shutil.rmtree(compiled, ignore_errors=True)
    return Kubernetes(place)


def release(version: str) -> str:
    """Kubernetes' own version in a package's: "1.20.5+really1.20.2-1.1" -> "1.20.2"."""
    match = re.match(r"\d+\.\d+\.\d+", version.rpartition("+really")[2])
    if match is None:
        raise StepError(f"package {_SOURCE}: expected a version such as 1.20.2-1, found {version}")
    return match[0]


def _compiler(archive: apt.Archive) -> list[apt.Package]:
    """The release's default compiler and its library."""
    compiler = _one_dependency(archive.show(_COMPILER), r"golang-\d+\.\d+-go", archive)
    return [compiler, _one_dependency(compiler, r"golang-\d+\.\d+-src", archive)]


def _one_dependency(package: apt.Package, pattern: str, archive: apt.Archive) -> apt.Package:
    found = [name for name in package.depends if re.fullmatch(pattern, name)]
    if len(found) != 1:
        raise StepError(
            f"package {package.name}: expected it to depend on one {pattern}, found "
            f"{', '.join(package.depends) or 'no dependency'}"
        )
    return archive.show(found[0])


def _take_programs(into: Path) -> None:
    for package, names in _UNPACKED.items():
        for name in names:
            path = into / "root/usr/bin" / name
            if not path.is_file():
                raise StepError(f"package {package}: expected /usr/bin/{name} in it, found none")
            path.rename(into / name)


def _tree(into: Path) -> Path:
    return into / "go/src" / _IMPORT_PATH


def _build(into: Path, version: str, compiled: Path, step: Step) -> None:
    roots = sorted((into / "root/usr/lib").glob("go-*"))
    if len(roots) != 1:
        raise StepError(f"{into / 'root/usr/lib'}: expected one go-*, found {len(roots)}")
    tree = _tree(into)
    environment = {
        # The tree vendors all it imports: nothing is fetched.
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPATH": str(into / "go"),
        "GOROOT": str(roots[0]),
        "GOCACHE": str(compiled),
        "CGO_ENABLED": "0",
    }
    major, minor, _ = version.split(".")
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X {_STAMPED}.{key}={text}" for key, text in stamps.items())])
    build: list[str | Path] = [
        "nice",
        roots[0] / "bin/go",
        "build",
        "-v",
        "-trimpath",
        "-ldflags",
        flags,
    ]
    generator = into / "openapi-gen"
    step.say("generating the API's description")
    step.run([*build, "-o", generator, _import_path(_GENERATOR)], cwd=tree, env=environment)
    step.run(
        [
            *(generator, "--output-file-base=zz_generated.openapi"),
            f"--go-header-file={tree / 'hack/boilerplate/boilerplate.generatego.txt'}",
            f"--input-dirs={','.join(map(_import_path, described(tree)))}",
            f"--output-package={_import_path('pkg/generated/openapi')}",
            *(f"--output-base={into / 'go/src'}", f"--report-filename={into / 'go/report'}"),
        ],
        cwd=tree,
        env={**environment, "PATH": f"{roots[0] / 'bin'}:{os.environ['PATH']}"},
    )
    generator.unlink()
    for name in _BUILT:
        step.say(f"compiling {name} {version}")
        step.run(
            [*build, "-o", into / name, _import_path(f"cmd/{name}")], cwd=tree, env=environment
        )


def described(tree: Path) -> list[str]:
    """The packages, relative to the tree, whose types the API server describes to its clients."""
    found = set()
    for top in ("pkg", "staging/src"):
        for path in (tree / top).rglob("*.go"):
            package = str(path.parent.relative_to(tree))
            if _LEFT_OUT.search(f"{package}/") or _DESCRIBED not in path.read_bytes():
                continue
            # Those of other repositories are imported from where they are vendored.
            found.add(package.replace("staging/src/", "vendor/"))
    return sorted(found)


def _import_path(package: str) -> str:
    return f"{_IMPORT_PATH}/{package}"


def _certify(into: Path, step: Step) -> None:
    """A certificate made here: making one in the emulated machine takes it half a minute."""
    step.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
            *("-keyout", into / "server.key", "-out", into / "server.crt"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-days", str(_CERTIFICATE_DAYS)),
        ]
    )


def key(versions: Mapping[str, str]) -> str:
    """Of what is built from packages of these versions, by name."""
    return digest(_RECIPE, *(f"{name}={version}" for name, version in sorted(versions.items())))


def _record(cache: Cache) -> Path:
    return cache.root / "kubernetes" / "versions.json"
