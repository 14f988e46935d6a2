# SPDX-License-Identifier: Apache-2.0
"""Opens GPU device files as a container would.

Whoever opens ``/dev/kfd`` is a KFD process until it ends, and the driver then refuses to change
compute partitions; a GPU that hangs can keep an ``open`` for ever. So this is for a process that
ends with it (``enforcer.host.apart``).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

_KFD_GET_VERSION = 0x80084B01
_DRM_VERSION = 0xC0406400
# struct drm_version: three ints, and three pairs of a length and a pointer.
_VERSION = struct.Struct("=iiixxxxQQQQQQ")
_NAME_BYTES = 32
_DRIVER = "amdgpu"


def test_device(path: str) -> str:
    """Why the file is of no use, "" if it can be opened and has the driver behind it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot open: {error.strerror}"
    try:
        if os.path.basename(path) == "kfd":  # noqa: PTH119 - a string all along
            fcntl.ioctl(descriptor, _KFD_GET_VERSION, bytes(8))
            return ""
        name = _drm_driver(descriptor)
    except OSError as error:
        return f"opens, but does not tell its version: {error.strerror}"
    finally:
        os.close(descriptor)
    return "" if name == _DRIVER else f"expected the driver {_DRIVER}, found {name!r}"


def _drm_driver(descriptor: int) -> str:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    request = _VERSION.pack(0, 0, 0, _NAME_BYTES - 1, ctypes.addressof(name), 0, 0, 0, 0)
    fcntl.ioctl(descriptor, _DRM_VERSION, request)
    return name.value.decode(errors="replace")
