# SPDX-License-Identifier: Apache-2.0
"""`make image`: builds the image and its bill of materials."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from image import contents, debian, layer, python, sbom
from image.contents import ARCHITECTURES, COPYRIGHT, PYTHON, SITE, SUITE, left_out, packages
from image.layer import read_layer, write_layer
from image.oci import write_archive
from tests.testbed.cache import Cache, Report, Step, StepError, digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image.contents import Architecture

PROJECT = Path(__file__).resolve().parents[1]
REPOSITORY = "localhost/ringfence"
"""As in the chart's values: nobody else can publish under it."""

_RECIPE = "3"
_KEPT = "kept"
_LOWER = ("base.tar.gz", "wheels.tar.gz")
_BILL = "usr/share/ringfence/sbom.spdx.json"
_HOOK = "usr/share/ringfence/hook"
"""Where the chart finds the hook's objects, whatever the version of Python."""
_COMMAND = "usr/local/bin/ringfence"
_SCRIPT = """\
#!/usr/bin/python3 -I
import sys

from enforcer.cli import main

sys.exit(main())
"""
_ETC = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532::/:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True)
class Release:
    """What is built of these sources."""

    version: str = ""
    """That of the wheel; empty: the project's."""
    optimise: str = "-O2"
    """The level that its programs and libraries are compiled at."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a build leaves: the archive, its digest, the bill of materials, bytes when unpacked."""

    archive: Path
    digest: str
    bill: Path
    unpacked: int


def build(
    cache: Cache,
    report: Report,
    out: Path,
    *,
    architecture: str = "amd64",
    flavour: str = "",
    release: Release = Release(),
    refresh: bool = False,
) -> Built:
    """Build one image into ``out``. Raises StepError.

    The tag is the release's version with the flavour.
    """
    arch = ARCHITECTURES[architecture]
    version = release.version or _version()
    tag = f"{version}-{flavour}" if flavour else version
    epoch = _epoch()
    with cache.lock("image", cache.step("image", report, "image.log")) as step:
        step.log.write_bytes(b"")
        archive = debian.open_archive(cache, architecture, step, Path("/"), refresh=refresh)
        debs = archive.resolve(packages(flavour))
        base = _base(cache, report, archive, debs, arch, flavour)
        kept = set((base / _KEPT).read_text().split())
        with tempfile.TemporaryDirectory(dir=cache.root, prefix=".image.") as name:
            work = Path(name)
            root = work / "root"
            shutil.copytree(base / "root", root, symlinks=True, copy_function=os.link)
            wheel = python.build_wheel(PROJECT, work, arch, version, release.optimise, epoch, step)
            python.install_ours(root, wheel)
            _write(root / _COMMAND, _SCRIPT, 0o755)
            _link(root / _HOOK, f"/{SITE}/audit_hook")
            if _runs(arch):
                python.compile_all(root, [f"{SITE}/{name}" for name in python.SOURCES], step)
            bill = sbom.document(
                f"ringfence-{tag}-{architecture}",
                [deb for deb in debs if deb.name in kept],
                [sbom.Distribution(*one) for one in python.distributions(root)],
                SUITE,
                epoch,
            )
            text = json.dumps(bill, indent=1) + "\n"
            _write(root / _BILL, text, 0o644)
            ours = write_layer(
                root, work / "ours.tar.gz", epoch, lambda path: not _ours(path) or left_out(path)
            )
            layers = [*(read_layer(base / name) for name in _LOWER), ours]
            out.mkdir(parents=True, exist_ok=True)
            target = out / f"ringfence-{tag}-{architecture}.tar"
            partial = target.with_name(f".{target.name}")
            found = write_archive(
                partial,
                layers,
                _config(arch, epoch),
                f"{REPOSITORY}:{tag}",
                {
                    "org.opencontainers.image.title": "ringfence",
                    "org.opencontainers.image.version": tag,
                    "org.opencontainers.image.licenses": "Apache-2.0 AND GPL-2.0-only",
                },
            )
            partial.rename(target)
            bill_path = target.with_suffix(".spdx.json")
            bill_path.write_text(text)
    return Built(target, found, bill_path, sum(one.unpacked for one in layers))


