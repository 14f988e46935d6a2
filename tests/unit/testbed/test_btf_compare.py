# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bpf import loader
from tests.testbed import btf_compare
from tests.testbed.btf_compare import Difference, Points, PointsError, compare, read_points


@dataclass
class Fake:
    """Type information by hand."""

    functions: dict[str, str] = field(default_factory=dict)
    structs: dict[str, dict[str, str]] = field(default_factory=dict)

    def prototype(self, function: str) -> str | None:
        return self.functions.get(function)

    def members(self, name: str) -> dict[str, str] | None:
        return self.structs.get(name)


POINTS = Points(("create", "destroy"), ("newer",), {"bo": ("tbo", "flags")}, {"bo": ("pasid",)})
REAL = Fake(
    {"create": "int (struct bo *)", "destroy": "void (void)"},
    {"bo": {"tbo": "struct tbo", "flags": "u64", "more": "int"}},
)


def differences(sim: Fake, stock: Fake = REAL) -> list[Difference]:
    return list(compare(POINTS, sim, stock))


def test_the_same_types_do_not_differ() -> None:
    assert differences(REAL) == []


def test_what_only_one_side_has_beyond_the_list_does_not_matter() -> None:
    sim = Fake(REAL.functions | {"sim_only": "int (void)"}, REAL.structs | {"sim": {"a": "int"}})
    assert differences(sim) == []


def test_another_prototype_is_a_difference() -> None:
    sim = Fake(REAL.functions | {"create": "int (struct bo *, int)"}, REAL.structs)
    (found,) = differences(sim)
    assert found == Difference("create()", "int (struct bo *, int)", "int (struct bo *)")
    assert "simulated: int (struct bo *, int)" in str(found)


def test_an_inlined_function_is_a_difference() -> None:
    sim = Fake({"create": REAL.functions["create"]}, REAL.structs)
    assert differences(sim) == [Difference("destroy()", "absent", "void (void)")]


def test_a_name_neither_has_is_a_difference() -> None:
    nothing = Fake({}, REAL.structs)
    assert [d.name for d in differences(nothing, nothing)] == ["create()", "destroy()"]


def test_an_optional_name_may_be_absent_from_both_only() -> None:
    sim = Fake(REAL.functions | {"newer": "int (void)"}, REAL.structs)
    assert differences(sim) == [Difference("newer()", "int (void)", "absent")]
    assert differences(sim, sim) == []


def test_a_member_of_another_type_and_a_missing_one_differ() -> None:
    sim = Fake(REAL.functions, {"bo": {"tbo": "struct tbo *"}})
    assert differences(sim) == [
        Difference("struct bo.tbo", "struct tbo *", "struct tbo"),
        Difference("struct bo.flags", "absent", "u64"),
    ]


def test_a_missing_struct_differs_in_every_member() -> None:
    assert [d.name for d in differences(Fake(REAL.functions))] == [
        "struct bo.tbo",
        "struct bo.flags",
    ]


def test_the_list_in_use_can_be_read() -> None:
    points = read_points(btf_compare.POINTS)
    assert "amdgpu_bo_create" in points.functions
    assert "tbo" in points.members["amdgpu_bo"]
    assert len(set(points.functions)) == len(points.functions)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("functions = [", "not TOML"),
        ("function = []", "found function"),
        ('functions = "kfd_ioctl"', "list of names"),
        ("functions = [1]", "list of names"),
        ('members = ["bo"]', r"struct = \[members\]"),
        ('[members]\nbo = "tbo"', "members.bo"),
    ],
)
def test_a_bad_list_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "points.toml"
    path.write_text(text)
    with pytest.raises(PointsError, match=expected) as error:
        read_points(path)
    assert "points.toml" in str(error.value)


def test_a_file_that_is_not_there_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = str(tmp_path / "gone")
    argv = ["--sim", gone, "--sim-vmlinux", gone, "--stock", gone, "--stock-vmlinux", gone]
    assert btf_compare.main(argv) == 2
    assert gone in capsys.readouterr().err


def test_the_list_has_every_driver_function_our_bpf_attaches_to() -> None:
    """The kernel's own are not compared: hooks, system calls, DRM, and TTM, which both use."""
    folder = Path(loader.__file__).parent
    sections = [
        section
        for source in folder.glob("*.bpf.c")
        for section in re.findall(r'SEC\("(?:fentry|fexit|fmod_ret)/(\w+)"\)', source.read_text())
    ]
    own = ("security_", "ttm_", "drm_", "__x64_sys_", "__ia32_")
    driver = {name for name in sections if not name.startswith(own)}
    assert "amdgpu_bo_create" in driver
    points = read_points(btf_compare.POINTS)
    assert driver <= {*points.functions, *points.optional_functions}


_DRIVERS = r"struct ((?:amdgpu|kfd|svm|process_queue|mqd)_\w+) {\n((?:\t[^\n]*\n)*)};"


def test_the_list_has_every_driver_structure_our_bpf_reads() -> None:
    header = (Path(loader.__file__).parent / "include/kernel.h").read_text()
    read = {
        (structure, member)
        for structure, body in re.findall(_DRIVERS, header)
        for member in re.findall(r"(\w+);", body)
    }
    points = read_points(btf_compare.POINTS)
    assert ("amdgpu_bo", "tbo") in read
    listed = [*points.members.items(), *points.optional_members.items()]
    assert read <= {(name, member) for name, held in listed for member in held}
