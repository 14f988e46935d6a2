# SPDX-License-Identifier: Apache-2.0
"""The build lets no object out that an image could fail to load."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import time
from struct import pack_into
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings

from audit_hook import check
from audit_hook import image as audit_image
from audit_hook.check import Rule, auditor_rule, main
from audit_hook.image import Libc, glibc_version, inspect_image
from tests.hook.fuzz import elf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RULE = Rule("libx.so", frozenset({"f"}), frozenset({"libc.so.6"}), (2, 17))
GOOD = 'int getpid(void); __attribute__((visibility("default"))) int f(void) { return getpid(); }'


class Garbled:
    """A good object, and where a spoilt copy goes; its repr stays short in a failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.original = path.read_bytes()


def build(directory: Path, source: str, *flags: str) -> Path:
    code = directory / "x.c"
    code.write_text(source)
    out = directory / "libx.so"
    subprocess.run(
        ["cc", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libx.so",
         "-Wl,-z,noexecstack", code, *flags, "-o", out],
        check=True,
    )  # fmt: skip
    return out


def found(path: Path, rule: Rule = RULE) -> list[str]:
    return check.problems(check.read_elf(path), rule)


def test_a_fit_object_passes(tmp_path: Path) -> None:
    assert found(build(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("source", "flags", "expected"),
    [
        (GOOD, ["-Wl,-soname,liby.so"], "its name is liby.so, expected libx.so"),
        (GOOD, ["-Wl,--no-as-needed", "-lm"], "needs libm.so.6: an image may not have it"),
        (
            f"int pthread_once(void*,void*); int g(void) {{ return pthread_once(0,0); }} {GOOD}",
            [],
            "asks for GLIBC_2.34, expected at most GLIBC_2.17",
        ),
        (f"__thread int t; int *g(void) {{ return &t; }} {GOOD}", [], "thread-local storage"),
        (
            f'__attribute__((visibility("default"))) int extra; {GOOD}',
            [],
            "exports extra, which exports.map does not",
        ),
        ("static int g;", [], "does not export f"),
        (GOOD, ["-Wl,-z,execstack"], "asks for an executable stack"),
        (GOOD, ["-nostdlib", "-Wl,-N"], "has code that can be written"),
    ],
)
def test_an_unfit_object_is_named_with_its_reason(
    tmp_path: Path, source: str, flags: list[str], expected: str
) -> None:
    assert any(expected in problem for problem in found(build(tmp_path, source, *flags)))


def test_an_auditor_may_leave_nothing_undefined(tmp_path: Path) -> None:
    source = "int hidden_need(void); " + "".join(
        f'__attribute__((visibility("default"))) int {name}(void) {{ return hidden_need(); }}'
        for name in sorted(auditor_rule().exports)
    )
    out = build(tmp_path, source, "-nostdlib", "-Wl,-soname,libringfence-audit.so")
    assert found(out, auditor_rule()) == ["leaves hidden_need undefined"]


def test_the_commands_exit_says_whether_an_object_is_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = build(tmp_path, GOOD)
    assert main(["tool", str(out)]) == 1
    assert f"{out}: its name is libx.so" in capsys.readouterr().err
    out.write_text("no ELF file")
    assert main(["tool", str(out)]) == 1
    assert "expected an ELF file" in capsys.readouterr().err
    assert main(["tool", str(tmp_path / "absent")]) == 1
    assert "absent" in capsys.readouterr().err


def test_a_version_script_without_globals_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "exports.map"
    script.write_text("{ local: *; };")
    with pytest.raises(ValueError, match=r"exports\.map"):
        check.exports_of(script)


@settings(deadline=None, max_examples=500)
@given(elf.CHANGES)
def test_a_garbled_object_is_an_error_and_not_a_crash(
    garbled: Garbled, changes: elf.Changes
) -> None:
    elf.read(garbled.path, elf.spoilt(garbled.original, changes))


@pytest.mark.parametrize(
    "spoil",
    [
        # Elf64_Verneed: the next one is itself.
        lambda raw, elf: pack_into(
            "<I", raw, elf.get_section_by_name(".gnu.version_r")["sh_offset"] + 12, 0
        ),
        # Elf64_Ehdr, number of sections: 0 says that the size of the first one is it.
        lambda raw, elf: pack_into("<H", raw, 60, 0),
    ],
    ids=["versions", "sections"],
)
def test_a_number_beyond_the_file_is_an_error_at_once(
    tmp_path: Path, spoil: Callable[[bytearray, Any], None]
) -> None:
    out = build(tmp_path, GOOD)
    raw = bytearray(out.read_bytes())
    elf = ELFFile(io.BytesIO(bytes(raw)))
    header = elf["e_shoff"]
    for number, section in enumerate(elf.iter_sections()):
        # Elf64_Shdr: sh_size at 32, sh_info at 44.
        if section.name == ".gnu.version_r":
            pack_into("<I", raw, header + number * 64 + 44, 0xFFFFFFFF)
    pack_into("<Q", raw, header + 32, 1 << 40)
    spoil(raw, elf)
    out.write_bytes(raw)
    with pytest.raises(ValueError, match="than it has room for"):
        check.read_elf(out)


@pytest.fixture(scope="module")
def garbled(tmp_path_factory: pytest.TempPathFactory) -> Garbled:
    """An object to spoil."""
    return Garbled(build(tmp_path_factory.mktemp("garbled"), GOOD))


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        (b"GNU C Library (Debian GLIBC 2.36-9+deb12u9) stable release version 2.36.\n", (2, 36)),
        (b"GNU C Library (Ubuntu GLIBC 2.31-0ubuntu9.9) stable release version 2.31.\n", (2, 31)),
        (b"GNU C Library (GNU libc) development release version 2.42.9000.\n", (2, 42)),
        (b"GNU C Library\nstable release version 2.36.\n", None),
        (b"musl libc", None),
    ],
)
def test_the_glibc_release_is_read_from_its_banner(
    banner: bytes, version: tuple[int, int] | None
) -> None:
    assert glibc_version(b"\0\x7f" + banner + b"\0") == version


