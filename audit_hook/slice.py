# SPDX-License-Identifier: Apache-2.0
"""Writing the slice file the hook reads in a container (grammar: docs/hook-files.md)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

SLICE_VERSION = 1
MAX_GPUS = 64
MAX_BYTES = 32768

_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True)
class GpuShare:
    """What a container gets of one GPU, in the order ROCr will count its GPUs."""

    bdf: str
    """PCI address, ``dddd:bb:dd.f`` in lower case."""
    vram_bytes: int | None
    """None: counted, never refused."""
    cus: str | None = None
    """CU ids as in ``HSA_CU_MASK`` (``0-3,8``); None: every CU."""
    kfd_id: int | None = None
    """KFD ``gpu_id``; without it, driver buffers of ROCm are not counted."""
    render: int | None = None
    """DRM render minor; without it, buffers of Vulkan and VA-API are not counted."""
    card: int | None = None
    """DRM primary minor."""


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A container's slice, and who refuses what is above it."""

    gpus: tuple[GpuShare, ...]
    kernel_refuses: bool
    """True: a kernel layer refuses, the hook informs. False: the hook refuses."""
    priority: int | None = None
    """0: its queues go first, 1: they go last, None: as they come."""
    oversubscribe: bool = False


def _gpu_line(gpu: GpuShare) -> str:
    if _BDF.fullmatch(gpu.bdf) is None:
        raise ValueError(f"GPU {gpu.bdf!r}: expected dddd:bb:dd.f in lower-case hexadecimal")
    if gpu.vram_bytes is not None and not 0 <= gpu.vram_bytes < 2**64 - 1:
        raise ValueError(f"GPU {gpu.bdf}: {gpu.vram_bytes} bytes, expected a 64-bit number")
    if gpu.cus is not None and _CUS.fullmatch(gpu.cus) is None:
        raise ValueError(f"GPU {gpu.bdf}: CUs {gpu.cus!r}, expected a list like 0-3,8")
    fields = [
        f"gpu {gpu.bdf}",
        f"vram={'all' if gpu.vram_bytes is None else gpu.vram_bytes}",
        f"cus={'all' if gpu.cus is None else gpu.cus}",
    ]
    for name, value in (("kfd", gpu.kfd_id), ("render", gpu.render), ("card", gpu.card)):
        if value is not None:
            if not 0 <= value < 2**32 - 1:
                raise ValueError(f"GPU {gpu.bdf}: {name} {value}, expected a 32-bit number")
            fields.append(f"{name}={value}")
    return " ".join(fields)


def format_slice(content: SliceFile) -> str:
    """The text of a slice file.

    Raises ValueError for what the hook would not take: no GPU or more than 64, one twice, a value
    out of range. CU ids are checked for form only.
    """
    if not 1 <= len(content.gpus) <= MAX_GPUS:
        raise ValueError(f"a slice of {len(content.gpus)} GPUs, expected 1 to {MAX_GPUS}")
    if len({gpu.bdf for gpu in content.gpus}) != len(content.gpus):
        raise ValueError("a slice that names a GPU twice")
    if content.priority not in {None, 0, 1}:
        raise ValueError(f"priority {content.priority}, expected 0 or 1")
    lines = [
        f"ringfence-slice {SLICE_VERSION}",
        f"refuse {'kernel' if content.kernel_refuses else 'hook'}",
        *map(_gpu_line, content.gpus),
    ]
    if content.priority is not None:
        lines.append(f"priority {content.priority}")
    if content.oversubscribe:
        lines.append("oversubscribe")
    text = "\n".join([*lines, "end", ""])
    if len(text) >= MAX_BYTES:
        raise ValueError(f"a slice file of {len(text)} bytes, expected fewer than {MAX_BYTES}")
    return text


def write_slice(content: SliceFile, directory: int, name: str = "slice") -> None:
    """Write the slice file into an open directory, whole or not at all, readable by everyone.

    Raises OSError as the file system says, and ValueError as ``format_slice`` does.
    """
    new = f".{name}.new"
    text = format_slice(content).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, 0o444, dir_fd=directory)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(stream.fileno(), 0o444)
        os.fsync(stream.fileno())
    os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
