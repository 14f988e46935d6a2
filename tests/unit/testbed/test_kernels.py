# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from tests.testbed import kernels, stock
from tests.testbed.cache import Cache, StepError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("wanted", "config", "lost"),
    [
        ("CONFIG_A=y\n", "CONFIG_A=y\n", []),
        ("CONFIG_A=y\n", "CONFIG_A=m\n", ["CONFIG_A=y"]),
        ("CONFIG_A=y\n", "# CONFIG_A is not set\n", ["CONFIG_A=y"]),
        ('CONFIG_LSM="bpf"\n', 'CONFIG_LSM="landlock,bpf"\n', ['CONFIG_LSM="bpf"']),
        ("# CONFIG_A is not set\n", "", []),
        ("# CONFIG_A is not set\n", "# CONFIG_A is not set\n", []),
        ("# CONFIG_A is not set\n", "CONFIG_A=m\n", ["# CONFIG_A is not set"]),
        ("# CONFIG_A is not set\n", "CONFIG_AB=y\n", []),
        ("# a comment\n\n", "", []),
    ],
)
def test_an_option_that_did_not_survive_is_found(wanted: str, config: str, lost: list[str]) -> None:
    assert kernels.lost_options(wanted, config) == lost


@pytest.mark.parametrize("line", kernels.LINES)
def test_fragments_ask_for_each_option_once(line: str) -> None:
    options = [
        text.removeprefix("# ").partition("=")[0].partition(" ")[0]
        for text in kernels.fragment(line).splitlines()
        if text.startswith(("CONFIG_", "# CONFIG_"))
    ]
    assert len(options) > 100
    assert sorted(options) == sorted(set(options))


def test_the_kernel_of_7_2_is_configured_as_that_of_dmem() -> None:
    assert kernels.fragment("dmem-7.2") == kernels.fragment("dmem")


def test_dmem_and_aligned_functions_are_what_tells_the_lines_apart() -> None:
    added = set(kernels.fragment("dmem").splitlines()) - set(
        kernels.fragment("nodmem").splitlines()
    )
    assert {text for text in added if text.startswith(("CONFIG_", "# CONFIG_"))} == {
        "CONFIG_CGROUP_DMEM=y",
        "# CONFIG_CC_OPTIMIZE_FOR_SIZE is not set",
        "CONFIG_CC_OPTIMIZE_FOR_PERFORMANCE=y",
    }


DEBIAN = ["linux-source-6.1", "linux-source-6.12", "linux-source-7.2", "linux-source-7.3"]
UBUNTU = ["linux-source-6.8.0", "linux-source-6.11.0", "linux-source-6.17.0"]


@pytest.mark.parametrize(
    ("line", "names", "found"),
    [
        ("dmem", DEBIAN, "linux-source-7.3"),
        ("nodmem", DEBIAN, "linux-source-6.12"),
        ("dmem", UBUNTU, "linux-source-6.17.0"),
        ("nodmem", UBUNTU, "linux-source-6.11.0"),
        ("dmem-7.2", DEBIAN, "linux-source-7.2"),
        ("dmem-7.2", ["linux-source-7.20", "linux-source-7.2.13"], "linux-source-7.2.13"),
    ],
)
def test_source_package_of_each_line(line: str, names: list[str], found: str) -> None:
    assert kernels.choose(line, names) == found


def test_an_archive_without_a_source_package_is_told_so() -> None:
    with pytest.raises(StepError, match=r"kernel dmem: expected .* found linux-source-6\.1"):
        kernels.choose("dmem", ["linux-source-6.1"])


@pytest.mark.parametrize("names", [UBUNTU, ["linux-source-7.1", "linux-source-7.3"]])
def test_nothing_takes_the_place_of_7_2(names: list[str]) -> None:
    with pytest.raises(StepError, match=r"kernel dmem-7\.2: expected .* linux-source-7\.2 in"):
        kernels.choose("dmem-7.2", names)


def test_a_line_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(StepError, match=r"expected one of dmem, nodmem, dmem-7\.2, found '6\.1'"):
        kernels.choose("6.1", DEBIAN)


IMAGES = [
    "linux-image-6.1.0-31-amd64",
    "linux-image-6.1.0-9-amd64",
    "linux-image-6.1.0-35-rt-amd64",
    "linux-image-6.12.117+deb13-amd64",
    "linux-image-6.12.117+deb13-cloud-amd64",
    "linux-image-6.12.120+deb13-amd64-unsigned",
    "linux-image-7.3.4+deb13-amd64",
    "linux-image-amd64",
]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("6.1", "linux-image-6.1.0-31-amd64"),
        ("6.12", "linux-image-6.12.117+deb13-amd64"),
        ("newest", "linux-image-7.3.4+deb13-amd64"),
    ],
)
def test_stock_kernel_is_the_newest_plain_one_of_its_line(name: str, found: str) -> None:
    assert stock.choose(name, IMAGES) == found


UBUNTU_IMAGES = [
    *(f"linux-image-{version}-generic" for version in ("6.8.0-31", "6.8.0-87", "6.11.0-29")),
    *("linux-image-6.14.0-37-generic", "linux-image-6.17.0-14-generic"),
    *("linux-image-6.8.0-99-lowlatency", "linux-modules-extra-6.8.0-87-generic"),
]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("6.1", "linux-image-6.8.0-87-generic"),
        ("6.12", "linux-image-6.14.0-37-generic"),
        ("newest", "linux-image-6.17.0-14-generic"),
    ],
)
def test_ubuntu_s_lines_take_the_places_of_debian_s(name: str, found: str) -> None:
    assert stock.choose(name, UBUNTU_IMAGES) == found


def test_a_stock_kernel_out_of_reach_is_told_so() -> None:
    with pytest.raises(StepError, match=r"stock 6\.12"):
        stock.choose("6.12", IMAGES[:1])
    with pytest.raises(StepError, match=r"expected one of 6\.1, 6\.12, newest"):
        stock.choose("5.10", IMAGES)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("Module.symvers", True),
        ("include/drm/ttm/ttm_bo.h", True),
        ("include/generated/autoconf.h", True),
        ("scripts/mod/modpost", True),
        ("tools/objtool/objtool", True),
        ("arch/x86/Makefile", True),
        ("drivers/gpu/drm/amd/amdgpu/amdgpu.h", True),
        ("drivers/gpu/drm/ttm/ttm_bo.c", False),
        ("drivers/gpu/drm/ttm/ttm_bo.o", False),
        ("arch/arm64/include/asm/io.h", False),
        ("scripts/mod/modpost.o", False),
    ],
)
def test_what_stays_of_a_built_tree(path: str, *, kept: bool) -> None:
    assert kernels.is_kept(PurePosixPath(path)) is kept


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"package": "x"}'])
def test_a_damaged_record_means_the_kernel_is_not_there(tmp_path: Path, text: str) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/dmem.json").write_text(text)
    assert kernels.ready(Cache(tmp_path), "dmem") is None


def test_a_record_whose_kernel_is_gone_means_it_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/dmem.json").write_text('{"package": "linux-source-7.3", "version": "1"}')
    assert kernels.ready(Cache(tmp_path), "dmem") is None
