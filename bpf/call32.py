# SPDX-License-Identifier: Apache-2.0
"""An ioctl as a 32-bit process makes it, which newer kernels ask security modules apart about."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import mmap
import os
import resource
from typing import Final

CODE: Final = bytes.fromhex("53 b8 36 00 00 00 89 fb 89 f1 cd 80 5b c3")
"""push %rbx; mov $54,%eax (ioctl); mov %edi,%ebx; mov %esi,%ecx; int $0x80; pop %rbx; ret"""

_NOT_TO_BE_HAD: Final = frozenset({errno.ENOSYS, errno.EPERM})


def ioctl_errno(descriptor: int, command: int, argument: int) -> int | None:
    """The errno of such a call, 0 if it succeeds; ``argument`` below 2³².

    None: this process can make none, on this machine, by this kernel or under these rules. It is
    made in a child, because the kernel may end who tries.
    """
    if os.uname().machine != "x86_64":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(CODE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 3)(start)
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os._exit(-call(descriptor, command, argument))
        finally:
            os._exit(errno.ENOSYS)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status < 0 or status in _NOT_TO_BE_HAD else status
