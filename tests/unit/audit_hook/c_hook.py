# SPDX-License-Identifier: Apache-2.0
"""The hook's pure C functions, called from Python: the parsers a container's file could attack."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

_HOOK = Path(__file__).resolve().parents[3] / "audit_hook"
_SOURCES = ("slice/slice.c", "tool/cumask.c")

MAX_GPUS = 64
MASK_WORDS = 32
UNLIMITED = 2**64 - 1
UNKNOWN = 2**32 - 1

Mask = ctypes.c_uint32 * MASK_WORDS


class Gpu(ctypes.Structure):
    """``struct rf_gpu``."""

    _fields_ = (
        ("pci", ctypes.c_uint64),
        ("vram", ctypes.c_uint64),
        ("kfd", ctypes.c_uint32),
        ("render", ctypes.c_uint32),
        ("card", ctypes.c_uint32),
        ("masked", ctypes.c_bool),
        ("cus", Mask),
        ("cu_list", ctypes.c_void_p),
        ("cu_list_length", ctypes.c_size_t),
    )


class Slice(ctypes.Structure):
    """``struct rf_slice``."""

    _fields_ = (
        ("kernel_refuses", ctypes.c_bool),
        ("oversubscribe", ctypes.c_bool),
        ("priority", ctypes.c_int),
        ("gpu_count", ctypes.c_uint32),
        ("gpus", Gpu * MAX_GPUS),
    )


def build(directory: Path) -> ctypes.CDLL:
    """Compile the functions, undefined behaviour made a trap, and load them."""
    library = directory / "hook.so"
    subprocess.run(
        ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra",
         "-Werror", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error",
         *(_HOOK / source for source in _SOURCES), "-o", library],
        check=True,
    )  # fmt: skip
    loaded = ctypes.CDLL(str(library))
    loaded.rf_slice_parse.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Slice))
    loaded.rf_parse_size.argtypes = (
        ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64)
    )  # fmt: skip
    loaded.rf_parse_size.restype = ctypes.c_bool
    loaded.rf_parse_cu_list.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Mask))
    loaded.rf_parse_cu_list.restype = ctypes.c_bool
    loaded.rf_cumask_from_variable.argtypes = (
        ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(Mask)
    )  # fmt: skip
    loaded.rf_cumask_fit.argtypes = (ctypes.POINTER(Mask), ctypes.c_uint32, ctypes.c_bool)
    loaded.rf_cumask_fit.restype = ctypes.c_bool
    return loaded


def bits(mask: ctypes.Array[ctypes.c_uint32]) -> set[int]:
    """The CU ids of a mask."""
    return {index for index in range(MASK_WORDS * 32) if mask[index // 32] >> (index % 32) & 1}
