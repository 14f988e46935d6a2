# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import pytest

from tests.testbed import initramfs

if TYPE_CHECKING:
    from pathlib import Path

MODULES_DEP = """\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet.ko.xz:
kernel/fs/netfs/netfs.ko.xz: kernel/fs/fscache.ko.xz
kernel/net/9p/9pnet_virtio.ko.xz: kernel/drivers/virtio/virtio-ring.ko.xz kernel/net/9p/9pnet.ko.xz
"""


def test_modules_are_loaded_after_what_they_need_and_once() -> None:
    order = initramfs.loading_order(MODULES_DEP, ["9p", "9pnet_virtio"])
    assert order == [
        "kernel/fs/netfs/netfs.ko.xz",
        "kernel/net/9p/9pnet.ko.xz",
        "kernel/fs/9p/9p.ko.xz",
        "kernel/drivers/virtio/virtio-ring.ko.xz",
        "kernel/net/9p/9pnet_virtio.ko.xz",
    ]


def test_a_module_that_is_built_in_is_not_loaded() -> None:
    assert initramfs.loading_order(MODULES_DEP, ["overlay"]) == []
    assert initramfs.loading_order("", ["9p"]) == []


def test_dashes_and_underscores_name_the_same_module() -> None:
    text = "kernel/a/virtio-ring.ko:\n"
    assert initramfs.loading_order(text, ["virtio_ring"]) == ["kernel/a/virtio-ring.ko"]


def test_a_malformed_index_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"modules\.dep"):
        initramfs.loading_order("kernel/fs/9p/9p.ko.xz\n", ["9p"])


def test_compressed_modules_are_packed_uncompressed(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/9p.ko.xz").write_bytes(lzma.compress(b"the module"))
    (tmp_path / "modules.dep").write_text("kernel/9p.ko.xz:\n")
    archive = initramfs.fixed_part(tmp_path)
    assert b"modules/9p.ko\0" in archive
    assert b"the module" in archive


def test_a_run_s_values_are_quoted_for_the_guest_s_shell() -> None:
    archive = initramfs.run_part({"END": "<end 1>", "KEEP": "/a /b"}, "true\n")
    assert b"END='<end 1>'\nKEEP='/a /b'\n" in archive
