# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from image.contents import SITE
from image.python import SOURCES, distributions, generated, install_ours
from tests.testbed.cache import StepError

ROOT = Path(__file__).parents[3]


def wheel(folder: Path, *names: str) -> Path:
    path = folder / "ringfence-1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


WHOLE = [f"{name}/__init__.py" for name in SOURCES]


def test_what_is_in_no_commit_is_known_from_what_it_is_made_of() -> None:
    found = generated(ROOT)
    assert {
        "enforcer/api/enforcer_pb2.py",
        "deviceplugin/api/v1beta1_pb2_grpc.py",
        "bpf/gate.bpf.o",
        "bpf/ledger.bpf.o",
        "audit_hook/libringfence-audit.so",
    } <= found


def test_a_whole_wheel_is_unpacked_where_python_looks(tmp_path: Path) -> None:
    install_ours(tmp_path / "root", wheel(tmp_path, *WHOLE))
    for name in SOURCES:
        assert (tmp_path / "root" / SITE / name / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([f"ringfence-1.data/purelib/{WHOLE[0]}", *WHOLE[1:]], "found ringfence-1.data"),
        (WHOLE[1:], f"and not {SOURCES[0]}"),
    ],
    ids=["astray", "missing"],
)
def test_a_wheel_of_another_shape_is_refused(tmp_path: Path, names: list[str], words: str) -> None:
    with pytest.raises(StepError, match=words):
        install_ours(tmp_path / "root", wheel(tmp_path, *names))


def test_distributions_are_read_from_their_metadata(tmp_path: Path) -> None:
    folder = tmp_path / SITE / "x-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: x\nVersion: 1\nLicense-Expression: MIT\n\nName: no\n"
    )
    assert list(distributions(tmp_path)) == [("x", "1", "MIT")]