def _base(
    cache: Cache,
    report: Report,
    archive: debian.Archive,
    debs: Sequence[debian.Deb],
    arch: Architecture,
    flavour: str,
) -> Path:
    """The Debian packages, unpacked in root/; made again when a version or the list changes."""

    def make(into: Path, step: Step) -> None:
        files = archive.download(packages(flavour), step)
        root = into / "root"
        kept = []
        # Its links (/lib -> usr/lib) must be there before anything is put behind them.
        for deb in sorted(debs, key=lambda deb: (deb.name != "base-files", deb.name)):
            file = files / deb.file
            names = list(debian.files(file))
            if all(left_out(name) or name.startswith(COPYRIGHT) for name in names):
                continue
            step.run(["dpkg-deb", "--extract", file, root])
            kept.append(deb.name)
        (into / _KEPT).write_text("\n".join(kept))
        for name, text in _ETC.items():
            _write(root / name, text, 0o644)
        _prune(root)
        python.install_locked(root, arch, step)
        if _runs(arch):
            python.compile_all(root, [f"usr/lib/python{PYTHON}", SITE], step)
        step.say("writing the lower layers")
        # Nothing of them depends on our commits, their dates neither: a node that has them fetches
        # only the layer on top.
        base, wheels = (into / name for name in _LOWER)
        write_layer(root, base, 0, lambda path: path.startswith(f"{SITE}/") or left_out(path))
        write_layer(root, wheels, 0, lambda path: not path.startswith(f"{SITE}/") or left_out(path))

    recipe = [Path(module.__file__ or "").read_text() for module in (contents, layer)]
    key = digest(_RECIPE, *recipe, repr(debs), python.LOCK.read_text())
    return cache.ensure("image-base", f"{arch.debian}{flavour}", key, report, make)


def _prune(root: Path) -> None:
    """Away with what no layer will have, and with the directories that leaves empty."""
    for path in [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]:
        if not left_out(str(path.relative_to(root))):
            continue
        path.unlink()
        for parent in path.parents:
            if parent == root or any(parent.iterdir()):
                break
            parent.rmdir()


def _ours(path: str) -> bool:
    tops = [f"{SITE}/{name}" for name in (*python.SOURCES, "ringfence-")]
    return path.startswith((*tops, _COMMAND, _BILL, _HOOK))


def _runs(arch: Architecture) -> bool:
    return platform.machine() == arch.machine


def _config(arch: Architecture, epoch: int) -> Mapping[str, Any]:
    return {
        "architecture": arch.debian,
        "os": "linux",
        "created": sbom.date(epoch),
        "config": {
            # What the chart runs as root says so itself: the kubelet's directories are root's.
            "User": "65532:65532",
            "Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1"],
            "Entrypoint": ["ringfence"],
            "WorkingDir": "/",
        },
    }


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _version() -> str:
    table = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return str(table["project"]["version"])


def _epoch() -> int:
    """SOURCE_DATE_EPOCH, or the last commit's time, or that of the version's file."""
    if named := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(named)
    answer = subprocess.run(
        ["git", "-C", PROJECT, "log", "-1", "--format=%ct"],
        check=False,
        capture_output=True,
        text=True,
    )
    if answer.returncode == 0 and answer.stdout.strip():
        return int(answer.stdout)
    return int((PROJECT / "pyproject.toml").stat().st_mtime)


def main(argv: Sequence[str]) -> int:
    """Build what was asked for; one line for each result."""
    options = argparse.ArgumentParser(prog="python -m image", description=__doc__)
    options.add_argument("--arch", choices=ARCHITECTURES, default="amd64")
    options.add_argument("--debug", action="store_true", help="with a shell and BCC's compiler")
    options.add_argument("--out", type=Path, default=PROJECT / "dist", help="default dist/")
    options.add_argument("--release", default="", help="default: the project's version")
    options.add_argument("--refresh", action="store_true", help="look for newer packages")
    chosen = options.parse_args(argv)
    # Modes are part of the image.
    os.umask(0o022)
    cache = Cache.from_environment(os.environ)
    try:
        built = build(
            cache,
            Report(),
            chosen.out,
            architecture=chosen.arch,
            flavour="debug" if chosen.debug else "",
            release=Release(chosen.release),
            refresh=chosen.refresh,
        )
    except (StepError, OSError, ValueError) as error:
        print(f"make image: {error}", file=sys.stderr)
        return 1
    mib = 1 << 20
    print(f"{built.archive}  {built.archive.stat().st_size / mib:.1f} MiB, "
          f"{built.unpacked / mib:.1f} MiB unpacked, {built.digest}")  # fmt: skip
    print(built.bill)
    return 0