def image(root: Path, banner: str | None, loader: bytes = b"", *others: str) -> Path:
    lib = root / "usr" / "lib" / "x86_64-linux-gnu"
    lib.mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    if banner is not None:
        text = f"GNU C Library (X) stable release version {banner}.\n"
        (lib / "libc-real.so").write_text(text)
        # An absolute link is one of the image, not of the node.
        (lib / "libc.so.6").symlink_to("/usr/lib/x86_64-linux-gnu/libc-real.so")
        (lib / "ld-linux-x86-64.so.2").write_bytes(loader)
    for name in others:
        (lib.parent / name).write_bytes(b"")
    return root


@pytest.mark.parametrize(
    ("banner", "loader", "auditor", "tool"),
    [
        ("2.36", b"", True, True),
        ("2.35", b"", True, True),
        ("2.34", b"\0_dl_audit_symbind_alt\0", True, True),
        ("2.34", b"", False, True),
        ("2.31", b"", False, True),
        ("2.17", b"", False, True),
        ("2.12", b"", False, False),
    ],
)
def test_an_images_glibc_says_which_part_loads(
    tmp_path: Path, banner: str, loader: bytes, auditor: bool, tool: bool
) -> None:
    result = inspect_image(image(tmp_path, banner, loader))
    assert result.libc is Libc.GLIBC
    assert (result.auditor_loads, result.tool_loads) == (auditor, tool)


def test_an_image_with_jemalloc_is_told_of_the_tunable(tmp_path: Path) -> None:
    result = inspect_image(image(tmp_path, "2.36", b"", "libjemalloc.so.2"))
    assert any("optional_static_tls" in note for note in result.notes)


def test_an_old_image_with_jemalloc_is_told_to_do_without_the_auditor(tmp_path: Path) -> None:
    result = inspect_image(image(tmp_path, "2.31", b"", "libjemalloc.so.2"))
    assert any('set LD_AUDIT=""' in note for note in result.notes)


def test_musl_and_static_images_are_told_apart(tmp_path: Path) -> None:
    musl = inspect_image(image(tmp_path / "musl", None, b"", "ld-musl-x86_64.so.1"))
    assert (musl.libc, musl.auditor_loads, musl.tool_loads) == (Libc.MUSL, False, False)
    static = inspect_image(image(tmp_path / "static", None))
    assert (static.libc, static.auditor_loads, static.tool_loads) == (Libc.NONE, False, False)


