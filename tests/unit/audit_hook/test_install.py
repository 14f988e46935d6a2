# SPDX-License-Identifier: Apache-2.0
"""The hook is installed whole or not at all, and beside what pods have mounted."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from audit_hook import install as install_module
from audit_hook.install import CURRENT, InstallError, install, main, version_of

TREE = Path(__file__).resolve().parents[3]
NAMES = ("libringfence-audit.so", "libringfence-hsa.so")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real objects."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("needs a C compiler and make")
    out = tmp_path_factory.mktemp("objects")
    subprocess.run(
        ["make", "-s", "-C", TREE / "audit_hook", f"OUT={out}", f"PYTHON={sys.executable}"],
        check=True,
    )
    return out


@pytest.fixture
def other(built: Path, tmp_path: Path) -> Path:
    """Another version: the same objects, longer."""
    directory = tmp_path / "other"
    directory.mkdir()
    for name in NAMES:
        (directory / name).write_bytes((built / name).read_bytes() + b"\0")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in NAMES}


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob(".*"))


def test_a_version_is_installed_and_becomes_current(built: Path, tmp_path: Path) -> None:
    top = tmp_path / "a" / "hook"
    where = install(built, top)
    assert contents(top / CURRENT) == contents(where) == contents(built)
    assert (top / CURRENT).readlink() == Path(where.name)
    assert where.name == version_of(contents(built))
    assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o644}
    assert where.stat().st_mode & 0o777 == 0o755
    assert leftovers(top) == []


def test_the_same_version_again_changes_no_file(built: Path, tmp_path: Path) -> None:
    where = install(built, tmp_path / "hook")
    before = {path.name: path.stat().st_ino for path in where.iterdir()}
    assert install(built, tmp_path / "hook") == where
    assert {path.name: path.stat().st_ino for path in where.iterdir()} == before


def test_two_versions_stay_side_by_side(built: Path, other: Path, tmp_path: Path) -> None:
    old, new = install(built, tmp_path / "hook"), install(other, tmp_path / "hook")
    assert old != new
    assert contents(old) == contents(built)
    assert contents(tmp_path / "hook" / CURRENT) == contents(other)
    # And back again.
    install(built, tmp_path / "hook")
    assert contents(tmp_path / "hook" / CURRENT) == contents(built)
    assert contents(new) == contents(other)


def test_a_mapped_object_stays_what_it_was_when_damage_is_mended(
    built: Path, tmp_path: Path
) -> None:
    where = install(built, tmp_path / "hook")
    path = where / NAMES[0]
    with path.open("rb") as mapped:
        path.chmod(0o600)
        install(built, tmp_path / "hook")
        assert os.fstat(mapped.fileno()).st_nlink == 0
        assert mapped.read() == (built / NAMES[0]).read_bytes()
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("damage", ["cut", "link", "gone", "longer"])
def test_a_damaged_version_is_mended(built: Path, tmp_path: Path, damage: str) -> None:
    where = install(built, tmp_path / "hook")
    path = where / NAMES[1]
    whole = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(whole[:100])
    elif damage == "longer":
        path.write_bytes(whole + b"x")
    elif damage == "link":
        path.symlink_to("/etc/passwd")
    install(built, tmp_path / "hook")
    assert contents(where) == contents(built)
    assert not path.is_symlink()


def test_what_an_ended_install_left_is_no_obstacle(built: Path, tmp_path: Path) -> None:
    top = tmp_path / "hook"
    version = top / version_of(contents(built))
    version.mkdir(parents=True)
    (version / f".{NAMES[0]}.new").write_bytes(b"half")
    (top / f".{CURRENT}.new").symlink_to("nowhere")
    install(built, top)
    assert contents(top / CURRENT) == contents(built)
    assert leftovers(top) == []


def test_a_full_disk_leaves_the_version_before_and_nothing_half(
    built: Path, other: Path, tmp_path: Path
) -> None:
    old = install(built, tmp_path / "hook")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses to write on, as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(InstallError, match="was not installed: File too large; expected"):
            install(other, tmp_path / "hook")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path / "hook" / CURRENT) == contents(old)
    assert leftovers(tmp_path / "hook") == []


@pytest.mark.parametrize("obstacle", ["file", "link", "dangling"])
def test_what_is_no_directory_is_refused_by_name(
    built: Path, tmp_path: Path, obstacle: str
) -> None:
    top = tmp_path / "hook"
    if obstacle == "file":
        top.write_text("")
    else:
        top.symlink_to(tmp_path if obstacle == "link" else "/nonexistent")
    with pytest.raises(InstallError, match=f"^{top}: the hook's version .* was not installed: "):
        install(built, top)
    assert list(tmp_path.glob("*/current")) == []


def test_without_the_right_to_write_it_says_so(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read while we may: the checkout can lie where only root gets to.
    rules = install_module._rules()
    monkeypatch.setattr(install_module, "_rules", lambda: rules)
    top = tmp_path / "hook"
    top.mkdir()
    top.chmod(0o555)
    # As deep as pytest makes them, by itself or as one of several.
    ours = (above for above in tmp_path.parents if above.name.startswith(("pytest-", "popen-")))
    for directory in (tmp_path, *ours, built, built.parent):
        directory.chmod(0o755)
    own = os.geteuid()
    if own == 0:
        # Root may write anywhere.
        os.seteuid(65534)
    try:
        with pytest.raises(InstallError, match="was not installed: Permission denied; expected"):
            install(built, top)
    finally:
        os.seteuid(own)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "No such file or directory; `make -C audit_hook` builds it"),
        (lambda path: path.write_bytes(b"no object"), "expected an ELF file"),
        (lambda path: shutil.copy(path.parent / NAMES[0], path), "its name is libringfence-audit"),
    ],
)
def test_what_is_not_the_hook_is_not_installed(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: object, reason: str
) -> None:
    source = shutil.copytree(built, tmp_path / "source")
    assert callable(spoil)
    spoil(source / NAMES[1])
    assert main([str(source), str(tmp_path / "hook")]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert str(source / NAMES[1]) in error
    assert not (tmp_path / "hook").exists()


def test_two_at_once_leave_one_whole_version(built: Path, other: Path, tmp_path: Path) -> None:
    top = tmp_path / "hook"
    sources = [built, other] * 8
    threads = [threading.Thread(target=install, args=(source, top)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert contents(top / CURRENT) in (contents(built), contents(other))
    assert len([path for path in top.iterdir() if path.name != CURRENT]) == 2
    assert leftovers(top) == []


def test_the_command_says_where_it_installed(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(built), str(tmp_path / "hook")]) == 0
    assert Path(capsys.readouterr().out.strip()).is_dir()