def test_links_of_an_image_do_not_lead_to_the_node(tmp_path: Path) -> None:
    root = image(tmp_path / "image", None)
    lib = root / "usr" / "lib" / "x86_64-linux-gnu"
    (tmp_path / "outside").write_text("GNU C Library (X) stable release version 2.36.\n")
    (lib / "libc.so.6").symlink_to("../../../../outside")
    assert inspect_image(root).libc is Libc.NONE
    (root / "lib64").symlink_to(tmp_path)
    (tmp_path / "libc.so.6").write_text("GNU C Library (X) stable release version 2.36.\n")
    assert inspect_image(root).libc is Libc.NONE
    (lib / "libc.so.6").unlink()
    (lib / "libc.so.6").symlink_to("libc.so.6")
    assert inspect_image(root).libc is Libc.NONE


@pytest.mark.parametrize("stand_in", ["libgcompat.so.0", "libc.musl-x86_64.so.1"])
def test_musl_that_passes_for_glibc_is_musl(tmp_path: Path, stand_in: str) -> None:
    root = image(tmp_path, None, b"", stand_in)
    (root / "usr/lib/libc.so.6").symlink_to(stand_in)
    found = inspect_image(root)
    assert (found.libc, found.tool_loads) == (Libc.MUSL, False)


def test_a_libc_without_a_version_loads_nothing(tmp_path: Path) -> None:
    found = inspect_image(image(tmp_path, None, b"", "libc.so.6"))
    assert (found.libc, found.version, found.tool_loads) == (Libc.GLIBC, None, False)
    (tmp_path / "usr/lib/ld-musl-x86_64.so.1").write_bytes(b"")
    assert inspect_image(tmp_path).libc is Libc.MUSL


def test_a_glibc_beside_musl_is_what_gpu_programs_use(tmp_path: Path) -> None:
    found = inspect_image(image(tmp_path, "2.36", b"", "ld-musl-x86_64.so.1"))
    assert (found.libc, found.tool_loads) == (Libc.GLIBC, True)


@pytest.mark.parametrize("name", ["libc-real.so", "ld-linux-x86-64.so.2"])
def test_a_file_larger_than_any_libc_is_not_read(tmp_path: Path, name: str) -> None:
    root = image(tmp_path, "2.34")
    os.truncate(root / "usr/lib/x86_64-linux-gnu" / name, 450 << 20)
    with pytest.raises(OSError, match=f"{name}: a file that is too large, of 450 MiB"):
        inspect_image(root)


def test_a_file_of_beginnings_of_a_banner_is_read_in_time(tmp_path: Path) -> None:
    root = image(tmp_path, None)
    (root / "usr/lib/libc.so.6").write_bytes(b"GNU C Library " * 60_000)
    started = time.process_time()
    assert inspect_image(root).version is None
    assert time.process_time() - started < 20  # minutes where it is quadratic


def test_directories_without_an_end_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_image, "_MOST_ENTRIES", 20)
    root = image(tmp_path, "2.36", b"", *(f"{number}.so" for number in range(30)))
    with pytest.raises(OSError, match="more than 20 files in the library directories"):
        inspect_image(root)


def test_more_machines_than_there_are_is_told(tmp_path: Path) -> None:
    root = image(tmp_path, None)
    for number in range(16):
        (root / f"usr/lib/m{number}-linux-gnu").mkdir()
    with pytest.raises(OSError, match=r"lib: more than 16 directories \*-linux-gnu"):
        inspect_image(root)


def test_names_of_an_image_are_few_and_plain_where_they_are_shown(tmp_path: Path) -> None:
    names = ("libjemalloc.so.\x1b[2J", "libjemalloc.so.\udcff", "libjemalloc.so.1")
    root = image(tmp_path, "2.36", b"", *names, *(f"libjemalloc.so.{n}" for n in range(2, 9)))
    (note,) = inspect_image(root).notes
    assert note.startswith("libjemalloc.so.1, libjemalloc.so.2, libjemalloc.so.3 and 7 more:")
    for number in range(1, 9):
        (root / f"usr/lib/libjemalloc.so.{number}").unlink()
    (note,) = inspect_image(root).notes
    assert note.startswith(r"libjemalloc.so.\udcff, libjemalloc.so.\x1b[2J: ")


def test_this_machines_files_can_be_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("ldd") is None:
        pytest.skip("needs glibc")
    assert main(["image", "/"]) == 0
    assert capsys.readouterr().out.startswith("glibc 2.")
